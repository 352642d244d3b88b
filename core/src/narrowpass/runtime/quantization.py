"""The contract of quantizers and backends: operators, integers, scales and granularity of int8.

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
"""The scale of each operand by itself over that of the result: Add, Sub, means, conversions."""

INPUTS_TO_OUTPUT: Ratio = "input * input / output"
"""The scales of all operands, multiplied, over that of the result: Mul."""

WEIGHT_TO_OUTPUT: Ratio = "input * weight / output"
"""The scale of the operand times each scale of the weight, over that of the result: Conv, Gemm."""

SMALLEST_SCALE = float(np.finfo(np.float32).tiny)
"""The least normal number of float32: smaller scales are flushed to zero by some kernels."""


@dataclass(frozen=True)
class Parameters:
    """Per-tensor quantization parameters.

    Attributes:
        scale: positive; a float32 number.
        zero_point: the integer that represents 0.
    """

    scale: float
    zero_point: int


@dataclass(frozen=True)
class Violation:
    """A limit that a quantized operator breaks.

    Attributes:
        name: of the limit, for reports.
        measured: the value that breaks it; of several, the one farthest beyond the limit.
        limit: the limit.
    """

    name: str
    measured: float
    limit: float

    def __str__(self) -> str:
        return f"{self.name} is {self.measured:.6g}, the limit {self.limit:.6g}"


@dataclass(frozen=True)
class ScaleBound:
    """The interval of a ratio of scales that requantization supports.

    Attributes:
        ratio: of which scales.
        low: the lower limit; it is allowed.
        high: the upper limit.
        closed: whether `high` itself is allowed.

    Raises:
        UsageError: a ratio that is none of `Ratio`, or an empty interval.
    """

    ratio: Ratio
    low: float
    high: float
    closed: bool = False

    def __post_init__(self) -> None:
        if self.ratio not in get_args(Ratio):
            known = ", ".join(map(repr, get_args(Ratio)))
            raise UsageError(f"a ScaleBound has the ratio {self.ratio!r}; pass one of {known}")
        if not 0 <= self.low < self.high:
            raise UsageError(
                f"the bound of {self.ratio!r} is empty: low is {self.low}, high {self.high}; "
                "pass 0 <= low < high"
            )

    def ratios(
        self, inputs: Sequence[float], weights: Array | None, output: float
    ) -> Iterable[float]:
        """Return the ratios that the bound limits, one for each operand or channel.

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
        """Return the ratio farthest outside of the bound; None where all are within.

        Ratios are rounded to float32 first, the type in which kernels compute them.
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
    """Type and range of quantized elements.

    Attributes:
        dtype: by numpy's name.
        low: the least integer.
        high: the largest integer.
    """

    dtype: str
    low: int
    high: int


@dataclass(frozen=True)
class FixedOutput:
    """The one quantization that the result of an operator may have.

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
    """Limits of one operator that is computed in int8.

    Attributes:
        bound: of its ratio of scales; None for no bound.
        same: whether operands and results must have one scale and zero point.
        output: the one quantization of its result; None for any.
    """

    bound: ScaleBound | None = None
    same: bool = False
    output: FixedOutput | None = None


@dataclass(frozen=True)
class PerTokenQuantization:
    """Matmuls with dynamic per-token quantization: each row of activations by its own range.

    Attributes:
        operators: which; their weights are int8.
        max_depth: the largest K for which 32-bit accumulators have headroom; None for any.
    """

    operators: frozenset[str] = frozenset()
    max_depth: int | None = None


ANY_OPERATOR = OperatorSpec()
"""An operator without limits."""


@dataclass(frozen=True)
class QuantizationSpec:
    """The operators that a backend computes in int8, and its limits of scales and integers.

    The default has no limits: any operator, any scale.

    Attributes:
        activations: type and range of activations.
        weights: type and range of weights.
        weight_zero_points: whether weights may have zero points other than 0.
        per_channel: whether a weight may have a scale for each output channel.
        smallest_scale: the least scale of any tensor.
        operators: limits of the operators that are computed in int8, by ONNX operator;
            ``QuantizeLinear`` is a conversion from int8 to int8.
        others: limits of operators that are not listed; None where the backend computes them in
            float, between DequantizeLinear and QuantizeLinear.
        per_token: matmuls whose activations are quantized at run time, row by row.
    """

    activations: IntegerRange = IntegerRange("int8", -128, 127)
    weights: IntegerRange = IntegerRange("int8", -127, 127)
    weight_zero_points: bool = False
    per_channel: bool = True
    smallest_scale: float = SMALLEST_SCALE
    operators: Mapping[str, OperatorSpec] = field(default_factory=dict)
    others: OperatorSpec | None = ANY_OPERATOR
    per_token: PerTokenQuantization = PerTokenQuantization()

    def __post_init__(self) -> None:
        """Freeze the mapping of operators."""
        object.__setattr__(self, "operators", MappingProxyType(dict(self.operators)))
        object.__setattr__(self, "smallest_scale", max(self.smallest_scale, SMALLEST_SCALE))

    def operator(self, op_type: str) -> OperatorSpec | None:
        """Return the limits of an operator; None where it is not computed in int8."""
        return self.operators.get(op_type, self.others)

    def bound(self, op_type: str) -> ScaleBound | None:
        """Return the bound of an operator's ratio of scales; None for no bound."""
        found = self.operator(op_type)
        return None if found is None else found.bound

    @property
    def bounded(self) -> frozenset[str]:
        """The listed operators with a bound: those that requantize accumulators."""
        return frozenset(name for name, each in self.operators.items() if each.bound is not None)

    def same(self, op_type: str) -> bool:
        """Report whether operands and results of an operator must have one scale and zero point."""
        found = self.operator(op_type)
        return found is not None and found.same

    def output(self, op_type: str) -> FixedOutput | None:
        """Return the one quantization of an operator's result; None for any."""
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
        """Return the limits that a quantized operator breaks; empty where it breaks none.

        Args:
            op_type: the operator; ``QuantizeLinear`` for a conversion from int8 to int8.
            inputs: the quantization of its operands, without a weight.
            output: that of its result; None where the result is float.
            weights: the scales of its weight: [] or, by channel, [C].
            slope: of LeakyRelu, by which negative elements are multiplied.
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
            found += _different(
                "output and its only quantization", [output], spec.output.parameters
            )
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
        slope: of LeakyRelu, by which negative elements are multiplied.
    """

    inputs: tuple[Parameters, ...]
    output: Parameters | None = None
    weight_scales: Array | None = None
    slope: float = 1.0


def _different(of: str, inputs: Sequence[Parameters], output: Parameters) -> Iterable[Violation]:
    """Yield the first difference in scale, and the first in zero point."""
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
