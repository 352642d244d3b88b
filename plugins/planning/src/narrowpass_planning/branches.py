"""Rewrites of If: inlining of the branch that shapes decide, and if-conversion to Where.

Exporters write an If where an operator depends on a dimension that they do not know, such as a
Squeeze of an axis that may not be 1. Its branches return values of different ranks, so that nothing
after it can be lowered. `decide` puts one branch in the place of the If, and a node `GUARD` in the
place of the decision: it is evaluated with the other shape arithmetic, and raises
`WrongBranchError` where shapes come that decide otherwise.

`select` computes both branches of an If of a few cheap nodes, and picks with a Where. A script's
`a and b` is such an If. It would end a partition, and keep a loop from running in one call. Nothing
that may fail is computed where its branch is not taken.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from narrowpass_ir.constants import constant_tensor
from narrowpass_ir.inference import infer
from narrowpass_ir.subgraphs import nested_graphs, reserve_name, subgraphs
from narrowpass_planning.graph.facts import Array, Facts
from narrowpass_planning.graph.op import GUARD, OUR_DOMAIN, Op
from narrowpass_planning.graph.repeatable import repeatable
from narrowpass_planning.host import kernels

_UNKNOWN = -(1 << 62)
"""Stands for a dimension that is not known among known ones."""

_MOVES = {"Gather", "Slice", "Squeeze", "Unsqueeze", "Concat", "Identity", "Reshape"}
"""Operators that move elements, known or not."""

_MOST = 1024
"""Elements up to which conditions are evaluated when a graph is compiled."""

Decisions = dict[str, bool]
"""Which branch is taken, by the If's label, in the order of the graph."""


class WrongBranchError(Exception):
    """A run with shapes for which the condition of an If differs from the one it was compiled for.

    Attributes:
        label: of the If.
        taken: whether its condition holds.
    """

    def __init__(self, label: str, taken: bool) -> None:
        super().__init__(label)
        self.label = label
        self.taken = taken


def decides(model: ir.Model) -> bool:
    """Return whether there is an If in the main graph of a model."""
    return any(node.op_type == "If" and not node.domain for node in model.graph)


def decide(
    model: ir.Model,
    guesses: Mapping[str, bool],
    overridden: Collection[str] = (),
    dims: Mapping[str, Sequence[int]] | None = None,
) -> Decisions:
    """Inline the taken branch of each If of the main graph whose condition follows from shapes.

    Args:
        model: changed in place; types are inferred again.
        guesses: which branch to take where the dimensions that are known do not decide, by label;
            the first one where there is no guess.
        overridden: initializers that are fed: no constants.
        dims: of inputs, where they are known.

    Returns:
        The decisions. Without `dims`, those that a guard was added for; with them, those that
        follow from them too.
    """
    for value in model.graph.inputs:
        if dims is not None and value.name and value.name in dims:
            value.shape = ir.Shape(dims[value.name])
    work = _Deciding(model, guesses, overridden, followed=dims is not None)
    infer(model, replace=work.replace)
    return work.decisions


class _Deciding:
    def __init__(
        self,
        model: ir.Model,
        guesses: Mapping[str, bool],
        overridden: Collection[str],
        *,
        followed: bool,
    ) -> None:
        self.decisions: Decisions = {}
        self._graph = model.graph
        self._opsets = model.opset_imports
        self._guesses = guesses
        self._overridden = overridden
        self._followed = followed
        self._fixed: dict[ir.Value, bool] = {}
        self._known: dict[ir.Value, Array | None] = {}
        self._facts = Facts(model.graph)
        self._labels: set[str | None] = set()
        self._names = _names_of(model.graph)

    def replace(self, node: ir.Node) -> Sequence[ir.Node] | None:
        """See `infer`."""
        if node.op_type != "If" or node.domain:
            return None
        condition = node.inputs[0]
        if condition is None or not self._is_fixed(condition):
            return None
        if any(attribute.is_ref() for attribute in node.attributes.values()):
            return None
        label = self._label(node)
        known = self._evaluate(condition)
        guards: list[ir.Node] = []
        if known is not None and known.size == 1:
            taken = bool(known.reshape(()))
            if self._followed:
                self.decisions[label] = taken
        else:
            taken = self.decisions[label] = self._guesses.get(label, True)
            guards.append(self._guard(node, condition, label, taken))
        return [*guards, *self._put(node, _branches_of(node)[0 if taken else 1], label, guards)]

    def _is_fixed(self, value: ir.Value) -> bool:
        """Return whether a value follows from shapes and constants, as `assign` will find it."""
        waiting = [value]
        while waiting:
            at = waiting[-1]
            if at in self._fixed:
                waiting.pop()
                continue
            node = at.producer()
            if constant_tensor(at) is not None and at.name not in self._overridden:
                self._fixed[at] = True
            elif node is None or not repeatable(Op.of(node, 1), self._facts):
                self._fixed[at] = False
            elif node.op_type in ("Shape", "Size"):
                self._fixed[at] = True
            else:
                given = [item for item in node.inputs if item is not None]
                due = [item for item in given if item not in self._fixed]
                if due:
                    waiting += due
                    continue
                self._fixed[at] = bool(given) and all(self._fixed[item] for item in given)
        return self._fixed[value]

    def _evaluate(self, value: ir.Value) -> Array | None:
        """Return a value that follows from dimensions that are known; None where it does not."""
        if value not in self._known:
            self._known[value] = self._computed(value)
        return self._known[value]

    def _computed(self, value: ir.Value) -> Array | None:
        tensor = constant_tensor(value)
        if tensor is not None:
            small = tensor.size <= _MOST and tensor.dtype != ir.DataType.STRING
            return tensor.numpy() if small else None
        node = value.producer()
        if node is None or len(node.outputs) != 1:
            return None
        op = Op.of(node, node.version or self._opsets.get(node.domain, 1))
        if op.kind in ("Shape", "Size"):
            return self._dims(op)
        given = [None if item is None else self._evaluate(item) for item in node.inputs]
        missing = [
            array is None
            for array, item in zip(given, node.inputs, strict=True)
            if item is not None
        ]
        unknown = any(
            array is not None and array.dtype == np.int64 and bool((array == _UNKNOWN).any())
            for array in given
        )
        kernel = kernels.kernel_for(op, self._facts)
        if any(missing) or kernel is None or (unknown and op.kind not in _MOVES):
            return None
        try:
            with np.errstate(all="ignore"):
                return np.asarray(kernel(*given))
        except kernels.FAILURES:
            return None  # who runs the node says so

    def _dims(self, op: Op) -> Array | None:
        dims = self._facts.dims(op.input(0))
        if dims is None:
            return None
        sizes = np.array([d if isinstance(d, int) else _UNKNOWN for d in dims], np.int64)
        if op.kind == "Shape":
            return sizes[op.get("start", 0) : op.get("end", None)]
        return None if (sizes == _UNKNOWN).any() else np.array(sizes.prod())

    def _guard(self, node: ir.Node, condition: ir.Value, label: str, taken: bool) -> ir.Node:
        attributes = [ir.AttrString("label", label), ir.AttrInt64("taken", int(taken))]
        output = ir.Value(name=reserve_name(f"{label}/decided", self._names))
        return ir.Node(
            OUR_DOMAIN, GUARD, [condition], attributes, outputs=[output], name=node.name or label
        )

    def _put(
        self, node: ir.Node, branch: ir.Graph, label: str, before: Sequence[ir.Node]
    ) -> list[ir.Node]:
        """Put the nodes of a branch in the place of an If; its results keep their names."""
        part = _take_out(branch, label, self._names)
        nodes, weights = part.nodes, part.weights
        produced = {value for each in nodes for value in each.outputs}
        for old, result in zip(node.outputs, part.results, strict=True):
            if not old.name:
                continue
            new = result
            if new not in produced:
                identity = ir.Node("", "Identity", [result])
                nodes.append(identity)
                new = identity.outputs[0]
            produced.discard(new)
            new.name, old.name = old.name, None
            # The declared type of the If's output is what both branches have in common.
            new.type = old.type if new.type is None else new.type
            old.replace_all_uses_with(new, replace_graph_outputs=True)
        for weight in weights:
            self._graph.initializers.add(weight)
        self._graph.insert_before(node, [*before, *nodes])
        self._graph.remove(node, safe=True)
        return nodes

    def _label(self, node: ir.Node) -> str:
        """Name an If: a result of an inner one may take the name of that of an outer one."""
        return reserve_name(next(v.name or "" for v in node.outputs if v.name), self._labels)


_CHEAP = {
    *("Abs", "Add", "And", "Cast", "Ceil", "Clip", "Constant", "Equal", "Floor", "Greater"),
    *("GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Max", "Min", "Mul", "Neg", "Not"),
    *("Or", "Relu", "Sigmoid", "Sign", "Sqrt", "Sub", "Tanh", "Where", "Xor"),
}
"""Elementwise operators that do not fail, whatever their operands' elements are."""

_MOST_NODES = 6
"""Of a branch."""
_MOST_ELEMENTS = 1 << 10
"""Of a result."""
_WHERE = 9
"""The operator set from which on there is Where."""


def select(model: ir.Model) -> None:
    """Replace small Ifs of the main graph by both branches and a Where (if-conversion).

    Args:
        model: changed in place, with types inferred; they are to be inferred again.
    """
    if model.opset_imports.get("", 1) < _WHERE:
        return
    tried = model.clone()
    found = _replace(tried, None)
    if not found:
        return
    infer(tried)
    fit = {label for label, nodes in found.items() if all(map(_fits, nodes))}
    _replace(model, fit)


def _replace(model: ir.Model, labels: set[str] | None) -> dict[str, list[ir.Node]]:
    """Replace small Ifs, those of these labels or all; return the Where nodes by label."""
    graph, names = model.graph, _names_of(model.graph)
    found: dict[str, list[ir.Node]] = {}
    for node in list(graph):
        label = next((value.name for value in node.outputs if value.name), "") or ""
        if not _is_small(node) or (labels is not None and label not in labels):
            continue
        parts = [_take_out(branch, label, names) for branch in _branches_of(node)]
        nodes = [item for part in parts for item in part.nodes]
        chosen = []
        for old, *results in zip(node.outputs, *(part.results for part in parts), strict=True):
            if not old.name:
                continue
            where = ir.Node("", "Where", [node.inputs[0], *results], name=node.name)
            new = where.outputs[0]
            new.name, old.name = old.name, None
            new.type, new.shape = old.type, old.shape
            old.replace_all_uses_with(new, replace_graph_outputs=True)
            chosen.append(where)
        for weight in (weight for part in parts for weight in part.weights):
            graph.initializers.add(weight)
        graph.insert_before(node, [*nodes, *chosen])
        graph.remove(node, safe=True)
        found[label] = chosen
    return found


def _is_small(node: ir.Node) -> bool:
    if node.op_type != "If" or node.domain or node.inputs[0] is None:
        return False
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        return False
    condition = node.inputs[0].shape
    if condition is None or len(condition) != 0:
        return False
    return all(
        len(branch) <= _MOST_NODES
        and all(item.op_type in _CHEAP and not item.domain for item in branch)
        and not any(any(subgraphs(item)) for item in branch)
        for branch in _branches_of(node)
    )


def _fits(where: ir.Node) -> bool:
    """Return whether both choices are small tensors of one type and shape."""
    one, other = where.inputs[1:]
    if one is None or other is None or one.shape is None or other.shape is None:
        return False
    dims = [dim for dim in one.shape if isinstance(dim, int)]
    alike = one.dtype is not None and one.dtype == other.dtype and one.shape == other.shape
    return alike and len(dims) == len(one.shape) and math.prod(dims) <= _MOST_ELEMENTS


@dataclass(frozen=True)
class _Branch:
    """A branch of an If, out of its graph.

    Attributes:
        nodes: in order, in no graph.
        weights: initializers of the branch, in no graph.
        results: the outputs of the branch: values of the nodes, initializers, or outer values.
    """

    nodes: list[ir.Node]
    weights: list[ir.Value]
    results: list[ir.Value]


def _branches_of(node: ir.Node) -> tuple[ir.Graph, ir.Graph]:
    """Return the branches of an If: where its condition holds, and where it does not."""
    then, other = (node.attributes[name].as_graph() for name in ("then_branch", "else_branch"))
    return then, other


def _take_out(branch: ir.Graph, label: str, names: set[str | None]) -> _Branch:
    """Return a copy of a branch, with names that are not taken, below `label`."""
    clone = branch.clone(allow_outer_scope_values=True)
    results, nodes = list(clone.outputs), list(clone)
    weights = list(clone.initializers.values())
    clone.outputs.clear()
    clone.remove(nodes)
    clone.initializers.clear()
    for value in (*weights, *(value for node in nodes for value in node.outputs)):
        if value.name:
            value.name = reserve_name(f"{label}/{value.name}", names)
    return _Branch(nodes, weights, results)


def _names_of(graph: ir.Graph) -> set[str | None]:
    """Return the names of all values of a graph and of those in it."""
    return {value.name for inner in nested_graphs(graph) for value in _values(inner)}


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs
