"""The memory from which the outputs of a bound partition are returned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from narrowpass_planning.plan.step import Array, Shape, Slot


@dataclass(frozen=True)
class OutputSource:
    """The memory of an output, for a caller that redirects it, such as a native loop.

    Attributes:
        shape: of the array.
        dtype: of the array.
        size: its bytes.
        binds: the buffers within the array, where it is computed in place; None where it is copied.
        root: the slot whose memory it is copied from; None for a value outside of the partition.
        offset: its first byte in that memory.
        fed: the input that it is a view of; empty where there is none.
        array: the bytes that it is copied from, where these are no input and no other output.
        fixed: whether those bytes never change.
    """

    shape: Shape
    dtype: np.dtype[Any]
    size: int
    binds: list[tuple[int, int]] | None = None
    root: Slot | None = None
    offset: int = 0
    fed: str = ""
    array: Array | None = None
    fixed: bool = False
