"""What a backend asks of quantized operators: the typed view of its constraints.

`narrowpass.Backend.quantization_constraints` gives plain data; a backend without limits gives none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from narrowpass.errors import UsageError
from narrowpass_int8_sym.scales import LARGEST_WEIGHT, Parameters

Array = np.ndarray[Any, Any]

SUM = "input / output"
"""The ratio of each operand by itself, of Add and Sub, and of conversions."""

PRODUCT = "input * input / output"
"""The ratio of Mul: the scales of all operands over that of the result."""

WEIGHTED = "input * weight / output"
"""The ratio of Conv, Gemm and the like: one for each scale of the weight."""

_TINY = float(np.finfo(np.float32).tiny)


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
class Bound:
    """Where a ratio of scales must lie.

    Attributes:
        what: the ratio: `SUM`, `PRODUCT` or `WEIGHTED`.
        low: the least value; it is allowed.
        high: the limit above.
        closed: whether `high` itself is allowed.
    """

    what: str
    low: float
    high: float
    closed: bool = False

    def __post_init__(self) -> None:
        if self.what not in (SUM, PRODUCT, WEIGHTED):
            raise UsageError(
                f"a backend limits {self.what!r}; what can be kept are {SUM!r}, {PRODUCT!r} and "
                f"{WEIGHTED!r}"
            )
        if not 0 <= self.low < self.high:
            raise UsageError(f"a backend limits {self.what!r} to {self.low} up to {self.high}")

    def ratios(
        self, inputs: Sequence[float], weights: Array | None, output: float
    ) -> Iterable[float]:
        """Give the ratios that the bound is about.

        Args:
            inputs: the scales of the operands; of `WEIGHTED`, of the first one alone.
            weights: of `WEIGHTED`, the scales of the weight: float32 [] or [C].
            output: the scale of the result.
        """
        if self.what == WEIGHTED:
            scales = np.ravel(np.asarray(1.0 if weights is None else weights, np.float64))
            return [float(ratio) for ratio in inputs[0] * scales / output]
        if self.what == PRODUCT:
            return [math.prod(inputs) / output]
        return [scale / output for scale in inputs]

    def broken(self, ratios: Iterable[float]) -> Violation | None:
        """Give the ratio that is farthest beyond the bound; None where all are within.

        Ratios are rounded to float32 before, in which kernels compute them.
        """
        found = [_float32(ratio) for ratio in ratios]
        if not found:
            return None
        least, largest = min(found), max(found)
        above = largest > self.high or (largest == self.high and not self.closed)
        if above or math.isnan(largest):
            return Violation(self.what, largest, self.high)
        return Violation(self.what, least, self.low) if least < self.low else None


@dataclass(frozen=True)
class Integers:
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
    """The only quantization that an operator's result may have."""

    dtype: str
    scale: float
    zero_point: int


@dataclass(frozen=True)
class Limits:
    """What a backend asks of quantized operators.

    Attributes:
        activations: what their elements may be.
        weights: what theirs may be.
        zero_points: whether weights may have zero points other than 0.
        smallest_scale: of anything.
        ratios: where ratios of scales must lie, by operator.
        same: operators whose operands and results must have the same scale and zero point.
        fixed: operators whose result has one quantization alone.
    """

    activations: Integers = Integers("int8", -128, 127)
    weights: Integers = Integers("int8", -LARGEST_WEIGHT, LARGEST_WEIGHT)
    zero_points: bool = False
    smallest_scale: float = _TINY
    ratios: Mapping[str, Bound] = field(default_factory=dict)
    same: frozenset[str] = frozenset()
    fixed: Mapping[str, FixedOutput] = field(default_factory=dict)

    @classmethod
    def of(cls, constraints: Mapping[str, Any]) -> Limits:
        """Read what a backend gives.

        Args:
            constraints: as `narrowpass.Backend.quantization_constraints` gives them; what is not
                among them is not limited.

        Raises:
            UsageError: a limit that nothing here can keep.
        """
        plain = cls()
        return cls(
            _integers(constraints.get("activations", {}), plain.activations),
            _integers(constraints.get("weights", {}), plain.weights),
            constraints.get("weights", {}).get("zero_point", 0) is None,
            max(float(constraints.get("smallest_scale", 0.0)), _TINY),
            {name: Bound(**given) for name, given in constraints.get("ratios", {}).items()},
            frozenset(constraints.get("same_quantization", ())),
            {name: FixedOutput(**g) for name, g in constraints.get("fixed_outputs", {}).items()},
        )

    def violations(
        self,
        op_type: str,
        inputs: Sequence[Parameters],
        output: Parameters | None,
        weights: Array | None = None,
        slope: float = 1.0,
    ) -> list[Violation]:
        """Tell which limits a quantized operator does not keep.

        Args:
            op_type: the operator; ``QuantizeLinear`` for a conversion from int8 to int8.
            inputs: the quantization of its operands, without a weight.
            output: that of its result; None where the result is float.
            weights: the scales of its weight: [] or, by channel, [C].
            slope: what part of the operand is multiplied by, of LeakyRelu.

        Returns:
            The violations; nothing where all limits are kept.
        """
        found = self._scales([*inputs, *([output] if output else [])], weights)
        if output is None:
            return found
        bound = self.ratios.get(op_type)
        if bound is not None and inputs:
            scales = [each.scale for each in inputs]
            ratios = [*bound.ratios(scales, weights, output.scale)]
            ratios += [abs(slope) * ratio for ratio in ratios if abs(slope) not in (0.0, 1.0)]
            broken = bound.broken(ratios)
            found += [broken] if broken else []
        if op_type in self.same:
            found += _different("input and output", inputs, output)
        if op_type in self.fixed:
            right = self.fixed[op_type]
            wanted = Parameters(right.scale, right.zero_point)
            found += _different("output and the only one allowed", [output], wanted)
        return found

    def _scales(self, known: Sequence[Parameters], weights: Array | None) -> list[Violation]:
        scales = [each.scale for each in known]
        if weights is not None:
            scales += [float(np.min(weights))]
        least = min(scales, default=math.inf)
        if least >= self.smallest_scale:
            return []
        return [Violation("smallest scale", least, self.smallest_scale)]


def _integers(given: Mapping[str, Any], plain: Integers) -> Integers:
    low, high = given.get("range", (plain.low, plain.high))
    return Integers(str(given.get("dtype", plain.dtype)), int(low), int(high))


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
