#!/usr/bin/env bash
# onnx's reference evaluator pads another axis of a MaxPool than the model says.
#
# One would guess that the reference has the layout of `pads` right: all beginnings, then all
# ends. With pads of [0, 1, 0, 1], one column on each side, an image of 3 x 3 has a result of 2 x
# 4; the evaluator returns 3 x 3. Symmetric pads hide it.
#
# Seen with onnx 1.23.2; onnx's own shape inference and onnxruntime 1.32.0 have 2 x 4.
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
from onnx.reference import ReferenceEvaluator

model = onnx.parser.parse_model(
    '<ir_version: 10, opset_import: ["": 21]> g (float[1,1,3,3] x) => (float[1,1,A,B] y) '
    "{ y = MaxPool<kernel_shape = [2, 2], pads = [0, 1, 0, 1], strides = [1, 1]>(x) }"
)
x = np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3)
(theirs,) = ReferenceEvaluator(model).run(None, {"x": x})
(right,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
inferred = onnx.shape_inference.infer_shapes(model).graph.output[0].type.tensor_type.shape
print("onnx's inference", onnx.__version__, [dim.dim_value for dim in inferred.dim])
print("onnx's evaluator", onnx.__version__, theirs.shape)
print("onnxruntime", onnxruntime.__version__, right.shape)
assert theirs.shape == (1, 1, 3, 3)
assert right.shape == (1, 1, 2, 4) == tuple(dim.dim_value for dim in inferred.dim)
PYTHON
