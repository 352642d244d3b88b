"""Rewrites a model so that its caches are appended to in place.

A decoder's model computes each cache as ``Concat(past, new)``, which copies all of it for a row. In
the rewritten model a cache is a buffer of more rows than it has so far, an input ``length`` has
their number, and `AppendRows` writes the new rows behind them. Its output is the buffer: who reads
it must know how many rows count.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from narrowpass.errors import BackendError
from narrowpass_ir.state import State

DOMAIN = "narrowpass.state"
APPEND_ROWS = "AppendRows"
"""The operator ``AppendRows(cache, new, length)`` with the attribute ``axis``."""
LENGTH = "narrowpass.length"
"""Name of the input, int64[1]: the rows that caches have before the run."""


class AppendError(BackendError):
    """A model whose caches cannot be appended to in place. The message says why."""


class CacheFullError(BackendError):
    """Caches have no room for the rows of a run.

    Attributes:
        rows: that they need room for.
    """

    def __init__(self, rows: int, room: int) -> None:
        super().__init__(f"{rows} rows do not fit caches of {room}")
        self.rows = rows


def append_in_place(model: ir.Model, states: Sequence[State]) -> None:
    """Replace the Concat of each cache by `AppendRows`; caches are no outputs any more.

    Args:
        model: with types and shapes inferred; changed.
        states: of the model, with an axis each.

    Raises:
        AppendError: a cache is read, or computed, in another way.
    """
    graph = model.graph
    length = ir.Value(name=LENGTH, type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([1]))
    inputs = {value.name: value for value in graph.inputs}
    outputs = {value.name: value for value in graph.outputs}
    replaced = []
    for state in states:
        past, present = inputs[state.input], outputs[state.output]
        replaced.append((past, _concat_of(past, present, state), present, state))
    _check_shapes([concat.outputs[0] for _, concat, _, _ in replaced])
    given = {id(present) for _, _, present, _ in replaced}
    kept = [value for value in graph.outputs if id(value) not in given]
    del graph.outputs[:]
    graph.outputs.extend(kept)
    graph.inputs.append(length)
    for past, concat, present, state in replaced:
        whole = concat.outputs[0]
        append = ir.Node(
            DOMAIN,
            APPEND_ROWS,
            [past, concat.inputs[1], length],
            [ir.AttrInt64("axis", state.axis or 0)],
            name=concat.name,
            outputs=[ir.Value(name=f"{whole.name}.appended", type=past.type, shape=whole.shape)],
        )
        graph.insert_after(concat, append)
        _remove_identities(graph, present, whole)
        for use in tuple(whole.uses()):
            use.node.replace_input_with(use.idx, append.outputs[0])
        graph.remove(concat, safe=True)
    model.opset_imports[DOMAIN] = 1


def _concat_of(past: ir.Value, present: ir.Value, state: State) -> ir.Node:
    """Return the Concat that computes a cache from what it was and new rows."""
    node = present.producer()
    while node is not None and not node.domain and node.op_type == "Identity":
        source = node.inputs[0]
        node = None if source is None else source.producer()
    what = f"cache {state.input!r}"
    if node is None or node.domain or node.op_type != "Concat" or len(node.inputs) != 2:
        raise AppendError(f"{what} is not computed by a Concat with new rows")
    rank = 0 if past.shape is None else len(past.shape)
    axis = node.attributes.get_int("axis", 0)
    if node.inputs[0] is not past or not rank or axis % rank != state.axis:
        raise AppendError(f"{what} is not the first operand of its Concat, along its axis")
    if len(past.uses()) != 1:
        raise AppendError(f"{what} is read by other nodes than its Concat")
    return node


def _check_shapes(caches: Sequence[ir.Value]) -> None:
    """Check that the shapes of caches, which become those of buffers, are not computed with."""
    views = [view for cache in caches for view in _views_of(cache)]
    for node in [use.node for value in views for use in value.uses()]:
        shape = node.op_type == "Shape"
        if node.op_type == "Size" or (shape and not _sizes_views(node.outputs[0], views)):
            name = node.name or node.outputs[0].name
            raise AppendError(f"node {name!r} reads the shape of a cache")


_VIEWS = frozenset(["Identity", "Reshape", "Squeeze", "Unsqueeze", "Expand"])
_SHAPE_ARITHMETIC = frozenset(
    [
        "Cast",
        "Concat",
        "ConstantOfShape",
        "Equal",
        "Gather",
        "Identity",
        "Mul",
        "Reshape",
        "Slice",
        "Squeeze",
        "Unsqueeze",
        "Where",
    ]
)


def _sizes_views(value: ir.Value, views: Sequence[ir.Value]) -> bool:
    """Return whether a value computed from shapes is nothing but the shape of views.

    Heads are expanded to a shape that has the rows of the cache: it may have those of the buffer.
    """
    if value.is_graph_output():
        return False
    for use in value.uses():
        node = use.node
        sizes = node.op_type in ("Expand", "Reshape") and use.idx == 1
        if sizes and node.inputs[0] in views:
            continue
        if node.op_type not in _SHAPE_ARITHMETIC or sizes:
            return False
        if not all(_sizes_views(output, views) for output in node.outputs):
            return False
    return True


def _views_of(value: ir.Value) -> list[ir.Value]:
    """Return a value, and those that have its elements in other shapes."""
    found = [value]
    for view in found:
        readers = [use.node for use in view.uses()]
        found += [node.outputs[0] for node in readers if node.op_type in _VIEWS]
    return found


def _remove_identities(graph: ir.Graph, present: ir.Value, whole: ir.Value) -> None:
    """Remove the Identity nodes between a Concat and the output of the method."""
    while present is not whole:
        node = present.producer()
        source = None if node is None else node.inputs[0]
        if node is None or source is None:
            return
        for use in tuple(present.uses()):
            use.node.replace_input_with(use.idx, source)
        graph.remove(node, safe=True)
        present = source
