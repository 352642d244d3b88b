"""Slots and steps, the buffers and kernel calls of a partition.

A slot is a dense buffer in its physical order of axes. A step computes one slot from others. Steps
do not depend on ONNX's order of axes: a value that is stored as NHWC has a slot of that shape.
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
    """The context of `Step.size`.

    Attributes:
        pool: the threads that will run the step: the executor's, with their number in `threads`.
        value: returns a value that follows from shapes alone, by name.
        cache: sized steps that others may share; see `Step.alike`.
    """

    pool: Any
    value: Callable[[str], Array]
    cache: dict[Hashable, Run] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """A sized step: its output shape and kernel call for given input shapes.

    Attributes:
        shape: of the output.
        call: the executor's kernel; empty where nothing needs to run.
        operator: a reshaped operator object of the executor, whose `workspace` is the bytes of
            scratch memory that it needs; None where `params` suffices. One with a false
            `holds_size` may be reshaped for another run while this one stays valid.
        params: the parameters that the executor passes to the kernel.
        workspace: bytes of scratch memory that a kernel without an operator needs.
        view: the byte offset of the output in the first input, where the output is a view.
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
    def holds_size(self) -> bool:
        """Whether the operator holds the size of this run, so that another run takes it away."""
        return self.operator is not None and getattr(self.operator, "holds_size", True)

    @property
    def scratch(self) -> int:
        """Bytes of scratch memory that it needs, until its operator is sized for another run."""
        return self.workspace if self.operator is None else int(self.operator.workspace)


class Step(abc.ABC):
    """One kernel call, before shapes are known.

    Attributes:
        inputs: slots that it reads.
        output: the slot that it writes.
        kernel: a description of the kernel, for `explain` and profiles.
        nodes: names of the ONNX nodes that it implements; empty for a change of layout.
        in_place: indices of inputs of the output's size that the output may overwrite.
        values: names of the values from shapes that `Step.size` reads.
        elastic: indices of inputs whose last axis has an element for each row of a cache that was
            appended to. The kernel reads their number from a `length`, and the step stays as it
            is where they change.
        appended: for a step that appends rows to a cache, its first input: the index of the input
            with the new rows, and their axis in that and in the cache; None for other steps.
        precision: type of the arithmetic on float16 and bfloat16, where that is not float32.
        row_axes: how many of the last axes are a row, where all axes before them count rows that
            are computed one by one: inputs whose first axis is longer have an output whose
            first axis is, with more rows behind the others. None where that is not so.
    """

    kernel: str
    precision: str = ""
    row_axes: int | None = None
    in_place: Sequence[int] = ()
    values: tuple[str, ...] = ()
    elastic: tuple[int, ...] = ()
    appended: tuple[int, int, int] | None = None

    def __init__(self, inputs: Sequence[Slot], output: Slot) -> None:
        self.inputs = tuple(inputs)
        self.output = output
        self.nodes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name in errors and profiles: that of the last of its nodes."""
        return self.nodes[-1] if self.nodes else self.output.name

    @property
    def alike(self) -> Hashable:
        """The key of steps that share a `Run`, see `shared_key`; None to share none."""
        return None

    def shared_key(self, shapes: Sequence[Shape]) -> Hashable:
        """Return the key of the `Run` for inputs of these shapes; None where it is this step's own.

        Equal layers of a model have equal steps, which need not be sized one by one. Steps that
        share one are alike, and their operands have the same dtypes: sizes in bytes are part of it.
        """
        alike = self.alike
        if alike is None:
            return None
        dtypes = *[slot.dtype for slot in self.inputs], self.output.dtype
        return type(self), alike, dtypes, tuple(shapes)

    @abc.abstractmethod
    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """Return the kernel call for inputs of these shapes; `Run.call` is empty for a no-op.

        Raises:
            BackendError: shapes that do not fit the step.
        """


def elements(shape: Sequence[int]) -> int:
    """Return the number of elements of a shape."""
    return math.prod(shape)
