#!/usr/bin/env bash
# Casts of float32 to INT4 round in onnxruntime, and casts to INT8 do not.
#
# One would guess that both integers are cast to by the same rule, and that onnx's own evaluator
# has it. onnxruntime rounds to the nearest INT4, ties away from zero, and cuts INT8 off; onnx's
# evaluator cuts both off. So an INT4 weight that a model computes is another one in each.
#
# Seen with onnxruntime 1.32.0 and onnx 1.23.2.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6 ml-dtypes==0.5.4
venv/bin/python - <<'PYTHON'
import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

x = np.float32([1.5, 2.5, 2.9, -2.9])
found = {}
for name, number in (("INT4", onnx.TensorProto.INT4), ("INT8", onnx.TensorProto.INT8)):
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (float[N] x) => (float[N] y) '
        f"{{ a = Cast<to={number}>(x) y = Cast<to=1>(a) }}"
    )
    session = onnxruntime.InferenceSession(model.SerializeToString())
    found["onnxruntime", name] = session.run(None, {"x": x})[0].tolist()
    found["onnx", name] = ReferenceEvaluator(model).run(None, {"x": x})[0].tolist()
print("onnxruntime", onnxruntime.__version__, "onnx", onnx.__version__, "of", x.tolist())
for key, values in found.items():
    print(*key, values)
assert found["onnxruntime", "INT4"] == [2, 3, 3, -3]
assert found["onnxruntime", "INT8"] == [1, 2, 2, -2]
assert found["onnx", "INT4"] == found["onnx", "INT8"] == [1, 2, 2, -2]
PYTHON
