"""Limits on the error of outputs: ``rel:1e-2``, ``cosine:0.999``, ``module:function:0.5``.

====================  ============================================================  ===========
metric                error of outputs                                              limit
====================  ============================================================  ===========
``rel``               ``max |a - b| / max |b|``, the worst output and sample        the most
``sqnr``              noise over power, the worst                                   least dB
``cosine``            ``1 - cosine``, the worst                                     the least
``top1``              share of rows whose largest is elsewhere, of all samples      the least
``kl``                mean of KL(softmax(b), softmax(a)) over rows, in nats         the most
``module:function``   mean of ``function(reference, outputs)`` over samples         the most
====================  ============================================================  ===========

``a`` are the outputs of the narrow model, ``b`` those of the model as it was. What NaN and zeros
count is in `narrowpass_analysis.metrics`.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from narrowpass.errors import DataError, UsageError
from narrowpass.framework.boundary import translate_errors
from narrowpass_analysis.metrics import Difference, Tolerance, difference
from narrowpass_auto.agreement import Margins, has_margins
from narrowpass_ir.arguments import suggest

if TYPE_CHECKING:
    from narrowpass.runtime.backend import Outputs

_KNOWN = ("rel", "sqnr", "cosine", "top1", "kl")
_WORST = frozenset({"rel", "sqnr", "cosine"})
"""Metrics whose error is that of the worst sample."""

_LEAST_SHARE = 1e-3

Score = Callable[[Mapping[str, Any], Mapping[str, Any]], float]
"""Returns the error of the outputs of one sample: 0 for none, larger is worse."""


@dataclass(frozen=True)
class Limit:
    """The most error that outputs may have; see the module.

    Attributes:
        metric: one of the module's table.
        limit: as the text has it.
        text_form: what the text of one looks like.
    """

    text_form: ClassVar[str] = "METRIC:LIMIT"

    metric: str
    limit: float

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text of a limit.

        Raises:
            ValueError: it is none; the message says what one looks like.
        """
        metric, colon, number = text.rpartition(":")
        if not colon:
            raise ValueError(f"{text!r} is not of the form METRIC:LIMIT, such as rel:1e-2")
        if metric not in _KNOWN and ":" not in metric:
            hint = suggest(metric, _KNOWN)
            raise ValueError(
                f"no metric {metric!r}{hint}; metrics: {', '.join(_KNOWN)}, or module:function"
            )
        if metric in ("rel", "sqnr", "cosine", "top1"):
            limit = Tolerance.parse(text).limit
        else:
            try:
                limit = float(number)
            except ValueError:
                raise ValueError(f"the limit {number!r} in {text!r} is not a number") from None
            if not limit >= 0.0 or math.isinf(limit):
                raise ValueError(f"the limit of {metric} is at least 0 and finite, not {number}")
        return cls(metric, limit)

    def __str__(self) -> str:
        """The text of the limit."""
        return f"{self.metric}:{self.limit:g}"

    @property
    def bound(self) -> float:
        """The most error, 0 for none at all."""
        if self.metric in ("cosine", "top1"):
            return 1.0 - self.limit
        return float(10.0 ** (-self.limit / 10.0)) if self.metric == "sqnr" else self.limit

    @property
    def likely_bound(self) -> float:
        """The most error that other samples may be likely to have.

        Of ``top1`` it is a thousandth at least: no number of rows proves that none moves.
        """
        return max(self.bound, _LEAST_SHARE) if self.metric == "top1" else self.bound

    @property
    def is_mean(self) -> bool:
        """Whether the error of samples is the mean of theirs; else it is the worst."""
        return self.metric not in _WORST

    @property
    def power(self) -> float:
        """The power of the error that noise grows with: noise is a mean of squares."""
        return 2.0 if self.metric in ("rel", "top1") else 1.0

    def shown(self, error: float) -> str:
        """Return an error as the metric has it: ``cosine 0.9993``."""
        if self.metric in ("cosine", "top1"):
            return f"{self.metric} {1.0 - error:.6g}"
        if self.metric == "sqnr":
            return f"sqnr {-10.0 * math.log10(error) if error else math.inf:.4g} dB"
        return f"{self.metric} {error:.3g}"

    def meter(self) -> Meter:
        """Return what measures the error of outputs, sample by sample.

        Raises:
            UsageError: the function of the metric cannot be imported.
        """
        return Meter(self)


class Meter:
    """The error of outputs so far; holds numbers for each sample, and no outputs."""

    def __init__(self, limit: Limit) -> None:
        self._limit = limit
        self._worst = Difference()
        self._outputs: dict[str, Difference] = {}
        self._total, self._count = 0.0, 0
        self._score = _function(limit.metric) if ":" in limit.metric else None
        self._noise = 0.0
        self._errors: list[float] = []
        self._margins: dict[str, Margins] = {}

    def add(self, reference: Outputs, outputs: Outputs) -> None:
        """Take the outputs of one sample.

        Raises:
            DataError: they cannot be compared, or the user's function failed.
        """
        found = {name: difference(outputs[name], right) for name, right in reference.items()}
        for name, one in found.items():
            self._outputs[name] = self._outputs.get(name, Difference()).worst(one)
            self._noise = max(self._noise, 10.0 ** (-one.sqnr / 10.0))
        if self._limit.metric in _WORST:
            self._errors.append(_worst(self._limit.metric, found.values()))
        elif self._limit.metric == "top1":
            shares = [1.0 - one.agreeing / one.rows for one in found.values() if one.rows]
            self._errors.extend([max(shares)] if shares else [])
            for name, right in reference.items():
                if has_margins(right):
                    self._margins.setdefault(name, Margins()).add(right, outputs[name])
        if self._limit.metric == "kl":
            found_here = [_divergence(right, outputs[name]) for name, right in reference.items()]
            total, rows = (sum(numbers) for numbers in zip((0.0, 0), *found_here, strict=True))
            self._total += total
            self._count += rows
            self._errors.extend([total / rows] if rows else [])
        elif self._score is not None:
            with translate_errors(f"metric {self._limit.metric} failed", DataError):
                error = float(self._score(reference, outputs))
            if math.isnan(error) or error < 0.0:
                raise DataError(
                    f"metric {self._limit.metric} gave {error}: it must return an error of at "
                    "least 0, which is 0 where outputs are as good as the reference"
                )
            self._total += error
            self._count += 1
            self._errors.append(error)

    @property
    def noise(self) -> float:
        """The noise of the worst output over its power, on the worst sample."""
        return self._noise

    @property
    def errors(self) -> tuple[float, ...]:
        """The error of each sample; samples that have none are left out.

        Of ``top1`` it is the share of rows that is likely to move, by their margins, where outputs
        have margins: whether a row moved is 0 or 1, and says little about others.
        """
        chances = [margins.chances() for margins in self._margins.values()]
        if not chances:
            return tuple(self._errors)
        known = ([one for one in each if one is not None] for each in zip(*chances, strict=True))
        return tuple(max(each) for each in known if each)

    @property
    def expected(self) -> float:
        """The error to expect of other samples by the margins of these; 0 without margins."""
        return max((margins.chance() for margins in self._margins.values()), default=0.0)

    @property
    def rows(self) -> int:
        """The fewest rows of an output that has any."""
        return min((one.rows for one in self._outputs.values() if one.rows), default=0)

    @property
    def error(self) -> float:
        """The error so far.

        Raises:
            DataError: no output can be measured so.
        """
        metric = self._limit.metric
        if metric == "kl" or self._score is not None:
            if not self._count:
                raise DataError(f"no output has rows of two numbers or more, as {metric} needs")
            return self._total / self._count
        if metric in _WORST:
            return _worst(metric, self._outputs.values())
        rows = [one for one in self._outputs.values() if one.rows]
        if not rows:
            raise DataError("no output has rows of two numbers or more, as top1 needs")
        return 1.0 - min(one.agreeing / one.rows for one in rows)


def _worst(metric: str, found: Iterable[Difference]) -> float:
    """Return the error of the worst output."""
    if metric == "rel":
        return max((one.relative for one in found), default=0.0)
    if metric == "cosine":
        return 1.0 - min((one.cosine for one in found), default=1.0)
    return max((10.0 ** (-one.sqnr / 10.0) for one in found), default=0.0)


def _divergence(reference: Any, actual: Any) -> tuple[float, int]:
    """Return the total of KL(softmax(reference), softmax(actual)) of rows, and their number."""
    if not isinstance(reference, np.ndarray) or reference.dtype.kind != "f" or not reference.ndim:
        return 0.0, 0
    if reference.shape[-1] < 2 or not reference.size:
        return 0.0, 0
    right, other = (_log_softmax(np.asarray(array, np.float64)) for array in (reference, actual))
    rows = np.sum(np.exp(right) * (right - other), axis=-1)
    total = float(np.sum(rows))
    return (total if math.isfinite(total) else math.inf), int(rows.size)


def _log_softmax(array: Any) -> Any:
    with np.errstate(invalid="ignore"):
        shifted = array - np.max(array, axis=-1, keepdims=True)
        return shifted - np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True))


def _function(text: str) -> Score:
    module, _, name = text.rpartition(":")
    here = str(Path.cwd())  # the command line is started as a script
    if "" not in sys.path and here not in sys.path:
        sys.path.insert(0, here)
    with translate_errors(f"metric {text} cannot be imported", UsageError):
        found = getattr(importlib.import_module(module), name)
    if not callable(found):
        raise UsageError(f"metric {text} is no function")
    score: Score = found
    return score
