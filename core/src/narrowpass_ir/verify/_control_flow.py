"""Rules that tie a control-flow node to the inputs and outputs of its graphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from narrowpass_ir.verify._operators import Types
from narrowpass_ir.verify._problems import value_label
from narrowpass_ir.verify._types import type_text

CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap"})


def control_flow_problems(node: ir.Node, inputs: Types, outputs: Types) -> Iterator[str]:
    """Yield where an If, Loop, Scan or SequenceMap node and its graphs disagree.

    Args:
        node: a node of the standard domain that is one of `CONTROL_FLOW`.
        inputs: types of its inputs.
        outputs: types of its outputs, without trailing empty ones.
    """
    # Results that the node drops are still results of its graphs.
    outputs = (*outputs, *[""] * (len(node.outputs) - len(outputs)))
    if node.op_type == "If":
        for branch in ("then_branch", "else_branch"):
            graph = _graph(node, branch)
            if graph is not None:
                yield from _matched(branch, "output", graph.outputs, outputs)
        return
    body = _graph(node, "body")
    if body is None:
        return
    if node.op_type == "Loop":
        # The trip count is not an input of the body; it has the iteration number there.
        fed = ("tensor(int64)", "tensor(bool)", *inputs[2:])
        yield from _matched("body", "input", body.inputs, fed)
        yield from _matched("body", "output", body.outputs, ("tensor(bool)", *outputs))
        return
    if node.op_type == "SequenceMap":
        yield from _matched("body", "input", body.inputs, (None,) * len(inputs))
        yield from _matched("body", "output", body.outputs, (None,) * len(outputs))
        return
    # Scan of opset 8 has the lengths of the sequences in front; its body does not see them.
    fed = inputs[1:] if len(body.inputs) == len(inputs) - 1 else inputs
    yield from _matched("body", "input", body.inputs, fed)
    yield from _matched("body", "output", body.outputs, outputs)


def _graph(node: ir.Node, name: str) -> ir.Graph | None:
    attribute = node.attributes.get(name)
    if attribute is None or attribute.is_ref() or attribute.type != ir.AttributeType.GRAPH:
        return None
    graph: ir.Graph | None = attribute.value
    return graph


def _matched(where: str, what: str, inner: Sequence[ir.Value], outer: Types) -> Iterator[str]:
    """Match values of a graph with the types that its node has for them."""
    if len(inner) != len(outer):
        yield f"needs {len(outer)} {what}s of its {where}, which has {len(inner)}"
        return
    for index, (value, text) in enumerate(zip(inner, outer, strict=True)):
        found = type_text(value.type)
        if found is not None and text not in (None, "", found):
            yield (
                f"{what} {index} {value_label(value)} of its {where} is {found}, but the node "
                f"sets it to {text}"
            )
