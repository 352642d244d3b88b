"""How far outputs are from what they should be, and how far they may be.

One output ``a`` is compared with its reference ``b``, both as float64:

=============  ===================================================================  ========
``max_abs``    ``max |a - b|``                                                      ``abs``
``relative``   ``max |a - b| / max |b|``                                            ``rel``
``sqnr``       ``10 log10(sum b² / sum (a - b)²)``, in dB                           ``sqnr``
``cosine``     ``sum a·b / (|a| |b|)``, of the whole output as one vector           ``cosine``
``top1``       share of rows (along the last axis) with the largest at one place    ``top1``
=============  ===================================================================  ========

The right column is the name in the text of a `Tolerance`; ``abs`` is measured only. Over several
samples the worst value counts, and for ``top1`` the share of all rows.

What the formulas leave open:

- NaN in both, or the same infinity in both, is equal; such elements take part in ``top1`` only.
- NaN in one, or an infinity that the other lacks, is the worst error: ``max_abs`` and ``relative``
  are infinite, ``sqnr`` is minus infinity, ``cosine`` is -1.
- A reference of zeros (or without elements): where ``a`` is equal, ``relative`` is 0, ``sqnr``
  infinite, ``cosine`` 1; else infinite, minus infinity, 0.
- Outputs of integers, booleans or strings are equal or not: ``relative``, ``sqnr`` and ``cosine``
  have their best or their worst value, ``top1`` is the share of equal elements. ``max_abs`` is
  the largest difference of integers.
- Real and imaginary parts of complex numbers count as two numbers.
- ``top1`` is None where there are no rows of at least two numbers; the first of several
  largest counts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np

from narrowpass.errors import DataError
from narrowpass_ir.arguments import suggest

Array: TypeAlias = "np.ndarray[Any, Any]"


@dataclass(frozen=True)
class Difference:
    """How one output differs from its reference; the fields are described in the module.

    Attributes:
        equal: whether all elements are equal (NaN equals NaN, and 0.0 equals -0.0).
        max_abs: the largest absolute difference.
        relative: the same, as a share of the largest reference value.
        sqnr: signal to noise in dB.
        cosine: of the angle between the two.
        agreeing: number of rows that agree.
        rows: number of rows; 0 where rows have no largest element.
    """

    equal: bool = True
    max_abs: float = 0.0
    relative: float = 0.0
    sqnr: float = math.inf
    cosine: float = 1.0
    agreeing: int = 0
    rows: int = 0

    @property
    def top1(self) -> float | None:
        """Share of rows that agree; None where there are none."""
        return self.agreeing / self.rows if self.rows else None

    def worst(self, other: Self) -> Difference:
        """Return the worse value of each metric, and the rows of both."""
        return Difference(
            equal=self.equal and other.equal,
            max_abs=max(self.max_abs, other.max_abs),
            relative=max(self.relative, other.relative),
            sqnr=min(self.sqnr, other.sqnr),
            cosine=min(self.cosine, other.cosine),
            agreeing=self.agreeing + other.agreeing,
            rows=self.rows + other.rows,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the metrics by name."""
        return {
            "equal": self.equal,
            "max_abs": self.max_abs,
            "relative": self.relative,
            "sqnr": self.sqnr,
            "cosine": self.cosine,
            "top1": self.top1,
        }


def difference(actual: Any, reference: Any) -> Difference:
    """Compare one output with its reference.

    Args:
        actual: a numpy array of any dtype that ONNX has, a list of them (a sequence output), or
            None (an empty optional).
        reference: the same, of the same shape. Floating-point dtypes may differ.

    Raises:
        DataError: shapes, lengths or kinds that cannot be compared.
    """
    if actual is None and reference is None:
        return Difference()
    if isinstance(actual, list | tuple) and isinstance(reference, list | tuple):
        if len(actual) != len(reference):
            raise DataError(
                f"sequences of {len(actual)} and {len(reference)} elements cannot be compared"
            )
        result = Difference()
        for one, other in zip(actual, reference, strict=True):
            result = result.worst(difference(one, other))
        return result
    actual, reference = _array(actual), _array(reference)
    if not (isinstance(actual, np.ndarray) and isinstance(reference, np.ndarray)):
        raise DataError(f"{_kind(actual)} cannot be compared with {_kind(reference)}")
    if actual.shape != reference.shape:
        raise DataError(
            f"shapes {list(actual.shape)} and {list(reference.shape)} cannot be compared"
        )
    if _is_float(actual) != _is_float(reference):
        raise DataError(f"{_kind(actual)} cannot be compared with {_kind(reference)}")
    if _is_float(actual):
        return _compare_floats(actual, reference)
    return _compare_exact(actual, reference)


def max_abs(actual: Any, reference: Any) -> float:
    """Return ``max |a - b|``."""
    return difference(actual, reference).max_abs


def relative(actual: Any, reference: Any) -> float:
    """Return ``max |a - b| / max |b|``, the default metric."""
    return difference(actual, reference).relative


def sqnr(actual: Any, reference: Any) -> float:
    """Return 10 log10(sum b² / sum (a - b)²) in dB."""
    return difference(actual, reference).sqnr


def cosine(actual: Any, reference: Any) -> float:
    """Return the cosine of the angle between two outputs."""
    return difference(actual, reference).cosine


def top1(actual: Any, reference: Any) -> float | None:
    """Return the share of rows whose largest element is at the same place."""
    return difference(actual, reference).top1


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}"
    return "a sequence" if isinstance(value, list | tuple) else f"{type(value).__name__}"


def _array(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, np.generic) else value


def _is_float(array: Array) -> bool:
    """Return whether a dtype is floating-point or complex, those of ml_dtypes included."""
    if array.dtype.kind in "fc":
        return True
    if array.dtype.kind != "V":
        return False
    import ml_dtypes

    try:
        ml_dtypes.finfo(array.dtype)  # type: ignore[no-untyped-call]
    except (TypeError, ValueError):
        return False
    return True


def _flat(array: Array) -> Array:
    """Return the elements in float64, complex numbers as two."""
    if array.dtype.kind == "c":
        return array.astype(np.complex128).reshape(-1).view(np.float64)
    return array.astype(np.float64).reshape(-1)


def _compare_floats(actual: Array, reference: Array) -> Difference:
    a, b = _flat(actual), _flat(reference)
    finite = np.isfinite(a) & np.isfinite(b)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    agreeing, rows = _rows(actual, reference)
    if bool(np.all(same)):
        return Difference(agreeing=agreeing, rows=rows)
    if not bool(np.all(same | finite)):
        return Difference(False, math.inf, math.inf, -math.inf, -1.0, agreeing, rows)
    a, b = a[finite], b[finite]
    with np.errstate(over="ignore"):
        error = a - b
    if np.isinf(error).any():  # two numbers of float64 may be further apart than it reaches
        half = _compare_floats(a / 4, b / 4)
        return dataclasses.replace(half, max_abs=math.inf, agreeing=agreeing, rows=rows)
    largest, largest_error = float(np.max(np.abs(b))), float(np.max(np.abs(error)))
    return Difference(
        equal=False,
        max_abs=largest_error,
        relative=largest_error / largest if largest else math.inf,
        sqnr=20.0 * (_log_norm(b) - _log_norm(error)),
        cosine=_cosine(a, b),
        agreeing=agreeing,
        rows=rows,
    )


def _cosine(a: Array, b: Array) -> float:
    largest_a, largest_b = float(np.max(np.abs(a))), float(np.max(np.abs(b)))
    if largest_a == 0.0 or largest_b == 0.0:
        return 1.0 if largest_a == largest_b else 0.0
    a, b = a / largest_a, b / largest_b
    value = float(np.sum(a * b)) / math.sqrt(float(np.sum(a * a)) * float(np.sum(b * b)))
    return min(1.0, max(-1.0, value))


def _log_norm(x: Array) -> float:
    """Return log10 of the Euclidean norm."""
    largest = float(np.max(np.abs(x)))
    if largest == 0.0:
        return -math.inf
    x = x / largest  # squares of float64 leave its range
    return math.log10(largest) + 0.5 * math.log10(float(np.sum(x * x)))


def _rows(actual: Array, reference: Array) -> tuple[int, int]:
    """Return the number of rows that agree, and of rows."""
    if actual.dtype.kind == "c" or actual.ndim == 0 or actual.shape[-1] < 2 or actual.size == 0:
        return 0, 0
    a = np.argmax(actual.astype(np.float64), axis=-1)
    b = np.argmax(reference.astype(np.float64), axis=-1)
    return int(np.sum(a == b)), int(a.size)


def _compare_exact(actual: Array, reference: Array) -> Difference:
    """Compare integers, booleans or strings."""
    text = "O" in (actual.dtype.kind, reference.dtype.kind) or actual.dtype.kind in "US"
    a, b = (x.astype(object).reshape(-1) if text else x.reshape(-1) for x in (actual, reference))
    same = np.asarray(a == b, dtype=bool)
    agreeing, rows = int(np.sum(same)), int(same.size)
    if agreeing == rows:
        return Difference(agreeing=agreeing, rows=rows)
    largest = math.inf
    if not text:
        # Python's integers: the difference of two int64 may be too large for one.
        pairs = zip(a[~same].tolist(), b[~same].tolist(), strict=True)
        largest = float(max(abs(int(x) - int(y)) for x, y in pairs))
    return Difference(False, largest, math.inf, -math.inf, -1.0, agreeing, rows)


_FIELDS = {"rel": "relative", "sqnr": "sqnr", "cosine": "cosine", "top1": "top1"}
_RANGES = {
    "rel": (0.0, math.inf),
    "sqnr": (-math.inf, math.inf),
    "cosine": (-1.0, 1.0),
    "top1": (0.0, 1.0),
}


@dataclass(frozen=True)
class Tolerance:
    """How far outputs may be from their references: ``rel:1e-2``, ``sqnr:30``, ``top1:0.99``.

    Attributes:
        metric: ``rel``, ``sqnr``, ``cosine`` or ``top1``, see the module.
        limit: the largest relative error, or the least value of the others.
        text_form: what the text of one looks like.
    """

    text_form: ClassVar[str] = "METRIC:LIMIT"

    metric: str
    limit: float

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text of a tolerance.

        Raises:
            ValueError: it is none; the message says what one looks like.
        """
        metric, colon, number = text.partition(":")
        if not colon:
            raise ValueError(f"{text!r} is not of the form METRIC:LIMIT, such as rel:1e-2")
        if metric not in _FIELDS:
            raise ValueError(
                f"no metric {metric!r}{suggest(metric, _FIELDS)}; metrics: {', '.join(_FIELDS)}"
            )
        try:
            limit = float(number)
        except ValueError:
            raise ValueError(f"the limit {number!r} in {text!r} is not a number") from None
        low, high = _RANGES[metric]
        if not math.isfinite(limit) or not low <= limit <= high:
            bounds = {
                "rel": "0 or more",
                "sqnr": "a number of dB",
                "cosine": "from -1 to 1",
                "top1": "from 0 to 1",
            }
            raise ValueError(f"the limit {number!r} in {text!r} is not {bounds[metric]}")
        return cls(metric, limit)

    def __str__(self) -> str:
        return f"{self.metric}:{self.limit!r}"

    def check(self, differences: Mapping[str, Difference]) -> Sequence[str]:
        """Return a sentence for each output that differs by more than is allowed.

        Args:
            differences: by the output's name. Outputs that the metric does not apply to (top-1
                where there are no rows) must be equal.
        """
        return [
            f"output {name!r}: {self._value_text(value)}"
            for name, value in differences.items()
            if not self.met(value)
        ]

    def met(self, value: Difference) -> bool:
        """Return whether one output is near enough."""
        measured = getattr(value, _FIELDS[self.metric])
        if measured is None:
            return value.equal
        if self.metric == "rel":
            return bool(measured <= self.limit)
        return bool(measured >= self.limit)

    def _value_text(self, value: Difference) -> str:
        measured = getattr(value, _FIELDS[self.metric])
        if measured is None:
            return "has no rows for top1 and is not equal"
        side = "above" if self.metric == "rel" else "below"
        return f"{self.metric} is {measured:.4g}, {side} the limit {self.limit:g}"
