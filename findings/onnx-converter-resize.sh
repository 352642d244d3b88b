#!/usr/bin/env bash
# onnx's version converter moves the pixels of a Resize by half a pixel.
#
# One would guess that upgrading from operator set 10 keeps an image where it is. Resize of
# operator set 10 has one rule for coordinates, which operator set 11 calls "asymmetric"; its
# default there is "half_pixel". The converter writes no attribute, and each pixel is interpolated
# elsewhere.
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

model = onnx.parser.parse_model(
    '<ir_version: 5, opset_import: ["": 10]> g (float[1,1,1,4] x) => (float[1,1,1,8] y) '
    '<float[4] s = {1.0, 1.0, 1.0, 2.0}> { y = Resize<mode = "linear">(x, s) }'
)
converted = version_converter.convert_version(model, 13)
x = np.arange(4, dtype=np.float32).reshape(1, 1, 1, 4)
before, after = (
    onnxruntime.InferenceSession(each.SerializeToString()).run(None, {"x": x})[0].ravel().tolist()
    for each in (model, converted)
)
print("onnx", onnx.__version__, before, "became", after)
assert before == [0, 0.5, 1, 1.5, 2, 2.5, 3, 3]
assert after == [0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3]
PYTHON
