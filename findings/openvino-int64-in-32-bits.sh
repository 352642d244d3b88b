#!/usr/bin/env bash
# OpenVINO's CPU plugin computes int64 in 32 bits, and double in float32.
#
# One would guess that a type that the model and its results have is the one that is computed
# with. Results come back as int64 and double, with what 32 bits could hold: 2**40 + 2**40 is 0,
# and 1e300 becomes the largest float32. No warning says so.
#
# Seen with OpenVINO 2026.4.1.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q openvino==2026.4.1 onnx==1.23.2 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import numpy as np
import onnx
import openvino

core, found = openvino.Core(), {}
print("OpenVINO", openvino.__version__)
for kind, x in (("int64", np.int64([2**40, 3])), ("double", np.float64([1e300, 3]))):
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> '
        f"g ({kind}[2] x) => ({kind}[2] y) {{ y = Add(x, x) }}"
    )
    compiled = core.compile_model(core.read_model(model.SerializeToString()), "CPU")
    result = compiled({"x": x})[0]
    found[kind] = result.tolist()
    print(x.tolist(), "twice is", result.dtype, found[kind])
    assert result.dtype == x.dtype
assert found["int64"] == [0, 6]
assert found["double"] == [float(np.finfo(np.float32).max), 6]
PYTHON
