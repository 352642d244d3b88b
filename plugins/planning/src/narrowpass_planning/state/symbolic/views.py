"""Dimensions of views: values that have the elements of another one in other shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from narrowpass_planning.state.symbolic.affine import Affine, Dims
from narrowpass_planning.state.symbolic.tensor import ONE, broadcast

UNKNOWN = Affine.number(-1)


def transposed(dims: Dims, perm: Sequence[int]) -> Dims:
    """Return dimensions in another order."""
    return tuple(dims[axis] for axis in perm)


def unsqueezed(dims: Dims, axes: Sequence[int]) -> Dims:
    """Return dimensions with axes of size 1 inserted."""
    rank = len(dims) + len(axes)
    places = {axis % rank for axis in axes}
    remaining = iter(dims)
    return tuple(ONE if axis in places else next(remaining) for axis in range(rank))


def expanded(dims: Dims, target: Sequence[Affine]) -> Dims | None:
    """Return dimensions broadcast to a shape."""
    return broadcast(dims, tuple(target))


def reshaped(dims: Dims, target: Sequence[Affine], *, copies: bool) -> Dims | None:
    """Return the dimensions of a Reshape; None where one that follows from all others is unknown.

    Args:
        dims: of the operand.
        target: the shape.
        copies: whether 0 is the dimension of the operand.
    """
    shape = [
        dims[axis] if size == Affine() and copies and axis < len(dims) else size
        for axis, size in enumerate(target)
    ]
    if UNKNOWN not in shape:
        return tuple(shape)
    rest = [dim for dim in dims if not dim.is_number]
    for size in shape:
        if not size.is_number:
            if size not in rest:
                return None
            rest.remove(size)
    before = math.prod(dim.constant for dim in dims if dim.is_number)
    after = math.prod(s.constant for s in shape if s.is_number and s != UNKNOWN)
    if len(rest) > 1 or not after or before % after or shape.count(UNKNOWN) > 1:
        return None
    found = rest[0].times(before // after) if rest else Affine.number(before // after)
    return tuple(found if size == UNKNOWN else size for size in shape)
