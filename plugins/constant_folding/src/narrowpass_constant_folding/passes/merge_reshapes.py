"""The pass ``merge-reshapes``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import onnx_ir as ir

from narrowpass_constant_folding.graphs.matching import attribute, input_of, is_op
from narrowpass_constant_folding.graphs.scope import clone_as
from narrowpass_constant_folding.rewrite import Rewrite
from narrowpass_constant_folding.shapes.partial import reshape_result
from narrowpass_constant_folding.shapes.sizes import Element, multiply_all

if TYPE_CHECKING:
    from narrowpass_constant_folding.graphs.scope import Scope
    from narrowpass_constant_folding.rewrite import Work


_FAMILY = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
_FIRST_RESHAPE_WITH_OPERAND = 5


@dataclass(frozen=True)
class MergeReshapes(Rewrite):
    """Merge consecutive reshapes, and replace computed targets by constants.

    What is computed from shapes that are known in part becomes constant with 0 (as before) for
    dimensions that stay, and -1 for one that follows from the others; where -1 would fail for
    tensors without elements and the original would not, it is not used.
    """

    name: ClassVar[str] = "merge-reshapes"

    def apply(self, work: Work) -> None:
        """Merge Reshape, Flatten, Squeeze and Unsqueeze.

        Counters: ``merged``, ``constant-targets``.
        """
        for scope in work.scopes():
            if scope.opset < _FIRST_RESHAPE_WITH_OPERAND:
                continue
            for found in scope.graph:
                node = found
                if not is_op(node, *_FAMILY) or not scope.can_edit(node):
                    continue
                merged = _merge(scope, node)
                while merged is not None:
                    work.report.record(node, "merged", "merge-reshapes")
                    node, merged = merged, _merge(scope, merged)
                if _fold_target(scope, node):
                    work.report.record(node, "constant-targets", "merge-reshapes")


def _merge(scope: Scope, node: ir.Node) -> ir.Node | None:
    """Read what the reshape before reads, if nothing else reads that; return the new node."""
    middle = node.inputs[0]
    before = scope.producer(middle)
    if (
        middle is None
        or before is None
        or not is_op(before, *_FAMILY)
        or not scope.can_edit(before)
    ):
        return None
    source = before.inputs[0]
    if source is None or scope.only_reader(middle) is not node:
        return None
    if scope.names.is_shadowed(source.name):
        return None
    result = _result(scope, node)
    if result is None:
        return None
    inferring = _infers(scope, node) and _infers(scope, before)
    target = constant_target(scope.values.dims(source), result, may_infer=inferring)
    if target is None:
        return None
    reshape = _replace(scope, node, source, target)
    scope.remove(before)
    return reshape


def _fold_target(scope: Scope, node: ir.Node) -> bool:
    """Return a Reshape whose target is computed a constant one."""
    operand, source = input_of(node, 1), node.inputs[0]
    if node.op_type != "Reshape" or operand is None or source is None:
        return False
    if scope.constant(operand) is not None or not _adds_no_node(scope, node, operand):
        return False
    result = _result(scope, node)
    if result is None:
        return False
    dims = scope.values.dims(source)
    target = constant_target(dims, result, may_infer=_infers(scope, node))
    if target is None:
        return False
    _replace(scope, node, source, target)
    return True


def _adds_no_node(scope: Scope, node: ir.Node, operand: ir.Value) -> bool:
    """Whether no node is added: where a constant is a node, another must go for it."""
    if scope.holds_initializers:
        return True
    return scope.producer(operand) is not None and scope.only_reader(operand) is node


def _result(scope: Scope, node: ir.Node) -> tuple[Element, ...] | None:
    """Return the shape of the node's result; None where the rank is not known."""
    known = scope.values.dims(node.outputs[0])
    computed = _computed(scope, node)
    if computed is None:
        return known
    if known is None or len(known) != len(computed):
        return computed
    # A name of the result's own says nothing of where it comes from.
    return tuple(
        other if isinstance(other, int) or item is None else item
        for item, other in zip(computed, known, strict=True)
    )


def _computed(scope: Scope, node: ir.Node) -> tuple[Element, ...] | None:
    """Return the shape of the result as it follows from that of the input."""
    source = None if node.inputs[0] is None else scope.values.dims(node.inputs[0])
    if node.op_type == "Reshape":
        target = scope.values.elements(input_of(node, 1))
        allow_zero = bool(attribute(node, "allowzero", 0))
        if target is None:
            return None
        return reshape_result(source, target, allow_zero=allow_zero)
    if source is None:
        return None
    if node.op_type == "Flatten":
        axis = attribute(node, "axis", 1)
        return multiply_all(source[:axis]), multiply_all(source[axis:])
    axes = _axes(scope, node)
    if axes is None:
        return None
    rank = len(source) + (len(axes) if node.op_type == "Unsqueeze" else 0)
    places = {axis % rank for axis in axes} if rank else set()
    if node.op_type == "Squeeze":
        return tuple(dim for axis, dim in enumerate(source) if axis not in places)
    rest = iter(source)
    return tuple(1 if axis in places else next(rest) for axis in range(rank))


def _axes(scope: Scope, node: ir.Node) -> tuple[int, ...] | None:
    """Return the axes of a Squeeze or Unsqueeze, where it names them."""
    if input_of(node, 1) is None:
        axes: tuple[int, ...] | None = attribute(node, "axes", None)
        return axes
    elements = scope.values.elements(input_of(node, 1))
    return None if elements is None else elements.numbers


def _infers(scope: Scope, node: ir.Node) -> bool:
    """Whether the node fails already where a dimension that it keeps is 0."""
    if node.op_type != "Reshape":
        return False
    target = scope.values.elements(input_of(node, 1))
    return target is not None and -1 in target.items


def _replace(scope: Scope, node: ir.Node, source: ir.Value, target: list[int]) -> ir.Node:
    output = scope.successor(node.outputs[0])
    operand = scope.add_constant(
        f"{output.name}:shape", ir.Tensor(np.array(target, np.int64)), node
    )
    reshape = clone_as(node, "Reshape", [source, operand], [], [output])
    scope.replace(node, reshape, {node.outputs[0]: output})
    return reshape


Items = Sequence[Element]


def constant_target(source: Items | None, result: Items, *, may_infer: bool) -> list[int] | None:
    """Return a constant target with which Reshape always maps `source` to `result`.

    A dimension that is the source's at the same place is written as 0, and one other as -1.

    Args:
        source: the shape of what is reshaped; None where unknown.
        result: the shape wanted; no element may stand for -1 or for a copied dimension.
        may_infer: whether -1 may stand beside dimensions that might be 0. If one of these is 0,
            the Reshape fails, where it might have worked with numbers.

    Returns:
        The operand for ``allowzero=0``, or None where there is none.
    """
    target: list[int] = []
    for axis, item in enumerate(result):
        copied = source[axis] if source is not None and axis < len(source) else None
        if isinstance(item, int) and item > 0:
            target.append(item)
        elif item is not None and item == copied:
            target.append(0)
        else:
            target.append(-1)
    if target.count(-1) > 1:
        return None
    if -1 in target and 0 in target and not may_infer:
        return None
    if -1 in target and result[target.index(-1)] == 0:
        return None
    return target
