"""What a backend computes in int8: integers, scales and granularity, by operator.

Passes that quantize ask `narrowpass.Backend.quantization_spec` and keep to it. A real number is
``scale · (integer - zero point)``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, get_args

import numpy as np

from narrowpass.errors import UsageError

Array = np.ndarray[Any, Any]

Ratio = Literal["input / output", "input * input / output", "input * weight / output"]

INPUT_TO_OUTPUT: Ratio = "input / output"
"""The scale of each operand, by itself, over that of the result: Add, Sub, means, conversions."""

INPUTS_TO_OUTPUT: Ratio = "input * input / output"
"""The scales of all operands, multiplied, over that of the result: Mul."""

WEIGHT_TO_OUTPUT: Ratio = "input * weight / output"
"""The scale of the operand times each scale of the weight, over that of the result: Conv, Gemm."""

SMALLEST_SCALE = float(np.finfo(np.float32).tiny)
"""The least normal number of float32: smaller scales are flushed to zero by some kernels."""


@dataclass(frozen=True)
class Parameters:
    """How a tensor is quantized as a whole.

    Attributes:
        scale: positive; a float32 number.
        zero_point: the integer that stands for 0.
    """

    scale: float
    zero_point: int


@dataclass(frozen=True)
class Violation:
    """A limit that a quantized operator does not keep.

    Attributes:
        name: of the limit, for reports.
        measured: what is beyond it: of several, the one that is farthest beyond.
        limit: what it is beyond of.
    """

    name: str
    measured: float
    limit: float

    def __str__(self) -> str:
        return f"{self.name} is {self.measured:.6g}, the limit {self.limit:.6g}"


@dataclass(frozen=True)
class ScaleBound:
    """Where a ratio of scales must lie, for requantization to be computed right.

    Attributes:
        ratio: of which scales.
        low: the least value; it is allowed.
        high: the limit above.
        closed: whether `high` itself is allowed.

    Raises:
        UsageError: a ratio that is none of `Ratio`, or limits that no number keeps.
    """

    ratio: Ratio
    low: float
    high: float
    closed: bool = False

    def __post_init__(self) -> None:
        if self.ratio not in get_args(Ratio):
            known = ", ".join(map(repr, get_args(Ratio)))
            raise UsageError(f"a backend limits {self.ratio!r}; what can be kept are {known}")
        if not 0 <= self.low < self.high:
            raise UsageError(f"a backend limits {self.ratio!r} to {self.low} up to {self.high}")

    def ratios(
        self, inputs: Sequence[float], weights: Array | None, output: float
    ) -> Iterable[float]:
        """Give the ratios that the bound is about.

        Args:
            inputs: the scales of the operands; of `WEIGHT_TO_OUTPUT`, of the first one alone.
            weights: of `WEIGHT_TO_OUTPUT`, the scales of the weight: float32 [] or [C].
            output: the scale of the result.
        """
        if self.ratio == WEIGHT_TO_OUTPUT:
            scales = np.ravel(np.asarray(1.0 if weights is None else weights, np.float64))
            return [float(ratio) for ratio in inputs[0] * scales / output]
        if self.ratio == INPUTS_TO_OUTPUT:
            return [math.prod(inputs) / output]
        return [scale / output for scale in inputs]

    def violation(self, ratios: Iterable[float]) -> Violation | None:
        """Give the ratio that is farthest beyond the bound; None where all are within.

        Ratios are rounded to float32 before, in which kernels compute them.
        """
        found = [_float32(ratio) for ratio in ratios]
        if not found:
            return None
        least, largest = min(found), max(found)
        above = largest > self.high or (largest == self.high and not self.closed)
        if above or math.isnan(largest):
            return Violation(self.ratio, largest, self.high)
        return Violation(self.ratio, least, self.low) if least < self.low else None


@dataclass(frozen=True)
class IntegerRange:
    """What elements may be.

    Attributes:
        dtype: by numpy's name.
        low: the least integer.
        high: the largest.
    """

    dtype: str
    low: int
    high: int


@dataclass(frozen=True)
class FixedOutput:
    """The only quantization that an operator's result may have.

    Attributes:
        dtype: by numpy's name.
        scale: of the result.
        zero_point: of the result.
    """

    dtype: str
    scale: float
    zero_point: int

    @property
    def parameters(self) -> Parameters:
        """Scale and zero point together."""
        return Parameters(self.scale, self.zero_point)


@dataclass(frozen=True)
class OperatorSpec:
    """What a backend needs of one quantized operator.

    Attributes:
        bound: where the ratio of its scales must lie; None for anywhere.
        same: whether operands and results must have the same scale and zero point.
        output: the only quantization of its result; None for any.
    """

    bound: ScaleBound | None = None
    same: bool = False
    output: FixedOutput | None = None


@dataclass(frozen=True)
class RowQuantization:
    """Operators whose activations are quantized at run time, each row by its own range.

    Attributes:
        operators: which; their weights are int8.
        most_channels: the largest depth whose sums fit the accumulator; None for any.
    """

    operators: frozenset[str] = frozenset()
    most_channels: int | None = None


ANY_OPERATOR = OperatorSpec()
"""An operator without limits."""


@dataclass(frozen=True)
class QuantizationSpec:
    """What a backend computes in int8, and what it needs of scales and integers.

    The default has no limits: any operator, any scale.

    Attributes:
        activations: what their elements may be.
        weights: what theirs may be.
        weight_zero_points: whether weights may have zero points other than 0.
        per_channel: whether a weight may have a scale for each output channel.
        smallest_scale: the least scale of anything.
        operators: what is computed in int8, by ONNX operator; ``QuantizeLinear`` is a conversion
            from int8 to int8.
        others: what holds for operators that are not listed; None where the backend computes them
            in float, between DequantizeLinear and QuantizeLinear.
        rows: what is quantized at run time.
    """

    activations: IntegerRange = IntegerRange("int8", -128, 127)
    weights: IntegerRange = IntegerRange("int8", -127, 127)
    weight_zero_points: bool = False
    per_channel: bool = True
    smallest_scale: float = SMALLEST_SCALE
    operators: Mapping[str, OperatorSpec] = field(default_factory=dict)
    others: OperatorSpec | None = ANY_OPERATOR
    rows: RowQuantization = RowQuantization()

    def __post_init__(self) -> None:
        """Keep the operators from being changed."""
        object.__setattr__(self, "operators", MappingProxyType(dict(self.operators)))
        object.__setattr__(self, "smallest_scale", max(self.smallest_scale, SMALLEST_SCALE))

    def operator(self, op_type: str) -> OperatorSpec | None:
        """Give what holds for an operator; None where it is not computed in int8."""
        return self.operators.get(op_type, self.others)

    def bound(self, op_type: str) -> ScaleBound | None:
        """Give where the ratio of an operator's scales must lie; None for anywhere."""
        found = self.operator(op_type)
        return None if found is None else found.bound

    @property
    def bounded(self) -> frozenset[str]:
        """The listed operators whose scales depend on each other: those that compute."""
        return frozenset(name for name, each in self.operators.items() if each.bound is not None)

    def same(self, op_type: str) -> bool:
        """Tell whether operands and results of an operator must be quantized alike."""
        found = self.operator(op_type)
        return found is not None and found.same

    def output(self, op_type: str) -> FixedOutput | None:
        """Give the only quantization of an operator's result; None for any."""
        found = self.operator(op_type)
        return None if found is None else found.output

    def violations(
        self,
        op_type: str,
        inputs: Sequence[Parameters],
        output: Parameters | None,
        weights: Array | None = None,
        slope: float = 1.0,
    ) -> list[Violation]:
        """Give the limits that a quantized operator does not keep; nothing where it keeps all.

        Args:
            op_type: the operator; ``QuantizeLinear`` for a conversion from int8 to int8.
            inputs: the quantization of its operands, without a weight.
            output: that of its result; None where the result is float.
            weights: the scales of its weight: [] or, by channel, [C].
            slope: what part of the operand is multiplied by, of LeakyRelu.
        """
        found = self._scales([*inputs, *([output] if output else [])], weights)
        spec = self.operator(op_type)
        if output is None or spec is None:
            return found
        if spec.bound is not None and inputs:
            scales = [each.scale for each in inputs]
            ratios = [*spec.bound.ratios(scales, weights, output.scale)]
            ratios += [abs(slope) * ratio for ratio in ratios if abs(slope) not in (0.0, 1.0)]
            broken = spec.bound.violation(ratios)
            found += [broken] if broken else []
        if spec.same:
            found += _different("input and output", inputs, output)
        if spec.output is not None:
            found += _different("output and the only one allowed", [output], spec.output.parameters)
        return found

    def _scales(self, known: Sequence[Parameters], weights: Array | None) -> list[Violation]:
        scales = [each.scale for each in known]
        if weights is not None:
            scales += [float(np.min(weights))]
        least = min(scales, default=math.inf)
        if least >= self.smallest_scale:
            return []
        return [Violation("smallest scale", least, self.smallest_scale)]


@dataclass(frozen=True)
class NodeQuantization:
    """The Q/DQ that a pass proposes around a node; see `narrowpass.Backend.supports_quantized`.

    Attributes:
        inputs: the quantization of its computed operands, in their order.
        output: that of its first result; None where it stays float.
        weight_scales: float32 [] or [C]; None where the node has no weight.
        slope: what part of the operand is multiplied by, of LeakyRelu.
    """

    inputs: tuple[Parameters, ...]
    output: Parameters | None = None
    weight_scales: Array | None = None
    slope: float = 1.0


def _different(of: str, inputs: Sequence[Parameters], output: Parameters) -> Iterable[Violation]:
    """Give the first difference in scale, and the first in zero point."""
    for each in inputs:
        if each.scale != output.scale:
            yield Violation(f"scale of {of}", each.scale, output.scale)
            break
    for each in inputs:
        if each.zero_point != output.zero_point:
            yield Violation(f"zero point of {of}", each.zero_point, output.zero_point)
            break


def _float32(ratio: float) -> float:
    with np.errstate(over="ignore", under="ignore"):
        return float(np.float32(ratio))
