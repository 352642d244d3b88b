"""Symbolic tensors: their dimensions, and each element as a function of its indices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from narrowpass_planning.state.symbolic.affine import INDEX, Affine, Dims, index
from narrowpass_planning.state.symbolic.elements import Element, substitute, symbols

MOST_ITEMS = 64
"""Elements of the longest vector that is listed."""


@dataclass(frozen=True)
class Tensor:
    """A tensor whose elements are known: listed, or as a function of indices.

    Attributes:
        dims: its dimensions.
        element: that of any indices, whose symbols are those of `index`; None where they are
            listed and differ.
        items: of a scalar or a vector, one by one; None where they are not listed.
    """

    dims: Dims
    element: Element | None
    items: tuple[Element, ...] | None = None

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.dims)

    def symbols(self) -> frozenset[str]:
        """Return the symbols that dimensions and elements depend on, without indices."""
        parts: list[Element] = [*self.dims, *(self.items or ())]
        if self.element is not None:
            parts.append(self.element)
        found: frozenset[str] = frozenset().union(*map(symbols, parts))
        return frozenset(symbol for symbol in found if not symbol.startswith(INDEX))


@dataclass(frozen=True)
class Flat:
    """The elements of a tensor in row-major order along one axis; all others have size 1.

    The axis has as many elements as all axes of the tensor, which is not affine in their sizes.

    Attributes:
        tensor: that has the elements.
        rank: the number of axes.
        axis: the one with the elements.
    """

    tensor: Tensor
    rank: int
    axis: int


def listed(items: Sequence[Element], rank: int = 1) -> Tensor:
    """Return a scalar or a vector of these elements."""
    given = tuple(items)
    same = len({(type(item), item) for item in given}) == 1
    dims = () if rank == 0 else (Affine.number(len(given)),)
    return Tensor(dims, given[0] if same else None, given)


def function(dims: Dims, element: Element) -> Tensor:
    """Return a tensor from the element of any indices."""
    rank = len(dims)
    single = {index(rank - axis): Affine() for axis, dim in enumerate(dims) if dim == ONE}
    element = substitute(element, single) if single else element
    if rank > 1 or (rank == 1 and not dims[0].is_number):
        return Tensor(dims, element)
    count = dims[0].constant if rank else 1
    if count > MOST_ITEMS:
        return Tensor(dims, element)
    items = [substitute(element, {index(1): Affine.number(at)}) for at in range(count)]
    return Tensor(dims, element, tuple(items))


def broadcast(one: Dims, other: Dims) -> Dims | None:
    """Return the dimensions that two tensors broadcast to; None where that is not known."""
    rank = max(len(one), len(other))
    found = []
    for a, b in zip(*(((ONE,) * (rank - len(dims)) + dims) for dims in (one, other)), strict=True):
        if a != b and ONE not in (a, b):
            return None
        found.append(b if a == ONE else a)
    return tuple(found)


ONE = Affine.number(1)


def element_of(item: bool | float) -> Element:
    """Return an element that is a constant."""
    if isinstance(item, bool):
        return item
    return Affine.number(item) if isinstance(item, int) else float(item)
