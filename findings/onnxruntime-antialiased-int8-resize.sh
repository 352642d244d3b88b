#!/usr/bin/env bash
# onnxruntime's antialiased Resize of int8 turns negative pixels into 0.
#
# One would guess that the operator, which ONNX has for int8, is the one of uint8 with a sign. An
# image of -50 alone becomes an image of 0: results are clamped to 0 to 255 before they are
# stored. Without `antialias` they are -50. int8 images are what signed quantization makes of any
# image.
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

x = np.full((1, 1, 4, 4), -50, np.int8)
found = []
for antialias in (0, 1):
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 19]> g (int8[1,1,4,4] x) => (int8[1,1,2,2] y) '
        "<int64[4] s = {1, 1, 2, 2}> "
        f'{{ y = Resize<mode = "linear", antialias = {antialias}>(x, , , s) }}'
    )
    session = onnxruntime.InferenceSession(model.SerializeToString())
    found.append(session.run(None, {"x": x})[0].ravel().tolist())
    print("onnxruntime", onnxruntime.__version__, "antialias", antialias, found[-1])
assert found == [[-50] * 4, [0] * 4]
PYTHON
