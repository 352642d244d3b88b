#!/usr/bin/env bash
# ConvTranspose with auto_pad SAME_UPPER is smaller than ONNX says, in onnx and in onnxruntime.
#
# One would guess that "SAME" makes the output the input times the strides: that is the
# attribute's text. Where the kernel is smaller than the stride no pads can do that, and onnx's
# shape inference and onnxruntime return what is left: 11 elements for 3 with a stride of 4.
#
# Seen with onnx 1.23.2 and onnxruntime 1.32.0.
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

model = onnx.parser.parse_model(
    '<ir_version: 10, opset_import: ["": 21]> g (float[1,1,3] x) => (float[1,1,N] y) '
    "<float[1,1,3] w = {1.0, 1.0, 1.0}> "
    '{ y = ConvTranspose<auto_pad = "SAME_UPPER", strides = [4]>(x, w) }'
)
inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph.output[0]
size = inferred.type.tensor_type.shape.dim[2].dim_value
session = onnxruntime.InferenceSession(model.SerializeToString())
computed = session.run(None, {"x": np.ones((1, 1, 3), np.float32)})[0].shape[2]
text = onnx.defs.get_schema("ConvTranspose").attributes["auto_pad"].description
print("onnx", onnx.__version__, "infers", size, "onnxruntime", onnxruntime.__version__, computed)
assert "input_shape[i] * strides[i]" in text
assert size == computed == 11
PYTHON
