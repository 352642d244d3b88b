"""Sessions beside onnx's evaluator, which is fed whole caches in each run."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

import narrowpass

Feeds = dict[str, np.ndarray]
CACHES = ("past_k", "past_v")


class Reference:
    """The loop of a decoder on onnx's evaluator: keys and values of [batch, groups, rows, head]."""

    def __init__(
        self, model: onnx.ModelProto, batch: int = 1, groups: int = 2, head: int = 6
    ) -> None:
        self._evaluator = ReferenceEvaluator(model)
        self.caches = [np.zeros((batch, groups, 0, head), np.float32)] * len(CACHES)

    def run(self, feeds: Feeds) -> np.ndarray:
        """Return ``y``, and keep the caches."""
        y, *self.caches = self._evaluator.run(
            None, feeds | dict(zip(CACHES, self.caches, strict=True))
        )
        return y


def follow(
    session: narrowpass.Session,
    reference: Reference,
    feeds_of: Callable[[int, int, int], Feeds],
    steps: Iterable[int],
) -> None:
    """Run steps of so many rows in both, and compare the outputs of each.

    Args:
        session: of the model.
        reference: at the same row.
        feeds_of: returns feeds without caches for new rows, rows before them, and a seed.
        steps: rows of each.
    """
    for seed, rows in enumerate(steps):
        feeds = feeds_of(rows, session.length, seed)
        assert_close(session.run(feeds)["y"], reference.run(feeds))


def assert_close(found: np.ndarray, wanted: np.ndarray) -> None:
    """Compare float32 accumulated in another order: 24 terms, relative to the largest element."""
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())
