#!/usr/bin/env bash
# onnx-ir reads a model with a sparse initializer without an error, and loses it.
#
# One would guess that a reader refuses what it has no place for, or keeps it. `from_proto` logs a
# warning about an input that nobody defines, and what is written again has no initializer at all:
# onnx's checker refuses it. onnxruntime runs the model as it was.
#
# Seen with onnx-ir 1.1.0.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q onnx==1.23.2 onnx-ir==1.1.0 onnxruntime==1.32.0 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnx import helper, numpy_helper

text = """<ir_version: 10, opset_import: ["": 21]>
    g (float[2,3] x) => (float[2,3] y) { y = Add(x, w) }"""
model = onnx.parser.parse_model(text)
values = numpy_helper.from_array(np.float32([5]), "w")
indices = numpy_helper.from_array(np.int64([4]))
model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [2, 3]))
session = onnxruntime.InferenceSession(model.SerializeToString())
print("onnxruntime", session.run(None, {"x": np.zeros((2, 3), np.float32)})[0].tolist())

again = ir.to_proto(ir.from_proto(model))
counts = len(again.graph.sparse_initializer), len(again.graph.initializer)
print("onnx-ir", ir.__version__, "writes", counts, "sparse and dense initializers")
assert counts == (0, 0)
try:
    onnx.checker.check_model(again)
except onnx.checker.ValidationError as error:
    print("onnx's checker:", str(error).splitlines()[0])
else:
    raise SystemExit("onnx's checker takes it")
PYTHON
