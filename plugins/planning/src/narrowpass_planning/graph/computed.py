"""Constant folding at compile time, for nodes that the pass `fold` did not reach.

`fold` does not see the branches that take the place of an If, and does not run in every pipeline.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from narrowpass_planning.graph.facts import Array, Facts
from narrowpass_planning.graph.op import Op
from narrowpass_planning.graph.repeatable import repeatable
from narrowpass_planning.host import kernels
from narrowpass_planning.weights.weight import Weight, digest

_SMALL = 1 << 12
"""Elements that are computed at once, when a graph is compiled."""

_LEFT = {"QuantizeLinear", "DequantizeLinear", "RNN", "GRU", "LSTM", "Constant", "Shape", "Size"}
"""Operators that others look at: the form in which weights are stored; or that have no elements."""


def derive_computed(node: ir.Node, version: int, facts: Facts) -> None:
    """Record in `facts` the outputs of a node whose inputs are all constants."""
    given = [value for value in node.inputs if value is not None]
    if node.op_type in _LEFT or not given or not all(map(facts.is_constant, given)):
        return
    op = Op.of(node, version)
    kernel = kernels.kernel_for(op, facts) if repeatable(op, facts) else None
    if kernel is None:
        return
    weights = [None if value is None else facts.stored(value) for value in node.inputs]
    known = [weight for weight in weights if weight is not None]
    parts = [weight.identity for weight in known]
    recipe = node.op_type, version, sorted(op.attributes.items(), key=lambda item: item[0])
    name = digest("computed", *recipe, *parts) if all(parts) and _plain(op) else ""

    def compute() -> list[Array]:
        with np.errstate(all="ignore"):
            results = kernel(*(None if weight is None else weight.compute() for weight in weights))
            return [np.asarray(result) for result in kernels.as_results(results)]

    shapes = [facts.dims(value) for value in node.outputs]
    later = all(
        shape is not None and all(isinstance(dim, int) for dim in shape) for shape in shapes
    )
    if sum(weight.size for weight in known) <= _SMALL:
        try:
            results = compute()
        except kernels.FAILURES:
            return  # who runs the node says so
        if sum(result.size for result in results) <= _SMALL:
            for index, (value, result) in enumerate(zip(node.outputs, results, strict=True)):
                facts.derive(value, Weight.of(result, name and digest(name, index)))
            return
    if not later:
        return
    for index, (value, shape) in enumerate(zip(node.outputs, shapes, strict=True)):
        sizes = tuple(dim for dim in shape or () if isinstance(dim, int))
        dtype = facts.dtype(value)
        if dtype is None or not math.prod(sizes):
            return
        derived = Weight(sizes, dtype.numpy(), name and digest(name, index), _pick(compute, index))
        facts.derive(value, derived)


def _pick(compute: Callable[[], list[Array]], index: int) -> Callable[[], Array]:
    return lambda: compute()[index]


def _plain(op: Op) -> bool:
    """Return whether the attributes are numbers and texts, so that they can be a part of a name."""
    return all(
        isinstance(value, int | float | str | tuple | list) for value in op.attributes.values()
    )
