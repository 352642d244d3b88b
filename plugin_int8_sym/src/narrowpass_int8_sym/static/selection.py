"""Selects the units that are quantized: weighted ones, and those between int8 units.

int8 pays off in matmuls and convolutions. A unit elsewhere would only add conversions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from narrowpass_int8_sym.static.units import NodeUnit, Role

_ISLAND = "no operand of it is int8"
_UNREAD = "no int8 operator reads its result"

_MATMULS = frozenset({"Gemm", "MatMul"})


@dataclass(frozen=True)
class Selection:
    """The units that are quantized.

    Attributes:
        units: in order.
        float_results: those of them whose results stay float32.
        left: the other units, and why they are not quantized.
    """

    units: tuple[NodeUnit, ...] = ()
    float_results: frozenset[NodeUnit] = frozenset()
    left: dict[NodeUnit, str] = field(default_factory=dict)

    def adds_floats(self, unit: NodeUnit) -> bool:
        """Return whether the bias is added in float32, by the Add after a float MatMul result."""
        return unit in self.float_results and unit.op_type == "MatMul"

    def values(self) -> list[ir.Value]:
        """Return the computed values that have a quantization, each once, in order."""
        found: dict[ir.Value, None] = {}
        for unit in self.units:
            found.update(dict.fromkeys(unit.inputs))
            if unit not in self.float_results:
                found.update(dict.fromkeys(unit.outputs))
        return list(found)


def select_units(units: Sequence[NodeUnit], kept_float: Collection[NodeUnit]) -> Selection:
    """Select the units that are quantized.

    Weighted units always are; the result of a MatMul or Gemm is int8 only for int8 consumers,
    because residual additions and normalizations lose most from quantized operands. Other units are
    quantized where an operand is int8 anyway, and an int8 operator reads the result.

    Args:
        units: in the order of the graph.
        kept_float: units that must stay float.
    """
    free = [unit for unit in units if unit not in kept_float]
    needed = _needed(free)
    there: set[ir.Value] = set()
    chosen: list[NodeUnit] = []
    float_results: set[NodeUnit] = set()
    left: dict[NodeUnit, str] = {}
    for unit in free:
        read = any(value in needed for value in unit.outputs)
        if unit.role is Role.WEIGHTED:
            if unit.op_type in _MATMULS and not read and not unit.forced_by:
                float_results.add(unit)
        elif not unit.forced_by:
            if not any(value in there for value in unit.inputs):
                left[unit] = _ISLAND
                continue
            if not read:
                left[unit] = _UNREAD
                continue
        chosen.append(unit)
        if unit not in float_results:
            there.update(unit.outputs)
    return Selection(tuple(chosen), frozenset(float_results), left)


def _needed(units: Iterable[NodeUnit]) -> set[ir.Value]:
    """Return the values that int8 units would read, if all units were int8 that can be."""
    found: set[ir.Value] = set()
    for unit in reversed(list(units)):
        always = unit.role is Role.WEIGHTED or unit.forced_by
        if always or any(value in found for value in unit.outputs):
            found.update(unit.inputs)
    return found
