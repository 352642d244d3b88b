"""The pass ``fuse-pad``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import onnx_ir as ir

from narrowpass_constant_folding.graphs.constants import small_array
from narrowpass_constant_folding.graphs.matching import attribute, dims_of, input_of, is_op
from narrowpass_constant_folding.graphs.scope import clone_as
from narrowpass_constant_folding.rewrite import Rewrite

if TYPE_CHECKING:
    from narrowpass_constant_folding.graphs.scope import Scope
    from narrowpass_constant_folding.rewrite import Work

_FIRST_PADS_AS_INPUT = 11


@dataclass(frozen=True)
class FusePad(Rewrite):
    """Fold padding with zeros into the Conv or AveragePool after it.

    Only padding of the spatial axes, by no negative amount. An AveragePool must count the padding
    in its averages.
    """

    name: ClassVar[str] = "fuse-pad"

    def apply(self, work: Work) -> None:
        """Fuse Pad.

        Counters: ``fused``.
        """
        for scope in work.scopes():
            for node in scope.graph:
                if is_op(node, "Conv", "AveragePool") and _fuse(scope, node):
                    work.report.record(node, "fused", "Pad")


def _fuse(scope: Scope, node: ir.Node) -> bool:
    pad = scope.producer(node.inputs[0])
    if pad is None or not is_op(pad, "Pad") or not scope.can_edit(node) or not scope.can_edit(pad):
        return False
    source = pad.inputs[0]
    if source is None or not _pads_with_zeros(scope, pad):
        return False
    amounts = _amounts(scope, pad)
    own = _own_pads(node, amounts)
    if amounts is None or own is None:
        return False
    half = len(amounts) // 2
    begins, ends = amounts[:half], amounts[half:]
    if any(begins[:2]) or any(ends[:2]) or min(amounts) < 0:
        return False
    spatial = [*begins[2:], *ends[2:]]
    pads = [first + second for first, second in zip(own, spatial, strict=True)]
    output = scope.successor(node.outputs[0])
    attributes = [
        attr for name, attr in node.attributes.items() if name not in ("pads", "auto_pad")
    ]
    fused = clone_as(
        node,
        node.op_type,
        [source, *node.inputs[1:]],
        [*attributes, ir.AttrInt64s("pads", pads)],
        [output],
    )
    scope.replace(node, fused, {node.outputs[0]: output})
    return True


def _pads_with_zeros(scope: Scope, pad: ir.Node) -> bool:
    if attribute(pad, "mode", "constant") != "constant":
        return False
    value = input_of(pad, 2)
    if value is None:
        return bool(attribute(pad, "value", 0.0) == 0)
    known = small_array(scope.constant(value))
    return known is not None and known.size == 1 and not known.astype(np.float32).any()


def _amounts(scope: Scope, pad: ir.Node) -> Sequence[int] | None:
    """Return the amounts for all axes: those at the begins, then those at the ends."""
    if scope.opset < _FIRST_PADS_AS_INPUT:
        given = attribute(pad, "pads", attribute(pad, "paddings", None))
        return given if given is None else [int(amount) for amount in given]
    array = small_array(scope.constant(input_of(pad, 1)))
    if array is None:
        return None
    amounts = [int(amount) for amount in array.ravel()]
    if input_of(pad, 3) is None:
        return amounts
    axes = small_array(scope.constant(input_of(pad, 3)))
    source = None if pad.inputs[0] is None else dims_of(pad.inputs[0])
    if axes is None or source is None or len(amounts) != 2 * axes.size:
        return None
    rank = len(source)
    every = [0] * (2 * rank)
    for index, axis in enumerate(int(axis) % rank for axis in axes.ravel()):
        every[axis] += amounts[index]
        every[rank + axis] += amounts[axes.size + index]
    return every


def _own_pads(node: ir.Node, amounts: Sequence[int] | None) -> Sequence[int] | None:
    """Return the pads of the node itself; None where padding more would change what it computes."""
    if amounts is None or len(amounts) % 2 or len(amounts) < 6:
        return None
    spatial = len(amounts) - 4
    none = (0,) * spatial
    match attribute(node, "auto_pad", "NOTSET"):
        case "VALID":
            own = none
        case "NOTSET":
            own = attribute(node, "pads", none)
        case _:
            return None
    if len(own) != spatial:
        return None
    if node.op_type == "AveragePool":
        # The zeros of Pad always count; those of the pool itself only where it says so. With
        # ceil_mode the last kernel window may exceed the padding, whose elements are not counted.
        counts = attribute(node, "count_include_pad", 0)
        if attribute(node, "ceil_mode", 0) or not counts:
            return None
    return own
