#!/usr/bin/env bash
# XNNPACK's sigmoid of 1e27 is NaN, and that of infinity is 1; its 1 / sqrt(0) is NaN.
#
# One would guess that a saturating function stays saturated, and that what is right at infinity
# is right before it. From 1e27 on, on both sides, the reduction of the argument leaves an
# infinity less an infinity, while infinity itself is clamped. 1 / sqrt(0) is infinity by IEEE
# 754, and NaN here, as is GELU of minus infinity.
#
# Seen with XNNPACK as executorch 1.5.1 has it, on Linux x86-64 with AVX-512.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q numpy==2.4.6
venv/bin/pip download -q --no-deps --only-binary=:all: --dest . \
    --platform manylinux_2_28_x86_64 --python-version 311 executorch==1.5.1
venv/bin/python - <<'PYTHON'
import ctypes
import zipfile
from pathlib import Path

import numpy as np

work = Path.cwd()
with zipfile.ZipFile(next(work.glob("executorch-*.whl"))) as wheel:
    wheel.extractall(work, [name for name in wheel.namelist() if name.endswith(".so")])
folder = next(work.rglob("libexecutorch_backend_xnnpack.so")).parent
for name in ("libexecutorch.so", "libexecutorch_threadpool.so"):
    ctypes.CDLL(str(folder / name), ctypes.RTLD_GLOBAL)
xnn = ctypes.CDLL(str(folder / "libexecutorch_backend_xnnpack.so"))
assert xnn.xnn_initialize(None) == 0
size, pointer, FLOAT32 = ctypes.c_size_t, ctypes.c_void_p, 1


def buffer(numbers):  # with elements to spare: kernels read in vectors
    found = np.zeros(len(numbers) + 64, np.float32)
    found[: len(numbers)] = numbers
    return found


def unary(kind, x):
    handle, count = pointer(), size(len(x))
    none = (ctypes.c_float * 4)()
    status = xnn.xnn_create_unary_elementwise_nc(
        kind, FLOAT32, FLOAT32, none, None, None, None, 0, ctypes.byref(handle)
    )
    x, out = buffer(x), buffer(np.zeros(len(x)))
    one = size(1)
    status |= xnn.xnn_reshape_unary_elementwise_nc(handle, count, one, one, one, None)
    places = [pointer(array.ctypes.data) for array in (x, out)]
    status |= xnn.xnn_setup_unary_elementwise_nc(handle, *places)
    status |= xnn.xnn_run_operator(handle, None)
    assert status == 0
    return out[: count.value]


SIGMOID, GELU, RECIPROCAL_SQUARE_ROOT = 16, 10, 15
x = [0, 1e26, 1e27, -1e27, np.inf, -np.inf]
found = unary(SIGMOID, x)
print("executorch 1.5.1: sigmoid of", x, "is", found.tolist())
assert found[[0, 1, 4, 5]].tolist() == [0.5, 1, 1, 0]
assert np.isnan(found[2:4]).all()
root, gelu = unary(RECIPROCAL_SQUARE_ROOT, [0.0])[0], unary(GELU, [-np.inf])[0]
print("1 / sqrt(0) is", root, "and gelu(-infinity)", gelu)
assert np.isnan([root, gelu]).all()
PYTHON
