#!/usr/bin/env bash
# safetensors.numpy.save writes another tensor than the one that it is given, if that is a
# transposed view.
#
# One would guess that a transposed array is written in the order of its elements, as numpy.save
# does, or refused. Its shape is written, and the bytes as they lie in memory: loading returns
# other numbers in the same shape. No error or warning comes. numpy.ascontiguousarray before it
# helps.
#
# Seen with safetensors 0.8.0 and numpy 2.4.6.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q safetensors==0.8.0 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import numpy as np
import safetensors
from safetensors.numpy import load, save

x = np.arange(6, dtype=np.float32).reshape(2, 3).T
found = load(save({"x": x}))["x"]
print("safetensors", safetensors.__version__, "saved", x.tolist(), "loaded", found.tolist())
assert found.shape == x.shape
assert not np.array_equal(found, x)
assert np.array_equal(load(save({"x": np.ascontiguousarray(x)}))["x"], x)
PYTHON
