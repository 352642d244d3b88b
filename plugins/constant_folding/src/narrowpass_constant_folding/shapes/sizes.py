"""Arithmetic with sizes that may be known only by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """A monomial: a positive integer factor times named dimensions; its value is 0 or more.

    Attributes:
        factor: more than 0.
        symbols: names of dimensions in order, each as often as it is a factor; not empty.
    """

    factor: int
    symbols: tuple[str, ...]

    @property
    def symbol(self) -> str | None:
        """The name, where this is one dimension and nothing else."""
        return self.symbols[0] if self.factor == 1 and len(self.symbols) == 1 else None


Element = int | Size | None
"""An integer: its value, what it is in terms of dimensions, or None where neither is known."""


def named(symbol: str) -> Size:
    """Return the size of a dimension by its name."""
    return Size(1, (symbol,))


def multiply(left: Element, right: Element) -> Element:
    """Return left · right."""
    if left == 0 or right == 0:
        return 0
    if left is None or right is None:
        return None
    if isinstance(left, int) and isinstance(right, int):
        return left * right
    factor = _factor(left) * _factor(right)
    return _size(factor, Counter(_symbols(left)) + Counter(_symbols(right)))


def multiply_all(elements: Iterable[Element]) -> Element:
    """Return the sizes multiplied; 1 for none."""
    result: Element = 1
    for element in elements:
        result = multiply(result, element)
    return result


def divide(left: Element, right: Element) -> Element:
    """Return `left / right` where that is a whole number for every size of the dimensions.

    What divides is taken to be not 0.
    """
    if left is None or right is None or right == 0:
        return None
    if _factor(left) % _factor(right):
        return None
    above, below = Counter(_symbols(left)), Counter(_symbols(right))
    if below - above:
        return None
    return _size(_factor(left) // _factor(right), above - below)


def add(left: Element, right: Element) -> Element:
    """Return the sum, where it can be said."""
    if left == 0:
        return right
    if right == 0:
        return left
    if isinstance(left, int) and isinstance(right, int):
        return left + right
    if isinstance(left, Size) and isinstance(right, Size) and left.symbols == right.symbols:
        return Size(left.factor + right.factor, left.symbols)
    return None


def subtract(left: Element, right: Element) -> Element:
    """Return the difference, where it can be said."""
    if right == 0:
        return left
    if left is not None and left == right:
        return 0
    if isinstance(left, int) and isinstance(right, int):
        return left - right
    if isinstance(left, Size) and isinstance(right, Size) and left.symbols == right.symbols:
        return _size(left.factor - right.factor, Counter(left.symbols))
    return None


def is_less(left: Element, right: Element) -> bool | None:
    """Whether ``left < right``; None where that depends. Sizes are never negative."""
    if isinstance(left, int) and isinstance(right, int):
        return left < right
    if isinstance(left, int) and isinstance(right, Size) and left < 0:
        return True
    if isinstance(left, Size) and isinstance(right, int) and right <= 0:
        return False
    return False if left is not None and left == right else None


def is_equal(left: Element, right: Element) -> bool | None:
    """Whether both are the same; None where that depends."""
    if left is None or right is None:
        return None
    if left == right:
        return True
    if isinstance(left, int) and isinstance(right, int):
        return False
    number = left if isinstance(left, int) else right
    return False if isinstance(number, int) and number < 0 else None


def broadcast(left: Element, right: Element) -> Element:
    """Return the size that two dimensions have once they are broadcast against each other."""
    if left == right or right == 1:
        return left
    if left == 1:
        return right
    # One that is a number other than 1 decides: the other is the same, or 1.
    if isinstance(left, int):
        return left
    return right if isinstance(right, int) else None


def _factor(value: int | Size) -> int:
    return value if isinstance(value, int) else value.factor


def _symbols(value: int | Size) -> tuple[str, ...]:
    return () if isinstance(value, int) else value.symbols


def _size(factor: int, symbols: Counter[str]) -> Element:
    names = tuple(sorted(symbols.elements()))
    if not names:
        return factor
    return Size(factor, names) if factor > 0 else None
