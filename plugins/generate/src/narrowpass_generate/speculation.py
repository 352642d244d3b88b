"""Drafted tokens: of an earlier place of the text (prompt lookup), or of a smaller model.

A run of the model verifies several at once. Each is accepted with probability min(1, p / q) of the
model's p and the draft's q, and the first that is not is replaced by a draw from max(0, p - q)
(Leviathan et al. 2023, algorithm 1): tokens are distributed as without drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from narrowpass_generate.decoder import Decoder
from narrowpass_generate.sampling import Array, Candidates, Sampler

_GRAMS = (3, 2)
"""Lengths of the sequences that are looked up, in this order."""

Draft = tuple[int, Candidates]
"""A token with the distribution that it was drawn from."""


class Drafter(Protocol):
    """Proposes the next tokens."""

    def propose(self, ids: Sequence[int], most: int) -> list[Draft]:
        """Return at most so many tokens that may follow.

        Args:
            ids: the prompt, and what was generated.
            most: at least 1.
        """


class Lookup:
    """Proposes what followed the last few tokens where they came before (Saxena 2023)."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._after: dict[tuple[int, ...], int] = {}
        self._seen = 0

    def propose(self, ids: Sequence[int], most: int) -> list[Draft]:
        """See `Drafter.propose`."""
        for end in range(max(self._seen, 1), len(ids)):
            for gram in _GRAMS:
                if end >= gram:
                    self._after[tuple(ids[end - gram : end])] = end
        self._seen = len(ids)
        for gram in _GRAMS:
            start = self._after.get(tuple(ids[-gram:]))
            if start is not None:
                found = ids[start : start + min(self._count, most)]
                return [(token, Candidates.certain(token)) for token in found]
        return []


class DraftModel:
    """Proposes what a smaller model of the same vocabulary generates.

    Args:
        decoder: of that model.
        sampler: the same sampling, with random numbers of its own.
        count: of tokens.
    """

    def __init__(self, decoder: Decoder, sampler: Sampler, count: int) -> None:
        self._decoder, self._sampler, self._count = decoder, sampler, count

    def propose(self, ids: Sequence[int], most: int) -> list[Draft]:
        """See `Drafter.propose`."""
        drafts: list[Draft] = []
        logits = self._decoder.advance(ids)
        while True:
            # All ids count as seen before, those that were rejected in an earlier run do not.
            candidates = self._sampler.candidates(logits, [*ids, *(token for token, _ in drafts)])
            token = candidates.draw(self._sampler.numbers)
            drafts.append((token, candidates))
            if len(drafts) == min(self._count, most):
                return drafts
            logits = self._decoder.feed([token])[-1]


def verify(rows: Array, drafts: Sequence[Draft], sampler: Sampler) -> list[int]:
    """Return the tokens that are accepted, and the one that the model itself chooses then.

    Args:
        rows: float32[N + 1, V]: the model's logits of each draft, and after the last.
        drafts: N tokens with their distributions.
        sampler: of the model; it has seen what came before the drafts.
    """
    accepted: list[int] = []
    for logits, (token, proposed) in zip(rows, drafts, strict=False):
        if sampler.sampling.greedy:
            best = sampler.choose(logits, accepted)
            if best != token:
                return [*accepted, best]
        else:
            candidates = sampler.candidates(logits, accepted)
            p, q = candidates.probability(token), proposed.probability(token)
            if sampler.numbers.random() * q >= p:
                return [*accepted, candidates.without(proposed).draw(sampler.numbers)]
        accepted.append(token)
    return [*accepted, sampler.choose(rows[-1], accepted)]
