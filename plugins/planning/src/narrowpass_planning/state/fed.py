"""What a session takes of its feeds to append to caches in place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self, TypeGuard

import numpy as np

from narrowpass.errors import DataError
from narrowpass_planning.plan.step import Array, Shape


@dataclass(frozen=True)
class FedMask:
    """A mask that a session derives from a feed of 0 and 1, with a column for each row of caches.

    Attributes:
        name: of the graph's new input, [batch, 1, 1, columns].
        source: the input that the caller feeds, [batch, columns].
        low: what masked columns have, where the mask is added; None for booleans.
    """

    name: str
    source: str
    low: float | None


@dataclass(frozen=True)
class Fed:
    """What a session takes of its feeds to know, and to mask, the rows of caches.

    Attributes:
        rows: the new rows: their number, or the input and the axis that have it; None where the
            model does not say.
        grown: inputs of 0 and 1, [batch, columns], with a column for each row with the new ones;
            the compiled method does not take them.
        masks: that are derived from them.
        ones: those of `grown` that must have 1 in all columns.
        counts: inputs whose elements are all the number of rows, with the new ones, and a number
            that is added.
        dropped: inputs that the compiled method does not take.
    """

    rows: int | tuple[str, int] | None = None
    grown: tuple[str, ...] = ()
    masks: tuple[FedMask, ...] = ()
    ones: tuple[str, ...] = ()
    counts: tuple[tuple[str, int], ...] = ()
    dropped: tuple[str, ...] = ()

    @property
    def derives(self) -> bool:
        """Whether feeds are read before they are fed, or are not fed at all."""
        return bool(self.grown or self.counts or self.dropped)

    def joined(self, other: Fed) -> Fed:
        """Return what both take; the new rows are those of this one."""
        return replace(
            self,
            grown=tuple(dict.fromkeys((*self.grown, *other.grown))),
            ones=(*self.ones, *other.ones),
            counts=(*self.counts, *other.counts),
        )

    def new_rows(self, feeds: Mapping[str, Any]) -> int | None:
        """Return the new rows that feeds say; None where they say none."""
        if not isinstance(self.rows, tuple):
            return self.rows
        name, axis = self.rows
        value = feeds.get(name)
        return value.shape[axis] if isinstance(value, np.ndarray) and axis < value.ndim else None

    def derive(self, feeds: Mapping[str, Any], length: int) -> dict[str, Any]:
        """Return feeds of the compiled method: masks are derived from those of 0 and 1.

        Args:
            feeds: that the caller gave.
            length: rows before the run.

        Raises:
            DataError: such a mask has another number of columns, or other numbers.
        """
        rows = self.new_rows(feeds) if self.grown or self.counts else None
        for name in self.grown:
            self._check_mask(name, feeds.get(name), length, rows)
        for name, more in self.counts:
            count = feeds.get(name)
            wanted = None if rows is None else length + rows + more
            if wanted is not None and isinstance(count, np.ndarray) and (count != wanted).any():
                raise DataError(
                    f"{name!r} is {count.reshape(-1).tolist()}; caches that are appended to in "
                    f"place have the same rows for all sequences, so that it is {wanted}: keep "
                    "sequences of other lengths in sessions of their own"
                )
        if not self.dropped:
            return dict(feeds)
        given = {name: value for name, value in feeds.items() if name not in self.dropped}
        for mask in self.masks:
            seen = feeds[mask.source][:, None, None, :] != 0
            low = mask.low
            given[mask.name] = seen if low is None else np.where(seen, _ZERO, np.float32(low))
        return given

    def _check_mask(self, name: str, mask: Any, length: int, rows: int | None) -> None:
        if not isinstance(mask, np.ndarray) or mask.ndim != 2:
            raise DataError(f"{name!r} is no array of [batch, columns]")
        if rows is not None and mask.shape[1] != length + rows:
            raise DataError(
                f"{name!r} has {mask.shape[1]} columns; it needs one for each of {length} cached "
                f"rows and of {rows} new ones"
            )
        if mask.size and (mask.min() < 0 or mask.max() > 1):
            raise DataError(f"{name!r} has other numbers than 0 and 1")
        if name in self.ones and not mask.all():
            raise DataError(
                f"{name!r} has zeros, where GroupQueryAttention would place rows otherwise than "
                "caches that are appended to in place have them: keep padded sequences in sessions "
                "of their own"
            )


_ZERO = np.float32(0)


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
