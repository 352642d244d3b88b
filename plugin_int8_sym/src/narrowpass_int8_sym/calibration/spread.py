"""Samples that lie on several machines, which observe values where the samples are.

Histograms have the same bins everywhere, since these follow from the extremes of all samples, which
the round before has found. So counts are added as integers, and extremes compared: ranges are the
same, bit for bit, as on one machine, in whatever order the parts arrive.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from narrowpass.errors import UsageError
from narrowpass.runtime.meters import Counts, Extremes

if TYPE_CHECKING:
    import onnx_ir as ir

    from narrowpass.runtime.meters import Meter


@runtime_checkable
class SpreadSamples(Protocol):
    """What `narrowpass.Samples` may be able to do, too: let others run a model on them."""

    def scan(self, limit: int | None) -> tuple[int, Mapping[str, tuple[int, ...]], str]:
        """Return the number of samples, the shapes of the first one, and a hash of all.

        Args:
            limit: the largest number of samples, the first ones; None for all.
        """

    def observe(
        self, model: ir.Model, backend: str, meters: Mapping[str, Meter], limit: int
    ) -> Iterator[tuple[int, str, Mapping[str, Meter]]]:
        """Run a model on all samples.

        Args:
            model: its values are recorded by name.
            backend: what runs it, with its options.
            meters: for each value, of the kind and with the bins that are wanted. They are not
                changed.
            limit: the number of samples, the first ones.

        Yields:
            For each part of the samples, once and in any order: how many they are, where they come
            from, and what meters recorded.
        """


def add_counts(total: Counts, part: Counts) -> None:
    """Add what another meter has counted in the same bins.

    Raises:
        UsageError: the bins are others.
    """
    ours = (total.bins, total.below, total.width, total.folded)
    theirs = (part.bins, part.below, part.width, part.folded)
    if ours != theirs:
        raise UsageError(f"counts in the bins {theirs} cannot be added to those in {ours}")
    total.counts += part.counts
    total.zeros += part.zeros
    add_extremes(total.extremes, part.extremes)


def add_extremes(total: Extremes, part: Extremes) -> None:
    """Add what another meter has seen."""
    if part.low <= part.high:
        total.include(part.low, part.high)
    total.nan |= part.nan
