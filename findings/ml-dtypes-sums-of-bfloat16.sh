#!/usr/bin/env bash
# A sum of 1,000 ones in bfloat16 is 256, and their mean 0.256.
#
# One would guess that numpy's sum, which adds pairwise and widens float16 well enough to get
# 1000, does so for the bfloat16 of ml_dtypes. Each partial sum is rounded to 8 bits, and 256 + 1
# is 256. So is onnx's reference evaluator's ReduceSum of bfloat16, which is numpy's. A matmul of
# the same ones is 1000.
#
# Seen with ml_dtypes 0.5.4, numpy 2.4.6 and onnx 1.23.2.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q onnx==1.23.2 numpy==2.4.6 ml-dtypes==0.5.4
venv/bin/python - <<'PYTHON'
import ml_dtypes
import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

ones = np.ones(1000, ml_dtypes.bfloat16)
model = onnx.parser.parse_model(
    '<ir_version: 10, opset_import: ["": 21]> '
    "g (bfloat16[N] x) => (bfloat16[K] y) { y = ReduceSum(x) }"
)
found = {
    "sum": float(ones.sum()),
    "mean": float(ones.mean()),
    "matmul": float(ones @ ones),
    "ReduceSum": float(ReferenceEvaluator(model).run(None, {"x": ones})[0].item()),
    "sum of float16": float(np.ones(1000, np.float16).sum()),
}
print("ml_dtypes", ml_dtypes.__version__, "numpy", np.__version__, "onnx", onnx.__version__, found)
assert found["sum"] == found["ReduceSum"] == 256
assert found["mean"] < 0.26
assert found["matmul"] == found["sum of float16"] == 1000
PYTHON
