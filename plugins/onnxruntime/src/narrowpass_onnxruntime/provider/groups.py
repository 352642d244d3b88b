"""Groups of nodes that are compiled together, in place of one node each.

A node's level counts how often the path of nodes that leads to it changes between native nodes and
others. Native nodes of one level are a group: no path leads from one to another through a node
of another kind, since that would raise the level. So groups are convex, and no cycle arises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from narrowpass_onnxruntime.provider.graph import Node

_FEW = 4
"""Nodes that compute: fewer of them do not pay for the calls into and out of a group."""

_HEAVY = frozenset(
    {
        "Attention",
        "Conv",
        "ConvInteger",
        "ConvTranspose",
        "GRU",
        "Gemm",
        "GroupQueryAttention",
        "LSTM",
        "MatMul",
        "MatMulInteger",
        "MatMulNBits",
        "MultiHeadAttention",
        "QLinearConv",
        "QLinearMatMul",
        "RNN",
        "TreeEnsemble",
        "TreeEnsembleClassifier",
        "TreeEnsembleRegressor",
    }
)
"""Operators that pay alone."""

_LIGHT = frozenset(
    {
        "Cast",
        "Concat",
        "Constant",
        "ConstantOfShape",
        "Expand",
        "Flatten",
        "Gather",
        "Identity",
        "Range",
        "Reshape",
        "Shape",
        "Size",
        "Slice",
        "Split",
        "Squeeze",
        "Transpose",
        "Unsqueeze",
    }
)
"""Operators that move elements, or nothing: groups of these alone do not pay."""


def groups_of(nodes: Sequence[Node], native: Callable[[Node], bool]) -> list[list[Node]]:
    """Return the native nodes in groups, each in order.

    Args:
        nodes: of a graph, in topological order.
        native: whether a node may be in a group.
    """
    level: dict[str, int] = {}  # of the node that computes a value
    kinds: dict[str, bool] = {}
    found: dict[int, list[Node]] = {}
    for node in nodes:
        kind = native(node)
        own = 0 if kind else 1  # native nodes have even levels
        for name in (*node.inputs, *node.captured):
            if name in level:
                own = max(own, level[name] + (kinds[name] != kind))
        for name in node.outputs:
            level[name], kinds[name] = own, kind
        if kind:
            found.setdefault(own, []).append(node)
    return [found[key] for key in sorted(found)]


def pays(nodes: Iterable[Node]) -> bool:
    """Return whether a group that is not the whole graph is worth its calls."""
    types = [node.op_type for node in nodes]
    return any(kind in _HEAVY for kind in types) or (
        sum(kind not in _LIGHT for kind in types) >= _FEW
    )
