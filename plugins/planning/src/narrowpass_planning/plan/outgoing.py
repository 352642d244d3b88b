"""Where the outputs of a bound partition come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from narrowpass_planning.plan.step import Array, Shape, Slot


@dataclass(frozen=True)
class Outgoing:
    """Where an output comes from, for who computes it elsewhere than in an array of its own.

    Attributes:
        shape: of the array.
        dtype: of the array.
        size: its bytes.
        binds: of the buffers that lie in the array, where it is computed there; None where it is
            copied.
        root: the slot in whose memory it is; None for a value that the partition has not.
        offset: the byte in that from which it lies there.
        fed: the input that it is a part of; empty where it is part of none.
        array: the bytes that it is copied from, where these are neither fed nor another output.
        fixed: whether these never change.
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
