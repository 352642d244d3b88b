"""The forms of the feeds that a prepared run takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self, TypeGuard

import numpy as np

from narrowpass_planning.plan.step import Array, Shape


@dataclass(frozen=True)
class FeedForm:
    """What a prepared run takes for one input.

    Attributes:
        name: of the input.
        dtype: of the array.
        shape: of the array; the last axis is left out where it has an element for each row.
        elastic: whether it has.
    """

    name: str
    dtype: np.dtype[Any]
    shape: Shape
    elastic: bool

    @classmethod
    def of(cls, name: str, array: Array, *, elastic: bool) -> Self:
        """Return the form of an array that was fed."""
        return cls(name, array.dtype, array.shape[:-1] if elastic else array.shape, elastic)

    def fits(self, array: object, total: int) -> TypeGuard[Array]:
        """Return whether an array can be fed, for a cache of `total` rows after the run."""
        if type(array) is not np.ndarray or array.dtype != self.dtype:
            return False
        shape: Shape = array.shape
        return shape == ((*self.shape, total) if self.elastic else self.shape)
