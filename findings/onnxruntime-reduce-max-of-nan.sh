#!/usr/bin/env bash
# onnxruntime's ReduceMax leaves NaN out, and its Max and GlobalMaxPool do not.
#
# One would guess one rule for NaN in all maxima of a library. Of [1, NaN, NaN, ...] ReduceMax and
# ReduceMin return 1, Max with 0 and GlobalMaxPool return NaN. A check that a model has no NaN, by
# the largest element of a tensor, finds none.
#
# Seen with onnxruntime 1.32.0 on x86-64.
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

onnxruntime.set_default_logger_severity(3)
x = np.full((1, 1, 16), np.nan, np.float32)
x[..., 0] = 1
found = {}
for call in ("ReduceMax(x)", "ReduceMin(x)", "GlobalMaxPool(x)", "Max(x, zero)"):
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 17]> '
        f"g (float[1,1,16] x) => (float[A,B,C] y) <float zero = {{0.0}}> {{ y = {call} }}"
    )
    session = onnxruntime.InferenceSession(model.SerializeToString())
    found[call] = session.run(None, {"x": x})[0].ravel()[-1].item()
    print("onnxruntime", onnxruntime.__version__, call, "ends with", found[call])
assert found["ReduceMax(x)"] == found["ReduceMin(x)"] == 1
assert np.isnan(found["GlobalMaxPool(x)"])
assert np.isnan(found["Max(x, zero)"])
PYTHON
