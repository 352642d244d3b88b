"""Values know the nodes that consume them, and no others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from collections.abc import Set as AbstractSet

import onnx_ir as ir

from narrowpass_ir.verify._problems import node_label, value_label


def consumer_problems(
    values: Collection[ir.Value], nodes: AbstractSet[ir.Node], inputs: int
) -> Iterator[str]:
    """Yield which values list wrong consumers.

    Args:
        values: all values of the model.
        nodes: all nodes of the model.
        inputs: how many inputs these nodes have, left out ones apart.
    """
    # Uses are distinct: where all are right, and are as many as the inputs, none is missing.
    listed = 0
    for value in values:
        for node, index in value.uses():
            used = node.inputs
            if index < len(used) and used[index] is value and node in nodes:
                listed += 1
            else:
                listed = -1
                break
        if listed < 0:
            break
    if listed == inputs:
        return
    places = Counter(value for node in nodes for value in node.inputs if value is not None)
    for value in values:
        yield from _value_problems(value, nodes, places[value])


def _value_problems(value: ir.Value, nodes: AbstractSet[ir.Node], expected: int) -> Iterator[str]:
    label = f"value {value_label(value)}"
    right = 0
    for node, index in value.uses():
        if index >= len(node.inputs) or node.inputs[index] is not value:
            yield f"{label} lists {node_label(node)} as a consumer, but is not its input {index}"
        elif node not in nodes:
            yield (
                f"{label} is still consumed by {node_label(node)}, which is not in the model; "
                "remove nodes with graph.remove(node, safe=True)"
            )
        else:
            right += 1
    if right < expected:
        yield f"{label} is an input in {expected} places, but lists {right} of them as uses"
