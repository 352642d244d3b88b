"""Perplexity, and divergence from the float32 decoder, of a quantized one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from texts import CONTEXT

Array = np.ndarray[Any, Any]
Run = Callable[[Array], Array]
"""Computes logits [tokens, vocabulary] of ids [1, tokens]."""

ROWS = 32
"""Tokens that are compared at a time, so that what is computed of them stays in cache."""


class Score:
    """What a form loses, over the contexts so far."""

    def __init__(self) -> None:
        self._loss, self._same = 0.0, 0
        self._divergences: list[Array] = []

    def add(self, right: Array, logits: Array, targets: Array) -> None:
        """Add a context.

        Args:
            right: float32 [tokens, vocabulary], log-probabilities of the reference.
            logits: float32 [tokens, vocabulary], of the form.
            targets: int64 [tokens], what follows each.
        """
        for first in range(0, len(targets), ROWS):
            last = first + ROWS
            known, wanted = right[first:last], targets[first:last]
            got = log_probabilities(logits[first:last])
            self._loss -= float(got[np.arange(len(wanted)), wanted].sum(dtype=np.float64))
            found = np.einsum("tv,tv->t", np.exp(known), known - got, dtype=np.float64)
            self._divergences.append(found)
            self._same += int((known.argmax(1) == got.argmax(1)).sum())

    def row(self) -> dict[str, float]:
        """Return the figures: divergences in nats, `error` is the standard error of their mean."""
        every = np.concatenate(self._divergences)
        return {
            "tokens": len(every),
            "perplexity": math.exp(self._loss / len(every)),
            "divergence": float(every.mean()),
            "error": float(every.std() / math.sqrt(len(every))),
            "same": self._same / len(every),
        }


def log_probabilities(logits: Array) -> Array:
    """Return the logarithm of softmax, float32 [tokens, vocabulary]."""
    found = logits - logits.max(axis=1, keepdims=True)
    found -= np.log(np.exp(found).sum(axis=1, keepdims=True, dtype=np.float64)).astype(np.float32)
    return found


class Reference:
    """The log-probabilities of the float32 model, computed once and kept in a file.

    Args:
        run: computes logits with the float32 model; called where there is no file.
        chosen: the contexts.
        vocabulary: how many tokens there are.
        folder: where the file is: 100 MB for each context.
    """

    def __init__(
        self, run: Callable[[], Run], chosen: Sequence[Array], vocabulary: int, folder: Path
    ) -> None:
        path = folder / f"reference-{len(chosen)}.bin"
        shape = len(chosen), CONTEXT - 1, vocabulary
        if not path.exists():
            logits, part = run(), path.with_suffix(".part")
            file = np.memmap(part, np.float32, "w+", shape=shape)
            for number, ids in enumerate(chosen):
                file[number] = log_probabilities(logits(ids)[:-1])
            file.flush()
            del file
            part.replace(path)
        self._file, self._chosen = np.memmap(path, np.float32, "r", shape=shape), chosen

    def score(self, run: Run | None) -> dict[str, float]:
        """Return the figures of a form; of the reference itself for None."""
        score = Score()
        for known, ids in zip(self._file, self._chosen, strict=True):
            # Log-probabilities are logits, too.
            score.add(known, known if run is None else run(ids)[:-1], ids[0, 1:])
        return score.row()
