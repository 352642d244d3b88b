#!/usr/bin/env bash
# onnxruntime's Sigmoid is 0 from about -18 on, and its Elu loses small numbers.
#
# One would guess errors of a few units in the last place. Sigmoid(-20) is 0 where float32 has
# 2.06e-9, so that a logarithm behind it is minus infinity; Elu(-1e-8) is 0 where it is -1e-8, as
# exp(x) - 1 in float32 would be. Softplus and Tanh keep both.
#
# Seen with onnxruntime 1.32.0 on x86-64.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import math

import numpy as np
import onnx
import onnxruntime

print("onnxruntime", onnxruntime.__version__)
exact = {
    ("Sigmoid", -20.0): 1 / (1 + math.exp(20)),
    ("Elu", -1e-8): math.expm1(-1e-8),
    ("Softplus", -20.0): math.log1p(math.exp(-20)),
    ("Tanh", -1e-8): math.tanh(-1e-8),
}
found = {}
for (name, x), right in exact.items():
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> '
        f"g (float[N] x) => (float[N] y) {{ y = {name}(x) }}"
    )
    session = onnxruntime.InferenceSession(model.SerializeToString())
    found[name] = session.run(None, {"x": np.float32([x])})[0].item()
    print(f"{name}({x}) = {found[name]:.4g}, exactly {right:.4g}")
assert found["Sigmoid"] == found["Elu"] == 0
assert found["Softplus"] != 0 != found["Tanh"]
PYTHON
