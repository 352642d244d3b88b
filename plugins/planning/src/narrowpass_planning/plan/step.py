"""Slots and steps: what a partition is made of.

A slot is a dense array in its physical order of axes. A step computes one slot from others. Steps
know nothing of ONNX's order of axes: where a value lies as [N, H, W, C], that is the slot's shape.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Shape = tuple[int, ...]
Array = np.ndarray[Any, Any]


Times = dict[Any, list[float]]
"""Seconds of each run, by the step or host node."""


@dataclass(eq=False)
class Slot:
    """A dense array that steps read or write.

    Attributes:
        name: of the value that it holds, for messages.
        dtype: of its elements.
        constant: its elements, where they never change.
    """

    name: str
    dtype: np.dtype[Any]
    constant: Array | None = None


@dataclass(frozen=True)
class Sizing:
    """What a step may ask while it is told its sizes.

    Attributes:
        pool: the threads that will run the step: the executor's, with their number in `threads`.
        value: gives a value that follows from shapes alone, by name.
        made: what steps were told so far that others may be too; see `Step.alike`.
    """

    pool: Any
    value: Callable[[str], Array]
    made: dict[Hashable, Run] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """How a step runs, for the sizes that it was told.

    Attributes:
        shape: of the output.
        call: which call of the executor; empty where nothing needs to run.
        operator: an object of the executor's that was sized, with the bytes of scratch memory that
            it needs in `workspace`; None where `params` is all there is.
        params: what the executor passes to a kernel.
        workspace: bytes of scratch memory that a kernel without an operator needs.
        view: where the output is a part of the first input: the byte at which it starts.
        constant: the output itself, where it does not depend on the inputs' elements.
    """

    shape: Shape
    call: str = ""
    operator: Any = None
    params: Any = None
    workspace: int = 0
    view: int | None = None
    constant: Array | None = None

    @property
    def scratch(self) -> int:
        """Bytes of scratch memory that it needs."""
        return self.workspace if self.operator is None else int(self.operator.workspace)


class Step(abc.ABC):
    """One computation.

    Attributes:
        inputs: what it reads.
        output: what it writes.
        kernel: what computes it, for people.
        nodes: names of the ONNX nodes that it stands for; empty for a change of layout.
        in_place: index of the inputs whose memory the output may take, if it is of that size.
        values: names of the values from shapes that `Step.size` reads.
        precision: what narrow values are computed in, where that is not float32.
    """

    kernel: str
    precision: str = ""
    in_place: Sequence[int] = ()
    values: tuple[str, ...] = ()

    def __init__(self, inputs: Sequence[Slot], output: Slot) -> None:
        self.inputs = tuple(inputs)
        self.output = output
        self.nodes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What errors and profiles call the step: the last of its nodes."""
        return self.nodes[-1] if self.nodes else self.output.name

    @property
    def alike(self) -> Hashable:
        """What tells how this step runs on inputs of given shapes; None where no others are alike.

        Layers of a model have the same steps, which need not be sized one by one.
        """
        return None

    @abc.abstractmethod
    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """Take the shapes of the inputs; what nothing needs to run for has no `Run.call`.

        Raises:
            BackendError: shapes that do not fit the step.
        """


def elements(shape: Sequence[int]) -> int:
    """Return the number of elements of a shape."""
    return math.prod(shape)
