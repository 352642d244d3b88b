"""Operators that move elements of symbolic tensors."""

from __future__ import annotations

from collections.abc import Sequence

from narrowpass_planning.state.symbolic.affine import Affine, Dims, index, never_negative
from narrowpass_planning.state.symbolic.elements import (
    Choice,
    Element,
    Linear,
    at_least,
    chosen,
    substitute,
)
from narrowpass_planning.state.symbolic.tensor import ONE, Flat, Tensor, broadcast, function, listed


def integers(tensor: Tensor | None) -> list[Affine] | None:
    """Return the elements of a listed tensor of integers."""
    if tensor is None or tensor.items is None:
        return None
    found = [item for item in tensor.items if isinstance(item, Affine)]
    return found if len(found) == len(tensor.items) else None


def numbers(tensor: Tensor | None) -> list[int] | None:
    """Return the elements of a listed tensor of constant integers."""
    found = integers(tensor)
    if found is None or not all(item.is_number for item in found):
        return None
    return [item.constant for item in found]


def expand(tensor: Tensor, target: Sequence[Affine]) -> Tensor | None:
    """Return a tensor broadcast to a shape."""
    dims = broadcast(tensor.dims, tuple(target))
    return None if dims is None or tensor.element is None else function(dims, tensor.element)


def reshape(tensor: Tensor, target: Sequence[Affine]) -> Tensor | None:
    """Return a tensor in a shape that inserts or removes axes of size 1."""
    shape = [
        tensor.dims[axis] if size == Affine() and axis < tensor.rank else size
        for axis, size in enumerate(target)
    ]
    rest = [dim for dim in tensor.dims if dim != ONE]
    wide = [size for size in shape if size != ONE]
    unknown = Affine.number(-1)
    if wide.count(unknown) == 1 and len(wide) - 1 == len(rest):
        shape[shape.index(unknown)] = ONE
        wide.remove(unknown)
    if len(wide) != len(rest):
        return None
    if any(a not in (b, unknown) for a, b in zip(wide, rest, strict=True)):
        return None
    remaining = iter(rest)
    dims = tuple(ONE if size == ONE else next(remaining) for size in shape)
    return _with_axes(tensor, dims)


def _with_axes(tensor: Tensor, dims: Dims) -> Tensor | None:
    """Return a tensor with other axes of size 1; the order of the others stays."""
    if tensor.items is not None and len(dims) < 2:
        return listed(tensor.items, len(dims))
    if tensor.element is None:
        return None
    old, new = (
        [len(each) - axis for axis, dim in enumerate(each) if dim != ONE]
        for each in (tensor.dims, dims)
    )
    if len(old) != len(new):
        return None
    moved = {index(a): Affine.of(index(b)) for a, b in zip(old, new, strict=True)}
    return function(dims, substitute(tensor.element, moved))


def unsqueeze(tensor: Tensor, axes: Sequence[int]) -> Tensor | None:
    """Return a tensor with axes of size 1 inserted."""
    rank = tensor.rank + len(axes)
    places = {axis % rank for axis in axes}
    remaining = iter(tensor.dims)
    dims = tuple(ONE if axis in places else next(remaining) for axis in range(rank))
    return _with_axes(tensor, dims)


def squeeze(tensor: Tensor, axes: Sequence[int] | None) -> Tensor | None:
    """Return a tensor without axes of size 1."""
    gone = {a % tensor.rank for a in axes or ()} if axes is not None and tensor.rank else set()
    kept = [
        dim
        for axis, dim in enumerate(tensor.dims)
        if not (axis in gone if axes is not None else dim == ONE)
    ]
    return _with_axes(tensor, tuple(kept))


def transpose(tensor: Tensor, perm: Sequence[int]) -> Tensor | None:
    """Return a tensor with its axes in another order."""
    if tensor.element is None:
        return None
    rank = tensor.rank
    moved = {index(rank - old): Affine.of(index(rank - new)) for new, old in enumerate(perm)}
    return function(tuple(tensor.dims[axis] for axis in perm), substitute(tensor.element, moved))


def part(tensor: Tensor, axis: int, start: Affine, end: Affine) -> Tensor | None:
    """Return the elements from `start` to `end`, without it, along an axis."""
    size = tensor.dims[axis]
    start, end = _from_front(start, size), _from_front(end, size)
    if size.is_number and start.is_number and end.is_number and tensor.items is not None:
        return listed(tensor.items[start.constant : end.constant])
    if not never_negative(size - end, ()):
        if not never_negative(end - size, ()):
            return None
        end = size
    if (
        tensor.element is None
        or not never_negative(start, ())
        or not never_negative(end - start, ())
    ):
        return None
    dims = (*tensor.dims[:axis], end - start, *tensor.dims[axis + 1 :])
    at = index(tensor.rank - axis)
    return function(dims, substitute(tensor.element, {at: Affine.of(at) + start}))


def _from_front(at: Affine, size: Affine) -> Affine:
    """Return a place counted from the front, where a negative one is counted from the end."""
    if not at.is_number or at.constant >= 0:
        return at
    place = size + at
    return Affine.number(max(place.constant, 0)) if place.is_number else place


def gather(data: Tensor, indices: Tensor, axis: int) -> Tensor | None:
    """Return the elements at indices along an axis, of a vector or any tensor."""
    axis %= data.rank
    chosen_items = numbers(indices)
    if data.items is not None and chosen_items is not None and indices.rank < 2:
        count = len(data.items)
        if not all(-count <= at < count for at in chosen_items):
            return None
        return listed([data.items[at] for at in chosen_items], indices.rank)
    at = indices.element
    if data.element is None or not isinstance(at, Affine):
        return None
    if at.is_number and at.constant < 0:
        at = at + data.dims[axis]
    behind = data.rank - 1 - axis
    at = at.substitute({index(i): Affine.of(index(i + behind)) for i in range(1, indices.rank + 1)})
    moved = {
        index(data.rank - before): Affine.of(index(data.rank - before + indices.rank - 1))
        for before in range(axis)
    }
    dims = (*data.dims[:axis], *indices.dims, *data.dims[axis + 1 :])
    return function(dims, substitute(data.element, {**moved, index(behind + 1): at}))


def flatten(tensor: Tensor, target: Sequence[Affine]) -> Flat | None:
    """Return a tensor in a shape with one axis for all elements, -1, and others of size 1."""
    rest = [size for size in target if size != ONE]
    if tensor.element is None or rest != [Affine.number(-1)]:
        return None
    return Flat(tensor, len(target), target.index(rest[0]))


def gather_flat(data: Flat, indices: Tensor, axis: int) -> Tensor | None:
    """Return the elements at row-major indices into a tensor with two axes that are not 1.

    An index is `row * size + column`: where the size is that of the second axis, and the row and
    the column are proved to be below those of the tensor, it is that of the element [row, column].
    """
    at, tensor = indices.element, data.tensor
    wide = [axis for axis, dim in enumerate(tensor.dims) if dim != ONE]
    if axis % data.rank != data.axis or not isinstance(at, Linear) or len(wide) != 2:
        return None
    rows, columns = (tensor.dims[axis] for axis in wide)
    if at.size != columns or tensor.element is None:
        return None
    for place, size in ((at.row, rows), (at.column, columns)):
        below = size.plus(-1) - place
        if not never_negative(place, indices.dims) or not never_negative(below, indices.dims):
            return None
    behind = data.rank - 1 - data.axis
    shifted = {index(i): Affine.of(index(i + behind)) for i in range(1, indices.rank + 1)}
    moved = {
        index(tensor.rank - axis): place.substitute(shifted)
        for axis, place in zip(wide, (at.row, at.column), strict=True)
    }
    dims = (*(ONE,) * data.axis, *indices.dims, *(ONE,) * behind)
    return function(dims, substitute(tensor.element, moved))


def gather_nd(data: Tensor, indices: Tensor) -> Tensor | None:
    """Return the elements whose indices along the first axes are in the last axis of `indices`."""
    if indices.rank < 1 or not indices.dims[-1].is_number or data.element is None:
        return None
    count = indices.dims[-1].constant
    behind = data.rank - count
    found: dict[str, Affine] = {}
    for axis in range(count):
        element = indices.items[axis] if indices.items is not None else indices.element
        if element is None:
            return None
        at = substitute(element, {index(1): Affine.number(axis)})
        if not isinstance(at, Affine):
            return None
        moves = {index(i): Affine.of(index(i - 1 + behind)) for i in range(2, indices.rank + 1)}
        found[index(data.rank - axis)] = at.substitute(moves)
    dims = (*indices.dims[:-1], *data.dims[count:])
    return function(dims, substitute(data.element, found))


def concat(parts: Sequence[Tensor], axis: int) -> Tensor | None:
    """Return tensors one behind the other along an axis."""
    first = parts[0]
    axis %= first.rank
    if first.rank == 1 and all(each.items is not None for each in parts):
        return listed([item for each in parts for item in each.items or ()])
    at, end = Affine.of(index(first.rank - axis)), Affine()
    element: Element | None = None
    pieces: list[tuple[Affine, Element]] = []
    for each in parts:
        others = [(*t.dims[:axis], *t.dims[axis + 1 :]) for t in (first, each)]
        if each.element is None or each.rank != first.rank or others[0] != others[1]:
            return None
        pieces.append((end, substitute(each.element, {at.terms[0][0]: at - end})))
        end += each.dims[axis]
    for start, piece in pieces:
        element = piece if element is None else chosen(at_least(at - start), piece, element)
    if element is None:
        return None
    return function((*first.dims[:axis], end, *first.dims[axis + 1 :]), element)


def triangle(tensor: Tensor, diagonal: Affine, *, upper: bool) -> Tensor | None:
    """Return a tensor with zeros on one side of a diagonal of its last two axes."""
    if tensor.element is None:
        return None
    beyond = Affine.of(index(1)) - Affine.of(index(2)) - diagonal
    kept = at_least(beyond) if upper else at_least(beyond.times(-1))
    zero: Element = False if isinstance(tensor.element, bool) else Affine()
    if isinstance(tensor.element, Choice | Affine | Linear | float | bool):
        return function(tensor.dims, chosen(kept, tensor.element, zero))
    return function(tensor.dims, chosen(kept, tensor.element, False))
