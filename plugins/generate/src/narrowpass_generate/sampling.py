"""How the next token is chosen from logits: tokens that may come, with probabilities, and draws."""

from __future__ import annotations

import math
import numbers
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from narrowpass.errors import DataError, UsageError
from narrowpass_ir.arguments import count_of


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen: by default the one of the largest logit.

    The steps are those of transformers' logits processors, in their order: repetition penalty,
    temperature, `top_k`, `top_p`, `min_p`. llama.cpp divides by the temperature last, so that the
    same numbers keep other tokens there.

    Attributes:
        temperature: logits are divided by it; 0 for the largest logit, without random numbers.
        top_k: only so many tokens of largest logits, and those equal to the last; 0 for all.
        top_p: only the fewest tokens whose probabilities add up to it (Holtzman et al. 2020); 1 for
            all.
        min_p: only tokens of at least this share of the largest probability; 0 for all.
        repetition_penalty: logits of tokens that came before, those of the prompt too, are divided
            by it where positive, multiplied where negative (Keskar et al. 2019); 1 for none.
        seed: of the random numbers; None for others each time.

    Raises:
        UsageError: a value out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, "at least 0 (0 is greedy)", 0.0)
        count_of(self.top_k, "`top_k`", least=0)
        _check("top_p", self.top_p, "above 0 and at most 1", math.ulp(0.0), 1.0)
        _check("min_p", self.min_p, "from 0 to 1", 0.0, 1.0)
        _check("repetition_penalty", self.repetition_penalty, "above 0", math.ulp(0.0))
        if self.seed is not None:
            count_of(self.seed, "`seed`", least=0)

    @property
    def greedy(self) -> bool:
        """Whether the largest logit is taken, and no random number drawn."""
        return not self.temperature


def _check(
    name: str, value: object, span: str, least: float, most: float = sys.float_info.max
) -> None:
    """Check a finite number.

    Raises:
        UsageError: anything else.
    """
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not real or not least <= float(value) <= most:  # type: ignore[arg-type]
        raise UsageError(f"`{name}` must be a number {span}, not {value!r}")


Array = np.ndarray[Any, Any]

_BINS, _BINS_PER_UNIT = 4096, 64
"""Bins of logits below the largest, and how many cover a factor of e in probability."""

_COLDEST = 1e-30
"""The least temperature that float32 divides by; all but the largest logits have weight 0 then."""


@dataclass(frozen=True)
class Candidates:
    """Tokens that may come next.

    Attributes:
        ids: int64[N], ascending.
        probabilities: float64[N], which add up to 1.
    """

    ids: Array
    probabilities: Array

    @classmethod
    def certain(cls, token: int) -> Candidates:
        """Return one token of probability 1."""
        return cls(np.array([token]), np.ones(1))

    def of(self, ids: Array) -> Array:
        """Return the probabilities of other ids, 0 where they are not among these."""
        places = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return np.where(self.ids[places] == ids, self.probabilities[places], 0.0)

    def probability(self, token: int) -> float:
        """Return the probability of one token."""
        return float(self.of(np.array([token]))[0])

    def without(self, other: Candidates) -> Candidates:
        """Return what a rejected draw from `other` leaves: max(0, p - q), normalized."""
        rest = np.maximum(self.probabilities - other.of(self.ids), 0.0)
        total = rest.sum()
        # Equal distributions reject nothing; only rounding leads here then.
        return Candidates(self.ids, rest / total) if total > 0 else self

    def draw(self, numbers: np.random.Generator) -> int:
        """Return a token; no random number is drawn where there is one only."""
        if len(self.ids) == 1:
            return int(self.ids[0])
        bounds = np.cumsum(self.probabilities)
        place = np.searchsorted(bounds, numbers.random() * bounds[-1], side="right")
        return int(self.ids[min(place, len(self.ids) - 1)])


class Sampler:
    """Chooses tokens from logits.

    Args:
        sampling: how.
        tokens: that came before: those of the prompt.
    """

    def __init__(self, sampling: Sampling, tokens: Iterable[int] = ()) -> None:
        self.sampling = sampling
        self.numbers = np.random.default_rng(sampling.seed)
        self._penalized = sampling.repetition_penalty != 1
        self._seen = dict.fromkeys(tokens) if self._penalized else {}

    def add(self, token: int) -> None:
        """Count a token to those that came before."""
        if self._penalized:
            self._seen[token] = None

    def choose(self, logits: Array, more: Iterable[int] = ()) -> int:
        """Return the next token; see `candidates`."""
        if self.sampling.greedy:
            return self._largest(self._penalize(logits, more))
        return self.candidates(logits, more).draw(self.numbers)

    def candidates(self, logits: Array, more: Iterable[int] = ()) -> Candidates:
        """Return the tokens that may come next.

        Args:
            logits: float32[V].
            more: tokens that came before, beside those that were added.

        Raises:
            DataError: logits with NaN, or without a finite number.
        """
        scores = self._penalize(logits, more)
        largest = self._largest(scores)
        sampling = self.sampling
        if sampling.greedy:
            return Candidates.certain(largest)
        top = scores[largest]
        ids: Array | None = None
        if 0 < sampling.top_k < len(scores):
            least = np.partition(scores, -sampling.top_k)[-sampling.top_k]
            ids = np.flatnonzero(scores >= least)
            scores = scores[ids]
        # Relative to the largest: exp does not overflow, however small the temperature.
        with np.errstate(over="ignore"):
            logs = (scores - top) / np.float32(max(sampling.temperature, _COLDEST))
        weights = np.exp(logs)
        kept = self._nucleus(logs, weights) if sampling.top_p < 1 else None
        if sampling.min_p:
            enough = weights >= sampling.min_p  # the largest weight is 1
            kept = enough if kept is None else kept & enough
        if kept is not None:
            chosen = np.flatnonzero(kept)
            ids, weights = (chosen if ids is None else ids[chosen]), weights[chosen]
        ids = np.arange(len(scores)) if ids is None else ids
        exact = weights.astype(np.float64)
        return Candidates(ids, exact / exact.sum())

    def _nucleus(self, logs: Array, weights: Array) -> Array:
        """Return which weights are among the fewest that add up to `top_p` of all.

        The vocabulary is not sorted, but a histogram taken, and one bin of it sorted.

        Args:
            logs: float32[N], at most 0.
            weights: float32[N], their exponentials.
        """
        bins = np.minimum(logs * -_BINS_PER_UNIT, _BINS - 1).astype(np.intp)
        bounds = np.cumsum(np.bincount(bins, weights, _BINS))
        wanted = self.sampling.top_p * bounds[-1]
        last = int(np.searchsorted(bounds, wanted))
        kept: Array = bins < last
        places = np.flatnonzero(bins == last)
        places = places[np.argsort(-weights[places], kind="stable")]
        before = bounds[last - 1] if last else 0.0
        inner = before + np.cumsum(weights[places], dtype=np.float64)
        kept[places[: np.searchsorted(inner, wanted) + 1]] = True
        return kept

    def _penalize(self, logits: Array, more: Iterable[int]) -> Array:
        if not self._penalized:
            return logits
        seen = np.fromiter({**self._seen, **dict.fromkeys(more)}, np.int64)
        penalty = np.float32(self.sampling.repetition_penalty)
        found = logits[seen]
        scores = logits.copy()
        scores[seen] = np.where(found < 0, found * penalty, found / penalty)
        return scores

    @staticmethod
    def _largest(scores: Array) -> int:
        largest = int(scores.argmax())  # of a NaN, where there is one
        if not np.isfinite(scores[largest]):
            raise DataError(
                f"the model's logits have {scores[largest]}; run `narrowpass compare` with the "
                "original model to see which narrowed values overflow"
            )
        return largest
