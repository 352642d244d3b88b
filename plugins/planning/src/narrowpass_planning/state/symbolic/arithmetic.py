"""Elementwise operators on symbolic elements."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping

from narrowpass_planning.state.symbolic.affine import INDEX, Affine
from narrowpass_planning.state.symbolic.elements import (
    CONDITIONS,
    Choice,
    Condition,
    Element,
    Linear,
    at_least,
    chosen,
    every,
    linear,
    map_leaves,
    negate,
    some,
)

Number = Affine | Linear | float
Leaf = Callable[[Number, Number], Element | None]

_ONE, _ZERO = Affine.number(1), Affine.number(0)


def as_number(element: Element) -> Element:
    """Return a condition as 1 or 0; other elements as they are."""
    return chosen(element, _ONE, _ZERO) if isinstance(element, CONDITIONS) else element


def as_condition(element: Element) -> Condition | None:
    """Return the condition that an element is not 0."""

    def leaf(value: Element) -> Element | None:
        if isinstance(value, CONDITIONS):
            return value
        if isinstance(value, Affine):
            return some(at_least(value.plus(-1)), at_least(value.times(-1).plus(-1)))
        return value != 0.0 if isinstance(value, float) else None

    found = map_leaves(element, leaf)
    return found if isinstance(found, CONDITIONS) else None


def constant_of(element: Element) -> float | None:
    """Return the value of a constant number."""
    if isinstance(element, Affine):
        return float(element.constant) if element.is_number else None
    return element if isinstance(element, float) else None


def _combine(one: Element, other: Element, leaf: Leaf) -> Element | None:
    one, other = as_number(one), as_number(other)
    if isinstance(one, Choice):
        return map_leaves(one, lambda part: _combine(part, other, leaf))
    if isinstance(other, Choice):
        return map_leaves(other, lambda part: _combine(one, part, leaf))
    if not isinstance(one, Number) or not isinstance(other, Number):
        return None
    return leaf(one, other)


def _floats(function: Callable[[float, float], float], one: Number, other: Number) -> float | None:
    numbers = constant_of(one), constant_of(other)
    if numbers[0] is None or numbers[1] is None:
        return None
    found = function(numbers[0], numbers[1])
    return None if found != found else found  # NaN


def _add(one: Number, other: Number) -> Element | None:
    if isinstance(one, Affine) and isinstance(other, Affine):
        return one + other
    if isinstance(one, Affine) and isinstance(other, Linear):
        one, other = other, one
    if isinstance(one, Linear) and isinstance(other, Affine):
        return linear(one.row, one.size, one.column + other)
    return _floats(operator.add, one, other)


def _subtract(one: Number, other: Number) -> Element | None:
    if isinstance(one, Affine) and isinstance(other, Affine):
        return one - other
    return _floats(operator.sub, one, other)


def _multiply(one: Number, other: Number) -> Element | None:
    if isinstance(one, Affine) and isinstance(other, Affine):
        if one.is_number:
            return other.times(one.constant)
        if other.is_number:
            return one.times(other.constant)
        row, size = (one, other) if _indexed(one) else (other, one)
        return linear(row, size, Affine()) if _indexed(row) and not _indexed(size) else None
    return _floats(operator.mul, one, other)


def _indexed(value: Affine) -> bool:
    return any(symbol.startswith(INDEX) for symbol, _ in value.terms)


def _compare(test: Callable[[Affine], Condition], name: str) -> Leaf:
    def leaf(one: Number, other: Number) -> Element | None:
        if isinstance(one, Affine) and isinstance(other, Affine):
            return test(one - other)
        numbers = constant_of(one), constant_of(other)
        if numbers[0] is None or numbers[1] is None:
            return None
        return bool(getattr(operator, name)(numbers[0], numbers[1]))

    return leaf


def _zero(value: Affine) -> Condition:
    return every(at_least(value), at_least(value.times(-1)))


BINARY: Mapping[str, Leaf] = {
    "Add": _add,
    "Sub": _subtract,
    "Mul": _multiply,
    "Greater": _compare(lambda x: at_least(x.plus(-1)), "gt"),
    "GreaterOrEqual": _compare(at_least, "ge"),
    "Less": _compare(lambda x: at_least(x.times(-1).plus(-1)), "lt"),
    "LessOrEqual": _compare(lambda x: at_least(x.times(-1)), "le"),
    "Equal": _compare(_zero, "eq"),
}


def binary(op_type: str, one: Element, other: Element) -> Element | None:
    """Return the result of a binary operator for two elements; None where it is not known."""
    if op_type in ("And", "Or"):
        conditions = as_condition(one), as_condition(other)
        if conditions[0] is None or conditions[1] is None:
            return None
        return (every if op_type == "And" else some)(conditions[0], conditions[1])
    found = _combine(one, other, BINARY[op_type])
    if op_type not in ("Add", "Sub", "Mul") and isinstance(found, Choice):
        return None
    return found


def logical_not(element: Element) -> Element | None:
    """Return the negation of a boolean."""
    condition = as_condition(element)
    return None if condition is None else negate(condition)
