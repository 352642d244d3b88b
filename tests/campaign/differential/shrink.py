"""Reduces a failing case: fewer outputs, nodes, operands, attributes and elements."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import onnx
from onnx import helper, numpy_helper

from differential.cases import Case
from differential.elements import Array
from differential.oracles import run_nodes
from differential.upstream import read_by

Fails = Callable[[Case], bool]


def shrunk(case: Case, fails: Fails, *, tries: int = 300) -> Case:
    """Return a smaller case that still fails.

    Args:
        case: one that fails.
        fails: whether a case fails in the same way.
        tries: how many smaller ones are tried at most.
    """
    left = tries
    again = True
    while again and left > 0:
        again = False
        for smaller in candidates(case):
            left -= 1
            if left <= 0:
                break
            if fails(smaller):
                case, again = smaller, True
                break
    return case


def candidates(case: Case) -> Iterator[Case]:
    """Yield cases that are one step smaller, the largest steps first."""
    yield from _fewer_outputs(case)
    yield from _starts_later(case)
    yield from _fewer_operands(case)
    yield from _fewer_attributes(case)
    yield from _constants_for_inputs(case)
    if case.sizes:
        yield _fixed(case)
    yield from _smaller_dims(case)
    yield from _plainer_elements(case)


def _rebuilt(
    case: Case,
    nodes: list[onnx.NodeProto],
    outputs: list[onnx.ValueInfoProto],
    feeds: dict[str, Array],
) -> Case:
    """Return a case of nodes that are needed for outputs, with the feeds that they read."""
    needed = {value.name for value in outputs}
    kept: list[onnx.NodeProto] = []
    for node in reversed(nodes):
        if needed & set(node.output):
            kept.insert(0, node)
            needed |= set(read_by(node))
    old = case.model.graph
    infos = {info.name: info for info in old.input}
    inputs = []
    for name, array in feeds.items():
        if name not in needed:
            continue
        info = infos.get(name)
        if info is None or len(info.type.tensor_type.shape.dim) != array.ndim:
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            info = helper.make_tensor_value_info(name, kind, array.shape)
        inputs.append(info)
    weights = [t for t in old.initializer if t.name in needed]
    graph = helper.make_graph(kept, old.name, inputs, outputs, weights)
    model = helper.make_model(
        graph, opset_imports=case.model.opset_import, ir_version=case.model.ir_version
    )
    return Case(model, {i.name: feeds[i.name] for i in inputs}, case.sizes, case.slack)


def _fewer_outputs(case: Case) -> Iterator[Case]:
    outputs = list(case.model.graph.output)
    if len(outputs) > 1:
        for output in outputs:
            yield _rebuilt(case, list(case.model.graph.node), [output], case.feeds)


def _values(case: Case) -> dict[str, object]:
    """Return the elements of all values, as far as the nodes run by themselves."""
    graph = case.model.graph
    known: dict[str, object] = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    known.update(case.feeds)
    for node in graph.node:
        read = read_by(node)
        if not all(name in known for name in read):
            continue
        names = [name for name in node.output if name]
        found = run_nodes([node], {n: known[n] for n in read}, names, case.model.opset_import)
        if found is not None:
            known.update(zip(names, found, strict=True))
    return known


def _starts_later(case: Case) -> Iterator[Case]:
    """Feed what nodes compute, so that these go; or end with what an earlier node computes."""
    nodes = list(case.model.graph.node)
    if len(nodes) < 2:
        return
    known = _values(case)
    for index, node in enumerate(nodes):
        names = [name for name in node.output if isinstance(known.get(name), np.ndarray)]
        if len(names) != len([n for n in node.output if n]):
            continue
        rest = nodes[:index] + nodes[index + 1 :]
        outputs = [v for v in case.model.graph.output if v.name not in node.output]
        if outputs:
            fed = {name: known[name] for name in names}
            yield _rebuilt(case, rest, outputs, {**case.feeds, **fed})  # type: ignore[dict-item]
    for node in nodes[:-1]:
        for name in node.output:
            value = known.get(name)
            if isinstance(value, np.ndarray):
                kind = helper.np_dtype_to_tensor_dtype(value.dtype)
                end = helper.make_tensor_value_info(name, kind, [None] * value.ndim)
                yield _rebuilt(case, nodes, [end], case.feeds)


def _edited(case: Case, edit: Callable[[onnx.ModelProto], None]) -> Case:
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    edit(model)
    changed = Case(model, case.feeds, case.sizes, case.slack)
    return _rebuilt(changed, list(model.graph.node), list(model.graph.output), case.feeds)


def _fewer_operands(case: Case) -> Iterator[Case]:
    for index, node in enumerate(case.model.graph.node):
        for at, name in enumerate(node.input):
            if at and name:

                def drop(model: onnx.ModelProto, index: int = index, at: int = at) -> None:
                    inputs = model.graph.node[index].input
                    inputs[at] = ""
                    while inputs and not inputs[-1]:
                        del inputs[-1]

                yield _edited(case, drop)


def _fewer_attributes(case: Case) -> Iterator[Case]:
    for index, node in enumerate(case.model.graph.node):
        for at in range(len(node.attribute)):

            def drop(model: onnx.ModelProto, index: int = index, at: int = at) -> None:
                del model.graph.node[index].attribute[at]

            yield _edited(case, drop)


def _constants_for_inputs(case: Case) -> Iterator[Case]:
    """Feed initializers: fewer things differ from a model of inputs only."""
    for at, tensor in enumerate(case.model.graph.initializer):

        def drop(model: onnx.ModelProto, at: int = at) -> None:
            del model.graph.initializer[at]

        changed = _edited(case, drop)
        feeds = {**case.feeds, tensor.name: numpy_helper.to_array(tensor)}
        yield _rebuilt(
            changed, list(changed.model.graph.node), list(case.model.graph.output), feeds
        )


def _fixed(case: Case) -> Case:
    """Return the case with sizes in place of symbols."""
    feeds = case.feeds
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    for info in model.graph.input:
        kind = helper.np_dtype_to_tensor_dtype(feeds[info.name].dtype)
        info.CopyFrom(helper.make_tensor_value_info(info.name, kind, feeds[info.name].shape))
    return Case(model, feeds, {}, case.slack)


def _smaller_dims(case: Case) -> Iterator[Case]:
    """Cut all axes of one size to a smaller one."""
    if case.sizes:
        return
    arrays = {t.name: numpy_helper.to_array(t) for t in case.model.graph.initializer}
    sizes = sorted({s for a in (*case.feeds.values(), *arrays.values()) for s in a.shape if s > 1})
    for size in reversed(sizes):
        for new in dict.fromkeys((1, size // 2, size - 1)):

            def cut(array: Array, size: int = size, new: int = new) -> Array:
                places = tuple(slice(0, new) if s == size else slice(None) for s in array.shape)
                return np.ascontiguousarray(array[places]).reshape(
                    [new if s == size else s for s in array.shape]
                )

            yield _with_arrays(case, cut)


def _with_arrays(case: Case, change: Callable[[Array], Array]) -> Case:
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor)), tensor.name))
    feeds = {name: change(array) for name, array in case.feeds.items()}
    for info in model.graph.input:
        kind = helper.np_dtype_to_tensor_dtype(feeds[info.name].dtype)
        info.CopyFrom(helper.make_tensor_value_info(info.name, kind, feeds[info.name].shape))
    return Case(model, feeds, case.sizes, case.slack)


def _plainer_elements(case: Case) -> Iterator[Case]:
    """Round elements to whole numbers."""
    if case.sizes:
        return

    def rounded(array: Array) -> Array:
        return np.round(array) if array.dtype.kind == "f" else array

    plain = _with_arrays(case, rounded)
    before = {n: a.tobytes() for n, a in case.feeds.items()}
    tensors = [t.SerializeToString() for t in case.model.graph.initializer]
    after = [t.SerializeToString() for t in plain.model.graph.initializer]
    if before != {n: a.tobytes() for n, a in plain.feeds.items()} or tensors != after:
        yield plain
