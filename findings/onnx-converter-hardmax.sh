#!/usr/bin/env bash
# onnx's version converter changes what a Hardmax computes.
#
# One would guess that a converter between operator sets keeps results: that is its purpose, and
# for Softmax, whose definition changed the same way in operator set 13, it adds a Flatten and a
# Reshape. Of Hardmax over several axes it changes the version alone, and the result has more ones
# than before.
#
# Seen with onnx 1.23.2; onnxruntime 1.32.0 runs both models.
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
from onnx import version_converter

x = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
print("onnx", onnx.__version__)
same = {}
for name in ("Softmax", "Hardmax"):
    model = onnx.parser.parse_model(
        '<ir_version: 7, opset_import: ["": 11]> '
        f"g (float[2,2,2] x) => (float[2,2,2] y) {{ y = {name}<axis = 1>(x) }}"
    )
    converted = version_converter.convert_version(model, 13)
    before, after = (
        onnxruntime.InferenceSession(each.SerializeToString()).run(None, {"x": x})[0]
        for each in (model, converted)
    )
    same[name] = bool(np.allclose(before, after))
    print(name, before.ravel().tolist(), "became", after.ravel().tolist())
assert same == {"Softmax": True, "Hardmax": False}
PYTHON
