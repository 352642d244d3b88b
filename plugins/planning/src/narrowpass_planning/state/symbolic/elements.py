"""Elements of symbolic tensors: numbers, conditions on indices, and choices between elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from narrowpass_planning.state.symbolic.affine import Affine, Dims, never_negative


@dataclass(frozen=True)
class AtLeast:
    """The condition that an affine integer is at least 0."""

    value: Affine


@dataclass(frozen=True)
class FedIsOne:
    """The condition that the element of a feed, which is 0 or 1, is 1.

    Attributes:
        name: of the graph's input.
        at: the index along each of its axes.
    """

    name: str
    at: tuple[Affine, ...]


@dataclass(frozen=True)
class Not:
    """The negation of the element of a feed."""

    value: FedIsOne


@dataclass(frozen=True)
class Every:
    """The condition that all of several conditions hold."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True)
class Some:
    """The condition that at least one of several conditions holds."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True)
class Linear:
    """The integer `row * size + column`, of which `row` depends on indices and `size` does not.

    `linear` returns an affine integer where it is one.
    """

    row: Affine
    size: Affine
    column: Affine


@dataclass(frozen=True)
class Choice:
    """One of two elements, as a condition says."""

    condition: Condition
    yes: Element
    no: Element


Condition = bool | AtLeast | FedIsOne | Not | Every | Some
CONDITIONS = (bool, AtLeast, FedIsOne, Not, Every, Some)
Element = Affine | Linear | float | Condition | Choice
"""Integers are `Affine`; a `float` is a constant."""


def linear(row: Affine, size: Affine, column: Affine) -> Element:
    """Return `row * size + column`, which is affine where one of the factors is a number."""
    if row.is_number:
        return size.times(row.constant) + column
    return row.times(size.constant) + column if size.is_number else Linear(row, size, column)


def at_least(value: Affine) -> Condition:
    """Return the condition that an affine integer is at least 0."""
    return value.constant >= 0 if value.is_number else AtLeast(value)


def negate(condition: Condition) -> Condition:
    """Return the negation of a condition."""
    if isinstance(condition, bool):
        return not condition
    if isinstance(condition, AtLeast):
        return at_least(condition.value.times(-1).plus(-1))
    if isinstance(condition, FedIsOne):
        return Not(condition)
    if isinstance(condition, Not):
        return condition.value
    parts = tuple(map(negate, condition.parts))
    return Some(parts) if isinstance(condition, Every) else Every(parts)


def every(*conditions: Condition) -> Condition:
    """Return the conjunction of conditions."""
    parts: list[Condition] = []
    for condition in conditions:
        if condition is False:
            return False
        if condition is not True:
            parts += condition.parts if isinstance(condition, Every) else [condition]
    kept = tuple(dict.fromkeys(parts))
    return True if not kept else kept[0] if len(kept) == 1 else Every(kept)


def some(*conditions: Condition) -> Condition:
    """Return the disjunction of conditions."""
    return negate(every(*map(negate, conditions)))


def simplified(condition: Condition, dims: Dims) -> Condition:
    """Return a condition without the parts that follow from the ranges of indices, or from others.

    Args:
        condition: on the element of a tensor.
        dims: of the tensor.
    """
    if isinstance(condition, AtLeast):
        if never_negative(condition.value, dims):
            return True
        return not never_negative(condition.value.times(-1).plus(-1), dims) and condition
    if isinstance(condition, Some):
        return negate(simplified(negate(condition), dims))
    if not isinstance(condition, Every):
        return condition
    whole = every(*(simplified(part, dims) for part in condition.parts))
    if not isinstance(whole, Every):
        return whole
    kept = list(whole.parts)
    for part in whole.parts:
        if any(other is not part and _implies(other, part, dims) for other in kept):
            kept.remove(part)
    return every(*kept)


def _implies(one: Condition, other: Condition, dims: Dims) -> bool:
    if not isinstance(other, AtLeast) or not isinstance(one, AtLeast):
        return False
    return never_negative(other.value - one.value, dims)


def chosen(condition: Condition, yes: Element, no: Element) -> Element:
    """Return the element that a condition chooses."""
    if isinstance(condition, bool):
        return yes if condition else no
    if isinstance(yes, CONDITIONS) and isinstance(no, CONDITIONS):
        if no is True:
            return some(negate(condition), yes)
        if yes is True:
            return some(condition, no)
        return some(every(condition, yes), every(negate(condition), no))
    return yes if yes == no and type(yes) is type(no) else Choice(condition, yes, no)


def map_leaves(element: Element, function: Callable[[Element], Element | None]) -> Element | None:
    """Return an element with a function applied to what it chooses between; None where it fails."""
    if not isinstance(element, Choice):
        return function(element)
    yes, no = (map_leaves(part, function) for part in (element.yes, element.no))
    return None if yes is None or no is None else chosen(element.condition, yes, no)


def substitute(element: Element, values: Mapping[str, Affine]) -> Element:
    """Return an element with symbols replaced; conditions on numbers are decided."""
    if isinstance(element, Affine):
        return element.substitute(values)
    if isinstance(element, Linear):
        parts = element.row, element.size, element.column
        row, size, column = (part.substitute(values) for part in parts)
        return linear(row, size, column)
    if isinstance(element, Choice):
        condition = substitute_condition(element.condition, values)
        return chosen(condition, substitute(element.yes, values), substitute(element.no, values))
    return element if isinstance(element, float) else substitute_condition(element, values)


def substitute_condition(condition: Condition, values: Mapping[str, Affine]) -> Condition:
    """Return a condition with symbols replaced; that on a number is decided."""
    if isinstance(condition, AtLeast):
        return at_least(condition.value.substitute(values))
    if isinstance(condition, FedIsOne):
        return FedIsOne(condition.name, tuple(at.substitute(values) for at in condition.at))
    if isinstance(condition, Not):
        return negate(substitute_condition(condition.value, values))
    if isinstance(condition, Every):
        return every(*(substitute_condition(part, values) for part in condition.parts))
    if isinstance(condition, Some):
        return some(*(substitute_condition(part, values) for part in condition.parts))
    return condition


def symbols(element: Element) -> frozenset[str]:
    """Return the symbols that an element depends on."""
    if isinstance(element, Affine):
        return frozenset(symbol for symbol, _ in element.terms)
    if isinstance(element, Linear):
        return symbols(element.row) | symbols(element.size) | symbols(element.column)
    if isinstance(element, AtLeast | Not):
        return symbols(element.value)
    if isinstance(element, FedIsOne):
        return frozenset().union(*map(symbols, element.at))
    if isinstance(element, Every | Some):
        return frozenset().union(*map(symbols, element.parts))
    if isinstance(element, Choice):
        return symbols(element.condition) | symbols(element.yes) | symbols(element.no)
    return frozenset()
