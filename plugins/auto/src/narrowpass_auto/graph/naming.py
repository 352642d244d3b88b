"""Names for nodes: candidates learn by name which nodes they may rewrite."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir


def name_nodes(model: ir.Model) -> int:
    """Name each node that has no name, or one that another node has; return how many that are."""
    nodes = list(model.graph.all_nodes())
    taken = {node.name for node in nodes}
    seen: set[str] = set()
    renamed = 0
    for node in nodes:
        if not node.name or node.name in seen:
            first = next((value.name for value in node.outputs if value.name), node.op_type)
            numbered = (f"{first}.{number}" for number in itertools.count(1))
            candidates = itertools.chain([f"{first}/{node.op_type}"], numbered)
            node.name = next(name for name in candidates if name not in taken)
            taken.add(node.name)
            renamed += 1
        seen.add(node.name)
    return renamed
