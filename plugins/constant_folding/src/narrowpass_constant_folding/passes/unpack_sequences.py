"""The pass ``unpack-sequences``."""

from __future__ import annotations

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

_FIRST_SPLIT_WITH_OPERAND = 13


@dataclass(frozen=True)
class UnpackSequences(Rewrite):
    """Forward tensors through a sequence that is constructed and taken apart again.

    SplitToSequence whose parts are taken by number becomes a Split, an element of a
    SequenceConstruct is read where it comes from, and ConcatFromSequence of one is a Concat.
    """

    name: ClassVar[str] = "unpack-sequences"

    def apply(self, work: Work) -> None:
        """Unpack sequences that no other node reads.

        Counters: ``unpacked``.
        """
        rules = {
            "SplitToSequence": _split,
            "SequenceAt": _take,
            "ConcatFromSequence": _concat,
        }
        for scope in work.scopes():
            for node in scope.graph:
                if not is_op(node, *rules) or not scope.can_edit(node):
                    continue
                if rules[node.op_type](scope, node):
                    work.report.record(node, "unpacked", "unpack-sequences")


def _take(scope: Scope, node: ir.Node) -> bool:
    """Read an element of a SequenceConstruct where it comes from."""
    sequence = scope.producer(node.inputs[0])
    place = _number(scope, node)
    if sequence is None or not is_op(sequence, "SequenceConstruct") or place is None:
        return False
    if not -len(sequence.inputs) <= place < len(sequence.inputs):
        return False
    source = sequence.inputs[place]
    return source is not None and scope.bypass(node, source)


def _concat(scope: Scope, node: ir.Node) -> bool:
    sequence = scope.producer(node.inputs[0])
    if (
        sequence is None
        or not is_op(sequence, "SequenceConstruct")
        or attribute(node, "new_axis", 0)
    ):
        return False
    if any(scope.names.is_shadowed(value.name) for value in sequence.inputs if value is not None):
        return False
    output = scope.successor(node.outputs[0])
    concat = clone_as(node, "Concat", list(sequence.inputs), [node.attributes["axis"]], [output])
    scope.replace(node, concat, {node.outputs[0]: output})
    return True


def _split(scope: Scope, node: ir.Node) -> bool:
    """Replace it by a Split, if every reader selects one part by its number."""
    sequence, source = node.outputs[0], node.inputs[0]
    sizes = _sizes(scope, node)
    if source is None or sizes is None or sequence.is_graph_output():
        return False
    if scope.opset < _FIRST_SPLIT_WITH_OPERAND:
        return False
    readers: dict[int, list[ir.Node]] = {}
    for use in sequence.uses():
        place = _number(scope, use.node)
        if use.node.graph is not scope.graph or not is_op(use.node, "SequenceAt"):
            return False
        if place is None or not -len(sizes) <= place < len(sizes) or not scope.can_edit(use.node):
            return False
        readers.setdefault(place % len(sizes), []).append(use.node)
    outputs = [
        scope.successor(readers[place][0].outputs[0])
        if place in readers
        else scope.add_value(f"{sequence.name}:{place}")
        for place in range(len(sizes))
    ]
    operand = scope.add_constant(
        f"{sequence.name}:split", ir.Tensor(np.array(sizes, np.int64)), node
    )
    split = clone_as(
        node,
        "Split",
        [source, operand],
        [ir.AttrInt64("axis", attribute(node, "axis", 0))],
        outputs,
    )
    scope.graph.insert_before(node, split)
    for place, takers in readers.items():
        scope.pass_on(takers[0].outputs[0], outputs[place])
        scope.remove(takers[0])
        for taker in takers[1:]:
            if scope.bypass(taker, outputs[place]):
                continue
            copy = scope.successor(taker.outputs[0])
            identity = ir.Node("", "Identity", [outputs[place]], outputs=[copy], name=taker.name)
            scope.replace(taker, identity, {taker.outputs[0]: copy})
    scope.remove(node)
    return True


def _sizes(scope: Scope, node: ir.Node) -> tuple[int, ...] | None:
    """Return the sizes of the parts, where they keep the axis and are known."""
    source, operand = node.inputs[0], input_of(node, 1)
    dims = None if source is None else dims_of(source)
    axis = attribute(node, "axis", 0)
    length = dims[axis] if dims is not None and -len(dims) <= axis < len(dims) else None
    if operand is None:
        whole = isinstance(length, int) and attribute(node, "keepdims", 1)
        return (1,) * length if whole and isinstance(length, int) else None
    array = small_array(scope.constant(operand))
    if array is None:
        return None
    if array.ndim == 1:
        return tuple(int(size) for size in array)
    size = int(array)
    if not isinstance(length, int) or size <= 0:
        return None
    parts = [size] * (length // size)
    return tuple([*parts, length % size] if length % size else parts)


def _number(scope: Scope, node: ir.Node) -> int | None:
    array = small_array(scope.constant(input_of(node, 1)))
    return int(array.reshape(())) if array is not None and array.size == 1 else None
