"""Which units are quantized: those that lie between others that are.

Products with constant weights make int8 worthwhile. What lies elsewhere would only be converted
forth and back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from narrowpass_int8_sym.static.units import Role, Unit

_ISLAND = "no operand of it is int8"
_UNREAD = "no int8 operator reads its result"

_ROW_PRODUCTS = frozenset({"Gemm", "MatMul"})


@dataclass(frozen=True)
class Choice:
    """What is quantized.

    Attributes:
        units: those that are, in order.
        wide: those of them whose results stay float32.
        left: why the others are not.
    """

    units: tuple[Unit, ...] = ()
    wide: frozenset[Unit] = frozenset()
    left: dict[Unit, str] = field(default_factory=dict)

    def adds_floats(self, unit: Unit) -> bool:
        """Return whether a bias is added to a float result, by a node of its own."""
        return unit in self.wide and unit.op_type == "MatMul"

    def values(self) -> list[ir.Value]:
        """Return the computed values that have a quantization, each once, in order."""
        found: dict[ir.Value, None] = {}
        for unit in self.units:
            found.update(dict.fromkeys(unit.inputs))
            if unit not in self.wide:
                found.update(dict.fromkeys(unit.outputs))
        return list(found)


def choose(units: Sequence[Unit], held: Collection[Unit]) -> Choice:
    """Choose what is quantized.

    A product always is; one of a matrix gives int8 only to int8 operators: what is added to a
    residual sum, or normalized, would lose most by it. Others are where an operand is int8 anyway,
    and an int8 operator reads the result.

    Args:
        units: in the order of the graph.
        held: those that are to stay float.
    """
    free = [unit for unit in units if unit not in held]
    needed = _needed(free)
    there: set[ir.Value] = set()
    chosen: list[Unit] = []
    wide: set[Unit] = set()
    left: dict[Unit, str] = {}
    for unit in free:
        read = any(value in needed for value in unit.outputs)
        if unit.role is Role.PRODUCT:
            if unit.op_type in _ROW_PRODUCTS and not read and not unit.asked:
                wide.add(unit)
        elif not unit.asked:
            if not any(value in there for value in unit.inputs):
                left[unit] = _ISLAND
                continue
            if not read:
                left[unit] = _UNREAD
                continue
        chosen.append(unit)
        if unit not in wide:
            there.update(unit.outputs)
    return Choice(tuple(chosen), frozenset(wide), left)


def _needed(units: Iterable[Unit]) -> set[ir.Value]:
    """Return the values that an int8 operator would read, if all were int8 that can be."""
    found: set[ir.Value] = set()
    for unit in reversed(list(units)):
        always = unit.role is Role.PRODUCT or unit.asked
        if always or any(value in found for value in unit.outputs):
            found.update(unit.inputs)
    return found
