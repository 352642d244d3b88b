"""The body of a loop: what its inputs and outputs are, and what repeats it in one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from narrowpass_planning.plan.bound import Bound
from narrowpass_planning.plan.step import Array


@dataclass(frozen=True)
class Roles:
    """What the inputs and outputs of a body are to a loop; names are empty where there is none.

    Attributes:
        number: the input that has the iteration's number.
        going: the input that says that the loop goes on.
        states: inputs of state.
        slices: inputs that are a slice of a scan input.
        condition: the output that says whether the loop goes on.
        results: outputs that are the next state.
        scanned: outputs that are stacked.
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
class Scanned:
    """A scan input: its slices lie along the first axis.

    Attributes:
        array: dense, with the slices along axis 0.
        backwards: whether the last one comes first.
    """

    array: Array
    backwards: bool


class Repeated(Protocol):
    """A bound partition that an executor runs many times in one call: the body of a loop."""

    fits: bool
    """Whether each state has the shape and type of the one before."""

    def holds(self, bound: Bound, others: Mapping[str, Array | str]) -> bool:
        """Return whether the partition is bound as it was, and has the same values beside."""

    def run(
        self,
        feeds: Mapping[str, Array],
        scans: Sequence[Scanned],
        limit: int,
        pool: Any,
        *,
        known: bool,
    ) -> tuple[list[Array], list[Array]]:
        """Run at least one iteration.

        Args:
            feeds: the first state by the names of the inputs, one slice of each scan input, and
                what is read from outside.
            scans: scan inputs, of `limit` slices.
            limit: the most iterations.
            pool: the executor's threads.
            known: whether there surely are as many, unless the condition ends it.

        Returns:
            The last state, and the stacked outputs.
        """


Repeat = Callable[[Bound, Roles, Mapping[str, Array], Mapping[str, Array | str]], Repeated]
"""Returns what repeats a bound partition, from the roles of its inputs and outputs, values of the
shapes that it is bound to, and outputs that it does not compute: a constant, or an input's name."""
