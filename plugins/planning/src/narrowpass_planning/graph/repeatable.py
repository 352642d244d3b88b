"""Which operations are deterministic functions of their inputs, to evaluate when shapes change."""

from __future__ import annotations

import onnx_ir as ir

from narrowpass_ir.subgraphs import subgraphs
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.graph.op import Op

_UNREPEATABLE = {
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Multinomial",
    "Bernoulli",
    "Dropout",
}


def repeatable(op: Op, facts: Facts) -> bool:
    """Return whether an operation can be evaluated when shapes change, not in each run.

    Its inputs must be known then; of the input of Shape and Size, the shape alone.
    """
    node = op.nodes[0]
    if len(op.nodes) != 1 or node.domain or any(not value.name for value in op.outputs):
        return False
    if op.superseded or op.kind.islower():
        return False  # the node alone does not compute this
    if not all(isinstance(value.type, ir.TensorType) for value in op.outputs):
        return False
    given = [value for value in (*op.inputs, *op.outputs) if value is not None]
    if any(facts.dtype(value) == ir.DataType.STRING for value in given):
        return False
    if op.kind in ("Shape", "Size"):
        return isinstance(op.required(0).type, ir.TensorType)
    if op.kind in _UNREPEATABLE or any(subgraphs(node)):
        return False
    return bool(op.inputs) or op.kind == "Constant"
