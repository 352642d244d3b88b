"""The body of a loop: what its inputs and outputs are, and what repeats it in one call."""

from __future__ import annotations

from dataclasses import dataclass

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
