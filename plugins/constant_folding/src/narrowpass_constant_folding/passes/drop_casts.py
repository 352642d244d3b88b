"""The pass ``drop-casts``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import onnx_ir as ir

from narrowpass_constant_folding.graphs.matching import attribute, dtype_of, input_of, is_op
from narrowpass_constant_folding.graphs.scope import clone_as
from narrowpass_constant_folding.rewrite import Rewrite

if TYPE_CHECKING:
    from narrowpass_constant_folding.graphs.scope import Scope
    from narrowpass_constant_folding.rewrite import Work

_D = ir.DataType
_FIRST_CAST_WITH_NUMBERS = 6

# (bits of the significand with the hidden one, least exponent, greatest exponent) of floats that
# have infinities, NaN and signed zeros as IEEE 754 has them.
_FLOATS = {
    _D.FLOAT16: (11, -24, 15),
    _D.BFLOAT16: (8, -133, 127),
    _D.FLOAT: (24, -149, 127),
    _D.DOUBLE: (53, -1074, 1023),
}
# (bits of the magnitude, whether signed)
_INTEGERS = {
    _D.BOOL: (1, False),
    _D.UINT8: (8, False),
    _D.UINT16: (16, False),
    _D.UINT32: (32, False),
    _D.UINT64: (64, False),
    _D.INT8: (7, True),
    _D.INT16: (15, True),
    _D.INT32: (31, True),
    _D.INT64: (63, True),
}


def is_lossless_cast(source: ir.DataType, target: ir.DataType) -> bool:
    """Whether a cast represents every value exactly, so that casting back restores it."""
    if source == target:
        return True
    if source in _FLOATS and target in _FLOATS:
        bits, least, greatest = _FLOATS[source]
        wide, lower, higher = _FLOATS[target]
        return bits <= wide and least >= lower and greatest <= higher
    if source in _INTEGERS and target in _INTEGERS:
        size, signed = _INTEGERS[source]
        room, negative = _INTEGERS[target]
        # A cast to bool asks whether the number is not 0.
        return target != _D.BOOL and size <= room and (negative or not signed)
    if source in _INTEGERS and target in _FLOATS:
        bits, _, greatest = _FLOATS[target]
        return _INTEGERS[source][0] <= min(bits, greatest)
    return False


@dataclass(frozen=True)
class DropCasts(Rewrite):
    """Remove casts without effect, and merge two casts of which the first is lossless.

    A cast to fewer bits and back stays: it rounds. A CastLike whose type is known becomes a Cast.
    """

    name: ClassVar[str] = "drop-casts"

    def apply(self, work: Work) -> None:
        """Drop and join Cast and CastLike.

        Counters: ``casts``.
        """
        for scope in work.scopes():
            if scope.opset < _FIRST_CAST_WITH_NUMBERS:
                continue
            for node in scope.graph:
                if is_op(node, "Cast", "CastLike") and scope.can_edit(node):
                    done = (
                        _drop(scope, node) or _join(scope, node) or _castlike_to_cast(scope, node)
                    )
                    work.report.count("casts", done)


def _drop(scope: Scope, node: ir.Node) -> bool:
    source = node.inputs[0]
    if source is None or dtype_of(source) is None:
        return False
    return dtype_of(source) == _target(node) and scope.bypass(node, source)


def _join(scope: Scope, node: ir.Node) -> bool:
    """Bypass the cast before, if it is lossless."""
    target = _target(node)
    before = scope.producer(node.inputs[0])
    if before is None or target is None or not is_op(before, "Cast") or not scope.can_edit(before):
        return False
    source = before.inputs[0]
    middle = _target(before)
    origin = None if source is None else dtype_of(source)
    if source is None or origin is None or middle is None or not is_lossless_cast(origin, middle):
        return False
    if scope.names.is_shadowed(source.name) or not _can_skip_intermediate(origin, middle, target):
        return False
    if origin != target or not scope.bypass(node, source):
        _replace(scope, node, source, target)
    return True


def _castlike_to_cast(scope: Scope, node: ir.Node) -> bool:
    """Replace a CastLike by a Cast, which reads one value less."""
    source, target = node.inputs[0], _target(node)
    if node.op_type != "CastLike" or source is None or target is None:
        return False
    _replace(scope, node, source, target)
    return True


def _replace(scope: Scope, node: ir.Node, source: ir.Value, target: ir.DataType) -> None:
    attributes = [attr for name, attr in node.attributes.items() if name != "to"]
    output = scope.successor(node.outputs[0])
    cast = clone_as(
        node, "Cast", [source], [*attributes, ir.AttrInt64("to", int(target))], [output]
    )
    scope.replace(node, cast, {node.outputs[0]: output})


def _can_skip_intermediate(origin: ir.DataType, middle: ir.DataType, target: ir.DataType) -> bool:
    """Whether a direct cast to `target` equals one through `middle`, which is exact.

    Where the last cast goes from a float to an integer, or to text or 8 bits, results that are out
    of range or in another form may depend on where it comes from: those are left.
    """
    if target not in _FLOATS and target not in _INTEGERS:
        return False
    if middle in _FLOATS and target in _INTEGERS:
        return is_lossless_cast(origin, target) and origin in _INTEGERS
    # What an integer cannot hold wraps around, the same from any integer that holds the number.
    return True


def _target(node: ir.Node) -> ir.DataType | None:
    if node.op_type == "Cast":
        return ir.DataType(attribute(node, "to", 0))
    like = input_of(node, 1)
    return None if like is None else dtype_of(like)
