#!/usr/bin/env bash
# onnx's version converter turns a Clip of float16 into an invalid one.
#
# One would guess that upgrading a valid model from operator set 10 to 13 gives a valid model. The
# bounds, which were attributes, become constants of float32, also where the data is float16, and
# Clip wants one type: onnxruntime refuses the result. No error or warning comes from the
# converter.
#
# Seen with onnx 1.23.2.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import onnx
import onnxruntime
from onnx import numpy_helper, version_converter

model = onnx.parser.parse_model(
    '<ir_version: 5, opset_import: ["": 10]> '
    "g (float16[N] x) => (float16[N] y) { y = Clip<min = 0.0, max = 6.0>(x) }"
)
onnxruntime.InferenceSession(model.SerializeToString())
converted = version_converter.convert_version(model, 13)
constants = [node.attribute[0].t for node in converted.graph.node if node.op_type == "Constant"]
types = [str(numpy_helper.to_array(tensor).dtype) for tensor in constants]
print("onnx", onnx.__version__, "bounds of a Clip of float16:", types)
assert types == ["float32", "float32"]
try:
    onnxruntime.InferenceSession(converted.SerializeToString())
except Exception as error:
    print("onnxruntime", onnxruntime.__version__, str(error)[:150])
else:
    raise SystemExit("onnxruntime takes it")
PYTHON
