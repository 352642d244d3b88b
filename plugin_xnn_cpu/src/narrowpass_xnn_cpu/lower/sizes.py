"""Symbolic shapes: elements of shape vectors that follow from the graph before sizes are known."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from narrowpass_planning.graph.facts import Facts

Size = int | str | tuple[str, str, int]
"""A symbolic size: a number; the name of a dimension of the inputs; or an unknown, identified by
("dim" or "element", name of the value, index). Equal symbols have equal sizes."""

_MAX_ELEMENTS = 16
"""Longest vector whose elements are followed."""


def dimensions(value: ir.Value | None, facts: Facts) -> list[Size] | None:
    """Return the symbolic dimensions of a value; None if its rank is not known."""
    dims = facts.dims(value)
    if value is None or dims is None:
        return None
    name = value.name or ""
    known: list[Size] = [
        dim if isinstance(dim, int) or (dim and dim in facts.names) else ("dim", name, axis)
        for axis, dim in enumerate(dims)
    ]
    node = value.producer()
    if node is None or node.domain or all(isinstance(size, int | str) for size in known):
        return known
    inferred: list[Size] | None = None
    if node.op_type == "Reshape":
        inferred = reshaped(node, facts)
    elif node.op_type == "Transpose":
        given, perm = dimensions(node.inputs[0], facts), node.attributes.get("perm")
        if given is not None and perm is not None and len(given) == len(perm.as_ints()):
            inferred = [given[axis] for axis in perm.as_ints()]
    if inferred is None or len(inferred) != len(known):
        return known
    return [
        other if not isinstance(size, int) and other != -1 else size
        for size, other in zip(known, inferred, strict=True)
    ]


def elements_of(value: ir.Value | None, facts: Facts) -> list[Size] | None:
    """Return the symbolic elements of a small vector or scalar of integers; None if not known."""
    if value is None:
        return None
    if facts.is_constant(value):
        array = facts.constant(value)
        if array is None or array.size > _MAX_ELEMENTS or array.dtype.kind not in "iu":
            return None
        return [int(item) for item in array.reshape(-1)]
    node = value.producer()
    found = None if node is None or node.domain else _propagated(node, facts)
    dims = facts.dims(value)
    if dims is None or not all(isinstance(dim, int) for dim in dims):
        return found
    count = math.prod(dim for dim in dims if isinstance(dim, int))
    if found is not None:
        return found if len(found) == count else None
    return (
        [("element", value.name or "", at) for at in range(count)]
        if count <= _MAX_ELEMENTS
        else None
    )


def _propagated(node: ir.Node, facts: Facts) -> list[Size] | None:
    """Return the elements of the result of a node that moves sizes without arithmetic."""
    if node.op_type == "Shape":
        sizes = dimensions(node.inputs[0], facts)
        after = node.attributes.get("end")
        whole = slice(node.attributes.get_int("start", 0), after.as_int() if after else None)
        return None if sizes is None else sizes[whole]
    if node.op_type == "Concat":
        parts = [elements_of(given, facts) for given in node.inputs]
        return None if None in parts else [item for part in parts for item in part or ()]
    if node.op_type == "Where":
        return _where(node, facts)
    given = elements_of(node.inputs[0], facts) if node.inputs else None
    if given is None:
        return None
    if node.op_type in ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze"):
        return given
    if node.op_type == "Gather":
        at = facts.constant(node.inputs[1])
        if at is None or facts.rank(node.inputs[0]) != 1:
            return None
        fits = all(-len(given) <= index < len(given) for index in at.reshape(-1))
        return [given[int(index)] for index in at.reshape(-1)] if fits else None
    if node.op_type == "Slice" and len(node.inputs) > 2:
        bounds = [facts.constant(item) for item in node.inputs[1:3]]
        steps = facts.constant(node.inputs[4]) if len(node.inputs) > 4 else None
        if any(bound is None or bound.size != 1 for bound in bounds):
            return None
        if steps is not None and (steps.size != 1 or int(steps.reshape(-1)[0]) != 1):
            return None
        start, end = (int(bound.reshape(-1)[0]) for bound in bounds if bound is not None)
        return given[start:end]
    return None


def _where(node: ir.Node, facts: Facts) -> list[Size] | None:
    """Return the elements of Where(a == b, x, y), if each a == b is decidable."""
    equal = None if node.inputs[0] is None else node.inputs[0].producer()
    if equal is None or equal.op_type != "Equal" or equal.domain:
        return None
    a, b = (elements_of(value, facts) for value in equal.inputs)
    x, y = (elements_of(value, facts) for value in node.inputs[1:])
    if a is None or b is None or x is None or y is None:
        return None
    if not len(a) == len(b) == len(x) == len(y):
        return None
    result = []
    for one, other, chosen, else_ in zip(a, b, x, y, strict=True):
        same = _equal(one, other)
        if same is None:
            return None
        result.append(chosen if same else else_)
    return result


def _equal(one: Size, other: Size) -> bool | None:
    """Return whether two sizes are equal; None if that is not known."""
    if one == other:
        return True
    if isinstance(one, int) and isinstance(other, int):
        return False
    number = one if isinstance(one, int) else other
    size = other if isinstance(one, int) else one
    is_dimension = isinstance(size, str) or (not isinstance(size, int) and size[0] == "dim")
    return False if number == -1 and is_dimension else None  # no dimension is below 0


def reshaped(node: ir.Node, facts: Facts) -> list[Size] | None:
    """Return the symbolic shape of the result of a Reshape; -1 stays if it cannot be inferred."""
    copies = not node.attributes.get_int("allowzero", 0)
    return reshaped_to(node.inputs[0], node.inputs[1], facts, copies=copies)


def reshaped_to(
    value: ir.Value | None, target: ir.Value | None, facts: Facts, *, copies: bool
) -> list[Size] | None:
    """Return the symbolic shape of a value after a Reshape to a target.

    Args:
        value: the input of the Reshape.
        target: the target shape.
        facts: of the graph.
        copies: whether 0 copies the dimension of the input (``allowzero`` is 0).
    """
    shape = elements_of(target, facts)
    given = dimensions(value, facts)
    if shape is None or (0 in shape and not copies):
        return None
    result: list[Size] = []
    for axis, size in enumerate(shape):
        if size == 0 and (given is None or axis >= len(given)):
            return None
        result.append(given[axis] if size == 0 and given is not None else size)
    if result.count(-1) == 1 and given is not None:
        remaining = _remaining(given, [size for size in result if size != -1])
        if remaining is not None:
            result[result.index(-1)] = remaining
    return result


def _remaining(given: Sequence[Size], others: Sequence[Size]) -> Size | None:
    """Return the size of the -1 in a Reshape, given all others; None if it is no single symbol."""
    rest = [size for size in given if not isinstance(size, int)]
    for size in others:
        if isinstance(size, int):
            continue
        if size not in rest:
            return None
        rest.remove(size)
    before, after = (
        math.prod(size for size in sizes if isinstance(size, int)) for sizes in (given, others)
    )
    if not before or not after or before % after:
        return None
    if rest:
        return rest[0] if len(rest) == 1 and before == after else None
    return before // after


def keeps_leading(
    reshape: ir.Node, given: Sequence[Size], last: Sequence[Size], facts: Facts
) -> bool:
    """Return whether a Reshape keeps leading axes and reshapes all others to `last`.

    Args:
        reshape: the node.
        given: the sizes of the leading axes.
        last: the expected sizes of the other axes in the target.
        facts: of the graph.
    """
    target = elements_of(reshape.inputs[1], facts)
    if target is None or len(target) != len(given) + len(last) or target.count(-1) > 1:
        return False
    copies = not reshape.attributes.get_int("allowzero", 0)
    leading = zip(target, given, strict=False)
    kept = all(size in (-1, other) or (size == 0 and copies) for size, other in leading)
    behind = zip(target[len(given) :], last, strict=True)
    return kept and all(size in (-1, other) for size, other in behind)


def element_count(sizes: Sequence[Size]) -> int | None:
    """Return the number of elements of a symbolic shape; None if not all sizes are numbers."""
    numbers = [size for size in sizes if isinstance(size, int)]
    return math.prod(numbers) if len(numbers) == len(sizes) else None
