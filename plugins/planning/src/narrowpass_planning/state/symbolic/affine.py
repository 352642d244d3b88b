"""Integers that are affine in sizes and indices, and proofs that they are not negative."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

INDEX = "narrowpass.@"
"""Begin of the symbols of indices; no size of a model has such a name."""
ROWS = "narrowpass.rows"
"""The symbol of the rows that caches have before a run; not negative. Other sizes are positive."""


@dataclass(frozen=True)
class Affine:
    """A sum of symbols with integer factors, and of a constant.

    A symbol is the name of a size, or `index` of an axis.

    Attributes:
        terms: symbols with factors that are not 0, sorted.
        constant: that is added.
    """

    terms: tuple[tuple[str, int], ...] = ()
    constant: int = 0

    @classmethod
    def of(cls, symbol: str) -> Affine:
        """Return a symbol."""
        return cls(((symbol, 1),))

    @classmethod
    def number(cls, constant: int) -> Affine:
        """Return a number."""
        return cls((), constant)

    def factor(self, symbol: str) -> int:
        """Return the factor of a symbol; 0 where it does not occur."""
        return dict(self.terms).get(symbol, 0)

    @property
    def is_number(self) -> bool:
        """Whether no symbol occurs."""
        return not self.terms

    def __add__(self, other: Affine) -> Affine:
        factors = dict(self.terms)
        for symbol, factor in other.terms:
            factors[symbol] = factors.get(symbol, 0) + factor
        kept = tuple(sorted((s, f) for s, f in factors.items() if f))
        return Affine(kept, self.constant + other.constant)

    def __sub__(self, other: Affine) -> Affine:
        return self + other.times(-1)

    def times(self, factor: int) -> Affine:
        """Return the multiple by an integer."""
        if not factor:
            return Affine()
        return Affine(tuple((s, f * factor) for s, f in self.terms), self.constant * factor)

    def plus(self, number: int) -> Affine:
        """Return the sum with an integer."""
        return Affine(self.terms, self.constant + number)

    def substitute(self, values: Mapping[str, Affine]) -> Affine:
        """Return it with symbols replaced by other affine integers."""
        found = Affine((), self.constant)
        for symbol, factor in self.terms:
            found += values.get(symbol, Affine.of(symbol)).times(factor)
        return found


Dims = tuple[Affine, ...]


def index(axis: int) -> str:
    """Return the symbol of the index along an axis, counted from the last one, which is 1."""
    return f"{INDEX}{axis}"


def never_negative(value: Affine, dims: Dims) -> bool:
    """Return whether a value is proved to be at least 0 for all elements of a tensor.

    Args:
        value: of the element.
        dims: of the tensor; its indices are below them.
    """
    ends = {
        index(len(dims) - axis): (
            dim.plus(-1) if value.factor(index(len(dims) - axis)) < 0 else Affine()
        )
        for axis, dim in enumerate(dims)
    }
    least = value.substitute(ends)
    total = least.constant
    for symbol, factor in least.terms:
        if factor < 0 or symbol.startswith(INDEX):
            return False
        total += 0 if symbol == ROWS else factor
    return total >= 0
