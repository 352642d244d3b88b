#!/usr/bin/env bash
# onnxruntime refuses a valid model in which two nodes have the same name.
#
# One would guess that names of nodes are for people: edges are named values, onnx's checker takes
# equal names, and empty ones are common. onnxruntime loads a graph with many unnamed nodes, and
# refuses one with two equal names. A pass that copies nodes has to rename them.
#
# Seen with onnxruntime 1.32.0 and onnx 1.23.2.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import onnx
import onnxruntime

text = """<ir_version: 10, opset_import: ["": 21]>
    g (float[N] x) => (float[N] y) { z = Neg(x) y = Abs(z) }"""
print("onnx", onnx.__version__, "onnxruntime", onnxruntime.__version__)
refused = {}
for name in ("", "a"):
    model = onnx.parser.parse_model(text)
    for node in model.graph.node:
        node.name = name
    onnx.checker.check_model(model, full_check=True)
    try:
        onnxruntime.InferenceSession(model.SerializeToString())
        refused[name] = ""
    except Exception as error:
        refused[name] = str(error)
    print(f"two nodes named {name!r}:", refused[name] or "loaded")
assert not refused[""]
assert "same node name" in refused["a"]
PYTHON
