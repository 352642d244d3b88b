"""Makes a failing model small: fewer nodes, outputs, operands, attributes and elements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from narrowpass_testing.random_models._cases import Case
from narrowpass_testing.random_models._elements import Array, is_float
from narrowpass_testing.random_models._nodes import read_by
from narrowpass_testing.random_models._oracles import (
    Values,
    run_evaluator,
    run_nodes,
    run_onnxruntime,
)

Fails = Callable[[Case], bool]


def reduce_case(
    case: Case,
    fails: Fails,
    *,
    tries: int = 300,
    values: Callable[[Case], Values] | None = None,
) -> Case:
    """Return a smaller case that still fails.

    Parts of the graph go first, the largest ones before single nodes: what they compute becomes
    an input, with the elements that it has. Then outputs, operands, attributes, symbols, sizes
    and digits go.

    Args:
        case: one that fails. It is not changed.
        fails: whether a case fails in the same way.
        tries: how many smaller ones are tried at most.
        values: returns the elements of all values of a case, as far as they are known; by default
            `values_of`, in this process.
    """
    search = _Search(case, fails, tries, values or values_of)
    before = None
    while search.left > 0 and before is not search.case:
        before = search.case
        search.cut()
        for candidates in _STEPS:
            search.step(candidates)
    return search.case


class _Search:
    """The smallest case so far.

    Attributes:
        case: the case.
        left: how many more may be tried.
    """

    def __init__(
        self, case: Case, fails: Fails, tries: int, values: Callable[[Case], Values]
    ) -> None:
        self.case, self.left = case, tries
        self._fails, self._values = fails, values

    def takes(self, smaller: Case) -> bool:
        """Try a case; it becomes the smallest one where it fails."""
        if self.left <= 0:
            return False
        self.left -= 1
        if not self._fails(smaller):
            return False
        self.case = smaller
        return True

    def step(self, candidates: Callable[[Case], Iterator[Case]]) -> None:
        """Take what fails among candidates, again until none does."""
        while self.left > 0 and any(map(self.takes, candidates(self.case))):
            pass

    def cut(self) -> None:
        """Remove parts of the graph: halves of it first, single nodes last."""
        known = self._values(self.case)
        size = len(self.case.model.graph.node)
        while size > 1 and self.left > 0:
            size = (size + 1) // 2
            at = len(self.case.model.graph.node)  # from the end: less is fed then
            while at > 0 and self.left > 0:
                at -= size
                smaller = _without(self.case, max(at, 0), at + size, known)
                if smaller is not None and self.takes(smaller):
                    at = min(at, len(self.case.model.graph.node))


def values_of(case: Case) -> Values:
    """Return the elements of all values of a graph, as far as an oracle computes them."""
    graph = case.model.graph
    known: Values = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    known.update(case.feeds)
    whole = onnx.ModelProto()
    whole.CopyFrom(case.model)
    names = [name for node in graph.node for name in node.output if name]
    shown = {value.name for value in graph.output}
    whole.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names if n not in shown)
    found = run_onnxruntime(whole, case.feeds)
    if found is None:
        found = run_evaluator(whole, case.feeds)
    if found is not None:
        return {**known, **found}
    for node in graph.node:
        read = read_by(node)
        outputs = [name for name in node.output if name]
        if all(name in known for name in read):
            operands = {name: known[name] for name in read}
            results = run_nodes([node], operands, outputs, case.model.opset_import)
            known.update(zip(outputs, results or (), strict=False))
    return known


def _without(case: Case, first: int, end: int, known: Values) -> Case | None:
    """Return a case without some nodes: what they compute is fed, what they alone read is shown."""
    graph = case.model.graph
    gone, kept = list(graph.node[first:end]), [*graph.node[:first], *graph.node[end:]]
    lost = {name for node in gone for name in node.output if name}
    read = {name for node in kept for name in read_by(node)}
    fed = {name: known[name] for name in lost & read if name in known}
    if not kept or fed.keys() != lost & read:
        return None
    if not all(isinstance(array, np.ndarray) for array in fed.values()):
        return None
    shown = [value for value in graph.output if value.name not in lost]
    names = {value.name for value in shown}
    needed = {name for node in gone for name in read_by(node)}
    for node in kept:
        for name in node.output:
            value = known.get(name)
            ends = name in needed and name not in read and name not in names
            if ends and isinstance(value, np.ndarray):
                kind = helper.np_dtype_to_tensor_dtype(value.dtype)
                shown.append(helper.make_tensor_value_info(name, kind, [None] * value.ndim))
    return _rebuilt(case, kept, shown, {**case.feeds, **fed}) if shown else None


def _rebuilt(
    case: Case,
    nodes: Sequence[onnx.NodeProto],
    outputs: Sequence[onnx.ValueInfoProto],
    feeds: dict[str, Array],
) -> Case:
    """Return a case of nodes that are needed for outputs, with the feeds that they read."""
    needed = {value.name for value in outputs}
    kept: list[onnx.NodeProto] = []
    for node in reversed(nodes):
        if needed & set(node.output):
            kept.append(node)
            needed |= set(read_by(node))
    old = case.model.graph
    infos = {info.name: info for info in old.input}
    inputs = []
    for name, array in feeds.items():
        if name not in needed:
            continue
        info = infos.get(name)
        if info is None:
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            info = helper.make_tensor_value_info(name, kind, array.shape)
        inputs.append(info)
    weights = [tensor for tensor in old.initializer if tensor.name in needed]
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    model.graph.CopyFrom(helper.make_graph(kept[::-1], old.name, inputs, outputs, weights))
    symbols = {d.dim_param for i in inputs for d in i.type.tensor_type.shape.dim if d.dim_param}
    sizes = {symbol: size for symbol, size in case.sizes.items() if symbol in symbols}
    return Case(model, {info.name: feeds[info.name] for info in inputs}, sizes, case.slack)


def _fewer_outputs(case: Case) -> Iterator[Case]:
    outputs = list(case.model.graph.output)
    if len(outputs) > 1:
        half = len(outputs) // 2
        parts = [outputs[:half], outputs[half:], *([output] for output in outputs)]
        for part in parts:
            yield _rebuilt(case, list(case.model.graph.node), part, case.feeds)


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


def _fixed(case: Case) -> Iterator[Case]:
    """Yield the case with sizes in place of symbols."""
    if case.sizes:
        yield _with_arrays(case, lambda array: array)


def _smaller_dims(case: Case) -> Iterator[Case]:
    """Cut all axes of one size to a smaller one."""
    if case.sizes:
        return
    arrays = [*case.feeds.values(), *map(numpy_helper.to_array, case.model.graph.initializer)]
    sizes = sorted({s for a in arrays if isinstance(a, np.ndarray) for s in a.shape if s > 1})
    for size in reversed(sizes):
        for new in dict.fromkeys((1, size // 2, size - 1)):

            def cut(array: Array, size: int = size, new: int = new) -> Array:
                places = tuple(slice(0, new) if s == size else slice(None) for s in array.shape)
                shape = [new if s == size else s for s in array.shape]
                return np.ascontiguousarray(array[places]).reshape(shape)

            yield _with_arrays(case, cut)


def _with_arrays(case: Case, change: Callable[[Array], Array]) -> Case:
    """Return a case whose feeds and initializers are changed, with sizes in place of symbols."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor)), tensor.name))
    feeds: dict[str, Any] = {
        name: change(array) if isinstance(array, np.ndarray) else array
        for name, array in case.feeds.items()
    }
    for info in model.graph.input:
        if isinstance(feeds.get(info.name), np.ndarray):
            kind = info.type.tensor_type.elem_type
            shape = feeds[info.name].shape
            info.CopyFrom(helper.make_tensor_value_info(info.name, kind, shape))
    return Case(model, feeds, {}, case.slack)


def _plainer_elements(case: Case) -> Iterator[Case]:
    """Round elements to whole numbers."""
    if case.sizes:
        return

    def rounded(array: Array) -> Array:
        if not is_float(array.dtype):
            return array
        return np.round(array.astype(np.float64)).astype(array.dtype)

    plain = _with_arrays(case, rounded)
    if _bytes_of(plain) != _bytes_of(case):
        yield plain


def _bytes_of(case: Case) -> list[bytes]:
    weights = [tensor.SerializeToString() for tensor in case.model.graph.initializer]
    return [*weights, *(np.asarray(array).tobytes() for array in case.feeds.values())]


_STEPS = (
    _fewer_outputs,
    _fewer_operands,
    _fewer_attributes,
    _constants_for_inputs,
    _fixed,
    _smaller_dims,
    _plainer_elements,
)
