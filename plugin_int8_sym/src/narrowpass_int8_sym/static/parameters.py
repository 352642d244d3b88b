"""Chooses scales and zero points: from clipping ranges, within the limits of the backend."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import numpy as np
import onnx_ir as ir

from narrowpass.errors import DataError
from narrowpass.runtime.quantization import (
    INPUTS_TO_OUTPUT,
    WEIGHT_TO_OUTPUT,
    NodeQuantization,
    Parameters,
    QuantizationSpec,
    Violation,
)
from narrowpass_int8_sym.calibration import Range
from narrowpass_int8_sym.scales import LEAST_SCALE, of_magnitudes, of_range
from narrowpass_int8_sym.static.scale_constraints import MARGIN, ScaleConstraint, solve
from narrowpass_int8_sym.static.selection import Selection
from narrowpass_int8_sym.static.units import NodeUnit, Role
from narrowpass_int8_sym.weighted_nodes import WeightedNode
from narrowpass_int8_sym.weights import magnitudes
from narrowpass_ir.constants import constant_tensor

T = TypeVar("T", bound=Hashable)
Array = np.ndarray[Any, Any]

INT32_MAX = 2**31 - 1
"""The largest int32."""


@dataclass(frozen=True)
class Scheme:
    """The quantization scheme.

    Attributes:
        per_channel: whether weights have a scale for each output channel.
        symmetric: whether zero points of activations are 0.
        floor: whether no scale is below 2⁻¹², and none is increased for a limit; else scales are
            increased as far as limits require.
    """

    per_channel: bool = True
    symmetric: bool = False
    floor: bool = False

    def axis(self, weighted: WeightedNode) -> int | None:
        """Return the axis of a weight along which its scales differ."""
        return weighted.axis if self.per_channel else None


@dataclass(frozen=True)
class QuantizationParameters:
    """Scales and zero points of all selected units.

    Attributes:
        values: scale and zero point of each value, constants included.
        weights: the scales of each unit's weight, float32 [] or [C]; of a Gemm times its alpha.
        refused: units whose limits cannot be kept, and the violation.
    """

    values: Mapping[ir.Value, Parameters]
    weights: Mapping[NodeUnit, Array]
    refused: Mapping[NodeUnit, Violation]


@dataclass
class Magnitudes:
    """A cache of the largest magnitudes of weights."""

    known: dict[tuple[str, int | None], Array] = field(default_factory=dict)

    def of(self, weighted: WeightedNode, axis: int | None) -> Array:
        """Return the largest magnitude of a weight, float32 [] or [C].

        Raises:
            DataError: an element is infinite or NaN.
        """
        key = weighted.weight.name or "", axis
        if key not in self.known:
            tensor = constant_tensor(weighted.weight)
            if tensor is None:
                raise ValueError(f"{weighted.weight.name!r} is no constant")
            self.known[key] = magnitudes(tensor, axis)
        return self.known[key]

    def by_name(self) -> dict[str, Array]:
        """Return the cached magnitudes, by the name of the weight."""
        return {name: found for (name, _), found in self.known.items()}


def quantization_parameters(
    choice: Selection,
    ranges: Mapping[str, Range],
    scheme: Scheme,
    spec: QuantizationSpec,
    weights: Magnitudes,
) -> QuantizationParameters:
    """Choose scales and zero points.

    Args:
        choice: the units that are quantized.
        ranges: of their computed values, by name.
        scheme: of the integers.
        spec: the limits of the target.
        weights: a cache, which is extended.

    Raises:
        DataError: a weight, a bias or another constant is infinite or NaN.
    """
    sharing: UnionFind[ir.Value] = UnionFind()
    for unit in choice.units:
        if unit.role is Role.DATA_MOVEMENT or spec.same(unit.op_type):
            sharing.union((*unit.inputs, *unit.outputs, *unit.constants))
    known = _ranges(choice, ranges, sharing)
    floor = max(spec.smallest_scale, LEAST_SCALE if scheme.floor else 0.0)
    least: dict[ir.Value, float] = {}
    fixed: dict[ir.Value, Parameters] = {}
    refused: dict[NodeUnit, Violation] = {}
    for root, (low, high) in known.items():
        least[root] = of_range(low, high, symmetric=scheme.symmetric, least=floor).scale
    for unit in choice.units:
        only = spec.output(unit.op_type)
        if only is not None:
            root = sharing.find(unit.outputs[0])
            fixed[root] = only.parameters
            least[root] = only.scale
    constraints = {
        unit: _constraint(unit, choice, sharing, scheme, spec, weights) for unit in choice.units
    }
    if scheme.floor:
        scales: Mapping[Any, float] = least
    else:
        solution = solve(least, fixed, list(constraints.values()))
        scales = solution.scales
        units = {constraint: unit for unit, constraint in constraints.items()}
        refused |= {units[constraint]: broken for constraint, broken in solution.refused.items()}
    roots = {
        root: fixed.get(root)
        or of_range(low, high, symmetric=scheme.symmetric, least=_float32(scales[root]))
        for root, (low, high) in known.items()
    }
    final = {root: each.scale for root, each in roots.items()}
    values = {value: roots[sharing.find(value)] for value in _all_values(choice)}
    channels = {
        unit: np.asarray(found, np.float32)
        for unit, constraint in constraints.items()
        if (found := constraint.channels(final)) is not None
    }
    for unit in choice.units:
        if unit not in refused and (broken := _violation(unit, choice, values, channels, spec)):
            refused[unit] = broken
    return QuantizationParameters(values, channels, refused)


def _float32(scale: float) -> float:
    return float(np.float32(scale))


def _all_values(choice: Selection) -> list[ir.Value]:
    constants = [value for unit in choice.units for value in unit.constants]
    return [*choice.values(), *dict.fromkeys(constants)]


def _ranges(
    choice: Selection, ranges: Mapping[str, Range], sharing: UnionFind[ir.Value]
) -> dict[ir.Value, tuple[float, float]]:
    """Return the range of each set of values that share a scale: the union of their ranges."""
    found: dict[ir.Value, tuple[float, float]] = {}
    for value in _all_values(choice):
        tensor = constant_tensor(value)
        if tensor is None or value.is_graph_input():
            given = ranges[value.name or ""]
            low, high = given.low, given.high
        else:
            array = tensor.numpy()
            low, high = float(array.min()), float(array.max())
        root = sharing.find(value)
        before = found.get(root, (0.0, 0.0))
        found[root] = min(low, before[0]), max(high, before[1])
    return found


def _constraint(
    unit: NodeUnit,
    choice: Selection,
    sharing: UnionFind[ir.Value],
    scheme: Scheme,
    spec: QuantizationSpec,
    known: Magnitudes,
) -> ScaleConstraint:
    """Return the constraint that the limits of a unit put on scales."""
    bound = spec.bound(unit.op_type)
    inputs = tuple(sharing.find(value) for value in (*unit.inputs, *unit.constants))
    output = None if unit in choice.float_results else sharing.find(unit.outputs[0])
    weighted = unit.weighted
    if weighted is None:
        if bound is not None and bound.ratio == WEIGHT_TO_OUTPUT:
            bound = replace(bound, ratio=INPUTS_TO_OUTPUT)
        return ScaleConstraint(bound, inputs, output, slope=unit.slope)
    axis = scheme.axis(weighted)
    floor = max(spec.smallest_scale, LEAST_SCALE if scheme.floor else 0.0)
    scales = of_magnitudes(known.of(weighted, axis), floor)
    alpha = weighted.node.attributes.get_float("alpha", 1.0) if unit.op_type == "Gemm" else 1.0
    least = None
    if unit.bias is not None and not choice.adds_floats(unit):
        row = np.abs(float_bias(unit))
        room = max(headroom(weighted), 1) * (1 - MARGIN)
        least = row / room if axis is not None else row.max() / room
    if scheme.floor and bound is not None:
        bound = None
    return ScaleConstraint(bound, inputs, output, scales.astype(np.float64) * alpha, least)


def proposed_quantization(
    unit: NodeUnit,
    choice: Selection,
    values: Mapping[ir.Value, Parameters],
    channels: Mapping[NodeUnit, Array],
) -> NodeQuantization:
    """Return the Q/DQ around the first node of a unit, with all scales known.

    Args:
        unit: one of the choice.
        choice: the units that are quantized.
        values: scale and zero point of each value.
        channels: the scales of weights, float32 [] or [C].
    """
    inputs = tuple(values[value] for value in (*unit.inputs, *unit.constants))
    output = None if unit in choice.float_results else values[unit.outputs[0]]
    weights = channels.get(unit)
    if unit.op_type == "MatMul" and unit.weighted is None:
        weights = np.array(inputs[1].scale)
    return NodeQuantization(inputs, output, weights, unit.slope)


def _violation(
    unit: NodeUnit,
    choice: Selection,
    values: Mapping[ir.Value, Parameters],
    channels: Mapping[NodeUnit, Array],
    spec: QuantizationSpec,
) -> Violation | None:
    """Return the first limit that a unit does not keep, with all scales known."""
    if unit.weighted is not None and headroom(unit.weighted) < 1:
        return Violation("largest accumulator", INT32_MAX - headroom(unit.weighted), INT32_MAX)
    asked = proposed_quantization(unit, choice, values, channels)
    found = spec.violations(
        unit.op_type, asked.inputs, asked.output, asked.weight_scales, asked.slope
    )
    return found[0] if found else None


def headroom(weighted: WeightedNode) -> int:
    """Return the accumulator headroom: the largest bias that cannot overflow int32.

    It is below 1 where the accumulators alone can overflow.

    An activation is up to 255 from its zero point, and a weight up to 127 from 0.
    """
    return INT32_MAX - weighted.reduction_length * 255 * 127


def float_bias(unit: NodeUnit) -> Array:
    """Return the bias of a unit, times beta: float64 [channels].

    Raises:
        DataError: an element is infinite or NaN.
    """
    tensor = constant_tensor(unit.bias)
    if tensor is None or unit.weighted is None or unit.bias is None:
        raise ValueError("the unit has no bias")
    row = np.ravel(np.asarray(tensor.numpy(), np.float64))
    if not np.isfinite(row).all():
        raise DataError(f"bias {unit.bias.name!r} has an element that is infinite or NaN")
    beta = unit.weighted.node.attributes.get_float("beta", 1.0) if unit.op_type == "Gemm" else 1.0
    return np.array(np.broadcast_to(row * beta, (unit.weighted.output_channels,)))


def quantized_bias(row: Array, operand: float, weights: Array) -> tuple[Array, Array]:
    """Return a bias quantized to int32, and its scales.

    Args:
        row: float64 [C].
        operand: the scale of the activation.
        weights: float32 [] or [C]: the scales of the weight.

    Returns:
        int32 [C], and float32 [] or [C]: scale of the activation · scale of the weight.
    """
    scales = np.asarray(np.float32(operand) * np.asarray(weights, np.float32), np.float32)
    whole = np.rint(row / scales.astype(np.float64))
    return np.clip(whole, -INT32_MAX, INT32_MAX).astype(np.int32), scales


class UnionFind(Generic[T]):
    """Disjoint sets; an item that was never joined is a set of its own."""

    def __init__(self) -> None:
        self._parents: dict[T, T] = {}

    def find(self, item: T) -> T:
        """Return the representative of the set of `item`."""
        root = item
        while (parent := self._parents.get(root, root)) != root:
            root = parent
        while (parent := self._parents.get(item, item)) != root:
            self._parents[item] = root
            item = parent
        return root

    def union(self, items: Iterable[T]) -> None:
        """Merge the sets of items."""
        first: T | None = None
        for item in items:
            if first is None:
                first = self.find(item)
                continue
            other = self.find(item)
            if other != first:
                self._parents[other] = first
