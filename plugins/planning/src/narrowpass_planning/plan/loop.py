"""Loops that an executor runs in one call, and the signatures of their bodies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from narrowpass_planning.plan.bound import BoundPartition
from narrowpass_planning.plan.step import Array


@dataclass(frozen=True)
class LoopSignature:
    """The inputs and outputs of a loop body by their roles; names are empty where there is none.

    Attributes:
        number: the input with the iteration number.
        going: the input with the condition.
        states: inputs of loop-carried values.
        slices: inputs that are slices of scan inputs.
        condition: the output with the condition.
        results: outputs that are the next iteration's `states`.
        scanned: scan outputs, which are stacked.
        outputs: all outputs, in order.
    """

    number: str
    going: str
    states: tuple[str, ...]
    slices: tuple[str, ...]
    condition: str
    results: tuple[str, ...]
    scanned: tuple[str, ...]

    @property
    def outputs(self) -> tuple[str, ...]:
        """All outputs."""
        condition = (self.condition,) if self.condition else ()
        return (*condition, *self.results, *self.scanned)


@dataclass(frozen=True)
class ScanInput:
    """A scan input.

    Attributes:
        array: dense, with the slices along axis 0.
        backwards: whether the scan starts at the last slice.
    """

    array: Array
    backwards: bool


class NativeLoop(Protocol):
    """A loop that an executor runs in one call; its body is a bound partition."""

    fits: bool
    """Whether the shapes and types of the states are loop-invariant, as this requires."""

    def holds(self, bound: BoundPartition, others: Mapping[str, Array | str]) -> bool:
        """Return whether this is valid for a binding and for outputs that it does not compute."""

    def run(
        self,
        feeds: Mapping[str, Array],
        scans: Sequence[ScanInput],
        limit: int,
        pool: Any,
        *,
        known: bool,
    ) -> tuple[list[Array], list[Array]]:
        """Run at least one iteration.

        Args:
            feeds: by input name: the initial states, one slice of each scan input, and the values
                of outer scopes.
            scans: scan inputs, of `limit` slices.
            limit: the most iterations.
            pool: the executor's threads.
            known: whether `limit` comes from the model, and is not just the largest integer.

        Returns:
            The last state, and the stacked outputs.
        """


NativeLoopFactory = Callable[
    [BoundPartition, LoopSignature, Mapping[str, Array], Mapping[str, Array | str]], NativeLoop
]
"""Returns the loop of a body from its bound partition, its signature, feeds of the bound shapes,
and the outputs that the partition does not compute: constants, or names of inputs."""
