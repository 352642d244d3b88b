#!/usr/bin/env bash
# onnxruntime adds and multiplies int64 in double precision.
#
# One would guess that a reduction of integers is exact, or wraps. ReduceSum, ReduceProd and
# ReduceL1 of int64 are rounded to 53 bits, so that hashes, time stamps in nanoseconds and large
# identifiers change in their last digits; no element is near the limit of the type.
#
# Seen with onnxruntime 1.32.0.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import numpy as np
import onnx
import onnxruntime

print("onnxruntime", onnxruntime.__version__)
cases = {"ReduceSum": [2**53, 1, 1, 1], "ReduceL1": [2**53, 1, 1, 1], "ReduceProd": [2**53 + 1, 3]}
for name, numbers in cases.items():
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> '
        f"g (int64[N] x) => (int64[K] y) {{ y = {name}(x) }}"
    )
    session = onnxruntime.InferenceSession(model.SerializeToString())
    found = session.run(None, {"x": np.int64(numbers)})[0].item()
    exact = int(np.prod(numbers)) if name == "ReduceProd" else sum(numbers)
    print(name, numbers, "is", found, "off by", found - exact)
    assert found != exact
PYTHON
