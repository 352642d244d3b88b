"""Ifs whose condition follows from shapes: the branch that is taken is inlined into the graph.

Exporters write an If where an operator depends on a dimension that they do not know, such as a
Squeeze of an axis that may not be 1. Its branches return values of different ranks, so that nothing
after it can be lowered. Here one branch takes the place of the If, and a node `GUARD` the place
of the decision: it is evaluated with the other shape arithmetic, and raises `WrongBranchError`
where shapes come that decide otherwise.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from narrowpass_ir.constants import constant_tensor
from narrowpass_ir.inference import infer
from narrowpass_ir.subgraphs import reserve_name
from narrowpass_planning.branches.inlining import branches, names_of, take_out
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
        self._names = names_of(model.graph)

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
        return [*guards, *self._put(node, branches(node)[0 if taken else 1], label, guards)]

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
        part = take_out(branch, label, self._names)
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
