#!/usr/bin/env bash
# onnx-ir's IdentityEliminationPass leaves a model with one output twice.
#
# One would guess that a pass that removes copies keeps the names of a model's outputs: where an
# output is a copy of another one, that copy has to stay. It is removed, and the outputs [y, z]
# become [z, z]: whoever asks for y gets an error.
#
# Seen with onnx-ir 1.1.0.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q onnx==1.23.2 onnx-ir==1.1.0 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import onnx
import onnx_ir as ir
from onnx_ir.passes.common import IdentityEliminationPass

text = """<ir_version: 10, opset_import: ["": 21]>
    g (float[2] x) => (float[2] y, float[2] z) { y = Neg(x) z = Identity(y) }"""
model = ir.from_proto(onnx.parser.parse_model(text))
before = [value.name for value in model.graph.outputs]
IdentityEliminationPass()(model)
after = [value.name for value in model.graph.outputs]
print("onnx-ir", ir.__version__)
print("outputs before", before, "after", after)
assert (before, after) == (["y", "z"], ["z", "z"])
PYTHON
