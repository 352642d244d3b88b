#!/usr/bin/env bash
# XNNPACK's maximum returns NaN or the number, by which operand NaN is.
#
# One would guess that a maximum is symmetric: NaN as in numpy, or the number as in C's fmax. On
# x86-64 it is the instruction MAXPS, which returns its second operand where one is NaN:
# maximum(NaN, 1) is 1, and maximum(1, NaN) is NaN. Exchanging operands, which every optimizer may
# do, changes results.
#
# Seen with XNNPACK as executorch 1.5.1 has it, on Linux x86-64.
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


def binary(kind, a, b):
    handle, shape = pointer(), (size * 1)(len(a))
    status = xnn.xnn_create_binary_elementwise_nd(
        kind, FLOAT32, None, None, None, 0, ctypes.byref(handle)
    )
    arrays = buffer(a), buffer(b), buffer(np.zeros(len(a)))
    places = [pointer(array.ctypes.data) for array in arrays]
    status |= xnn.xnn_reshape_binary_elementwise_nd(handle, size(1), shape, size(1), shape, None)
    status |= xnn.xnn_setup_binary_elementwise_nd(handle, *places)
    status |= xnn.xnn_run_operator(handle, None)
    assert status == 0
    return arrays[2][: shape[0]].tolist()


MAXIMUM, MINIMUM = 4, 5
for name, kind in (("maximum", MAXIMUM), ("minimum", MINIMUM)):
    found = binary(kind, [np.nan, 1.0], [1.0, np.nan])
    print(f"executorch 1.5.1: {name}(NaN, 1) = {found[0]}, {name}(1, NaN) = {found[1]}")
    assert found[0] == 1 and np.isnan(found[1])
PYTHON
