"""com.microsoft's GroupQueryAttention over caches that are appended to in place.

The operator takes the number of rows of each sequence. Where all have those of the caches, new rows
are appended, as by a Concat; `Fed` has what feeds must say for that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from narrowpass_ir.state import APPENDED, State
from narrowpass_planning.state.errors import AppendError
from narrowpass_planning.state.fed import Fed
from narrowpass_planning.state.symbolic.affine import ROWS, Affine
from narrowpass_planning.state.symbolic.evaluation import Evaluation
from narrowpass_planning.state.symbolic.tensor import Tensor, function, listed

_NEW = "narrowpass.new rows"
_COUNTS = {5: -1, 6: 0}
"""Inputs that have the number of rows: what they add to it. That of each sequence is one less."""


def mark_appended(graph: ir.Graph, states: Sequence[State]) -> Fed:
    """Mark the nodes whose keys and values may be appended, for their expansion.

    Args:
        graph: as it was loaded; nodes are marked in their metadata.
        states: that have an axis.

    Returns:
        What feeds must say.

    Raises:
        AppendError: a node whose numbers of rows are not followed to inputs.
    """
    nodes = [n for n in graph if (n.domain, n.op_type) == ("com.microsoft", "GroupQueryAttention")]
    inputs = {state.input for state in states}
    found = [n for n in nodes if len(n.inputs) > 6 and _name(n.inputs[3]) in inputs]
    if not found:
        return Fed()
    total = Affine.of(ROWS) + Affine.of(_NEW)
    ones: dict[str, Tensor] = {}
    counts: dict[str, int] = {}
    feeds: dict[str, Tensor] = {}
    for node in found:
        for at, more in _COUNTS.items():
            for value in _inputs_behind(node.inputs[at]):
                name, rank = value.name or "", 0 if value.shape is None else len(value.shape)
                if value is node.inputs[at]:
                    counts[name] = more
                    feeds[name] = _counted(value, total.plus(more))
                elif rank == 2 and name not in inputs:
                    batch = Affine.of(f"{name}[0]")
                    feeds[name] = ones[name] = function((batch, total), Affine.number(1))
    known = Evaluation(graph, {}, feeds)
    for node in found:
        for at, more in _COUNTS.items():
            tensor = known.tensor(node.inputs[at])
            if tensor is None or tensor.element != total.plus(more):
                raise AppendError(
                    f"node {node.name or _name(node.outputs[0])!r} (GroupQueryAttention) reads "
                    f"{_name(node.inputs[at])!r}, which is not computed from a mask of "
                    "[batch, rows] or an input of its own; feed it as an input of the model"
                )
        node.metadata_props[APPENDED] = "1"
    return Fed(grown=tuple(ones), ones=tuple(ones), counts=tuple(counts.items()))


def _name(value: ir.Value | None) -> str:
    return "" if value is None else value.name or ""


def _counted(value: ir.Value, count: Affine) -> Tensor:
    rank = 0 if value.shape is None else len(value.shape)
    if rank == 0:
        return listed([count], 0)
    return function(tuple(Affine.of(f"{value.name}[{axis}]") for axis in range(rank)), count)


def _inputs_behind(value: ir.Value | None) -> Iterator[ir.Value]:
    """Yield the inputs of the graph that a value is computed from."""
    waiting, seen = [value], set[int]()
    while waiting:
        value = waiting.pop()
        if value is None or id(value) in seen:
            continue
        seen.add(id(value))
        node = value.producer()
        if node is not None:
            waiting += node.inputs
        elif value.is_graph_input() and not value.is_initializer():
            yield value
