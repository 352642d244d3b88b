"""Rewrites a model so that its caches are appended to in place.

A decoder's model computes each cache as ``Concat(past, new)``, which copies all of it for a row. In
the rewritten model a cache is a buffer of more rows than it has so far, an input ``length`` has
their number, and `AppendRows` writes the new rows behind them. Its output is the buffer: who reads
it must know how many rows count.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from narrowpass_ir.state import State
from narrowpass_planning.state.errors import AppendError
from narrowpass_planning.state.fed import Fed
from narrowpass_planning.state.lengths import Appended, Lengths
from narrowpass_planning.state.narrow import FLOAT32
from narrowpass_planning.state.operators import APPEND_ROWS, DOMAIN, LENGTH


def append_in_place(model: ir.Model, states: Sequence[State], stored: str = FLOAT32) -> Fed:
    """Replace the Concat of each cache by `AppendRows`; caches are no outputs any more.

    What is computed from the shapes of caches, positions and masks, is computed from the number of
    rows; see `lengths`.

    Args:
        model: with types and shapes inferred; changed.
        states: of the model, with an axis each.
        stored: type of the elements of the caches' buffers; see `narrow.CACHE_DTYPES`.

    Returns:
        What the session takes of its feeds.

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
        _skip_copies(graph, past)
        replaced.append((Appended(state, past, _concat_of(past, present, state)), present))
    caches = [cache for cache, _ in replaced]
    given = {id(present) for _, present in replaced}
    lengths = Lengths(graph, caches, _views_of([cache.whole for cache in caches]), length)
    lengths.replace()
    _check_shapes(caches, lengths)
    kept = [value for value in graph.outputs if id(value) not in given]
    del graph.outputs[:]
    graph.outputs.extend(kept)
    graph.inputs.append(length)
    for cache, present in replaced:
        past, concat, whole = cache.past, cache.concat, cache.whole
        append = ir.Node(
            DOMAIN,
            APPEND_ROWS,
            [past, concat.inputs[1], length],
            [ir.AttrInt64("axis", cache.state.axis or 0), ir.AttrString("stored", stored)],
            name=concat.name,
            outputs=[ir.Value(name=f"{whole.name}.appended", type=past.type, shape=whole.shape)],
        )
        graph.insert_after(concat, append)
        _remove_identities(graph, present, whole)
        for use in tuple(whole.uses()):
            use.node.replace_input_with(use.idx, append.outputs[0])
        graph.remove(concat, safe=True)
    model.opset_imports[DOMAIN] = 1
    return lengths.fed()


def _skip_copies(graph: ir.Graph, past: ir.Value) -> None:
    """Let nodes read a cache itself, where they read an Identity or a Concat of nothing else."""
    for use in tuple(past.uses()):
        node = use.node
        single = not node.domain and len(node.inputs) == 1
        if single and node.op_type in ("Identity", "Concat") and node.graph is graph:
            (copy,) = node.outputs
            if not copy.is_graph_output():
                copy.replace_all_uses_with(past)
                graph.remove(node, safe=True)
                _skip_copies(graph, past)


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
    for use in past.uses():
        reader = use.node
        if reader is not node and (reader.domain or reader.op_type != "Shape"):
            raise AppendError(
                f"{what} is read by node {reader.name or reader.outputs[0].name!r} "
                f"({reader.op_type}), and not by its Concat alone; read what the Concat yields"
            )
    return node


def _check_shapes(caches: Sequence[Appended], lengths: Lengths) -> None:
    """Check that the shapes of views of caches, which are those of buffers, size such views alone.

    Those whose dimensions are followed were replaced; see `lengths`.
    """
    views = _views_of([cache.whole for cache in caches])
    unknown = [view for view in views if not lengths.follows(view)]
    for cache in caches:
        if any(use.node.op_type == "Size" for use in cache.whole.uses()):
            raise AppendError(f"Size reads the cache {cache.state.input!r}; read its Shape")
    for node in [use.node for value in unknown for use in value.uses()]:
        shape = node.op_type == "Shape"
        if node.op_type == "Size" or (shape and not _sizes_views(node.outputs[0], views)):
            raise AppendError(
                f"node {node.name or node.outputs[0].name!r} ({node.op_type}) reads the shape of a "
                "cache in another form; read that of the cache itself"
            )


_VIEWS = frozenset(["Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze", "Expand"])
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


def _views_of(values: Sequence[ir.Value]) -> list[ir.Value]:
    """Return values, and those that have their elements in other shapes."""
    found = list(values)
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
