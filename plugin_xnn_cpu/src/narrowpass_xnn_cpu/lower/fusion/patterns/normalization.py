"""Patterns of layer and RMS normalization, as exporters write them without the operators.

All compute sqrt(mean(d²) + epsilon), for d = x or x - mean(x). Exporters divide by it or multiply
by its reciprocal; the scale may be applied before that, and some add bias - mean · factor instead
of subtracting the mean. Casts that do not round are skipped, as values between are float32 here. So
are casts to the narrow dtype of the next operator, of values no larger than the rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir

from narrowpass_planning.graph.facts import Facts
from narrowpass_xnn_cpu.lower.fusion.matching import (
    Group,
    equals_scalar,
    is_downcast,
    is_exact_upcast,
    only_read_within,
    producer,
    skip_casts,
    split_constant,
)


@dataclass
class _Rows:
    """The rows that are normalized.

    Attributes:
        x: the rows.
        mean: of each row; None where it is not subtracted.
        epsilon: added to the mean of squares.
        width: of a row.
        nodes: that compute the root and its operand.
        centred: values that are x - mean.
    """

    x: ir.Value
    mean: ir.Value | None
    epsilon: float
    width: int
    nodes: list[ir.Node] = field(default_factory=list)
    centred: list[ir.Value] = field(default_factory=list)


def match(root: ir.Node, facts: Facts, _version: int) -> Group | None:
    """Match a normalization at its root: Sqrt, or Pow with an exponent of -0.5."""
    inverse = root.op_type == "Pow"
    if inverse and not equals_scalar(facts, root.inputs[1], -0.5):
        return None
    rows = _rows(root, facts)
    if rows is None:
        return None
    rows.nodes.append(root)
    factor = root.outputs[0]
    if not inverse:
        user = facts.only_user(factor)
        if user is None or user.domain:
            return None
        if user.op_type == "Div" and user.inputs[1] is factor:
            if _is_numerator(user.inputs[0], rows, facts):
                return _match_scale(rows, [user], facts)
            if not equals_scalar(facts, user.inputs[0], 1.0):
                return None
        elif user.op_type != "Reciprocal":
            return None
        rows.nodes.append(user)
        factor = user.outputs[0]
    return _match_multiplied(rows, factor, facts)


def _rows(root: ir.Node, facts: Facts) -> _Rows | None:
    """Match mean(d²) + epsilon before a root."""
    add = producer(skip_casts(root.inputs[0], facts), "Add")
    shifted = None if add is None else split_constant(add, facts)
    if add is None or shifted is None:
        return None
    reduce = producer(skip_casts(shifted[0], facts), "ReduceMean")
    square = None if reduce is None else producer(skip_casts(reduce.inputs[0], facts), "Mul", "Pow")
    if reduce is None or square is None or not _reduces_last_axis(reduce, facts):
        return None
    if square.op_type == "Pow" and not equals_scalar(facts, square.inputs[1], 2.0):
        return None
    if square.op_type == "Mul" and square.inputs[0] is not square.inputs[1]:
        return None
    operand = square.inputs[0]
    width = (facts.dims(operand) or (None,))[-1]
    if operand is None or not isinstance(width, int) or width < 1:
        return None
    nodes = [square, reduce, add]
    less = producer(skip_casts(operand, facts), "Sub")
    mean = (
        None
        if less is None
        else producer(skip_casts(less.inputs[1], facts, narrowed=True), "ReduceMean")
    )
    if less is not None and mean is not None and _reduces_last_axis(mean, facts):
        x = skip_casts(mean.inputs[0], facts)
        if x is not None and skip_casts(less.inputs[0], facts) is x:
            nodes = [mean, less, *nodes]
            return _Rows(x, mean.outputs[0], shifted[1], width, nodes, [less.outputs[0]])
    x = skip_casts(operand, facts)
    return None if x is None else _Rows(x, None, shifted[1], width, nodes)


def _reduces_last_axis(reduce: ir.Node, facts: Facts) -> bool:
    """Return whether a ReduceMean reduces the last axis only and keeps it."""
    rank = facts.rank(reduce.inputs[0])
    if rank is None or not reduce.attributes.get_int("keepdims", 1):
        return False
    given = reduce.inputs[1] if len(reduce.inputs) > 1 else None
    listed = reduce.attributes.get("axes")
    if given is not None:
        array = facts.constant(given)
        axes = [] if array is None else [int(axis) for axis in array.reshape(-1)]
    else:
        axes = [] if listed is None else list(listed.as_ints())
    return axes in ([-1], [rank - 1])


def _is_numerator(value: ir.Value | None, rows: _Rows, facts: Facts) -> bool:
    """Return whether a value is d, the numerator of the normalization."""
    behind = skip_casts(value, facts)
    if rows.mean is None:
        return behind is rows.x
    if behind in rows.centred:
        return True
    less = producer(behind, "Sub")  # some exporters subtract the mean twice
    if less is None or skip_casts(less.inputs[1], facts, narrowed=True) is not rows.mean:
        return False
    if skip_casts(less.inputs[0], facts) is not rows.x:
        return False
    rows.nodes.insert(0, less)
    rows.centred.append(less.outputs[0])
    return True


def _match_multiplied(rows: _Rows, factor: ir.Value, facts: Facts) -> Group | None:
    """Match the Mul of d by the reciprocal of the root."""
    user = facts.only_user(factor)
    if user is None or user.op_type != "Mul" or user.domain:
        return None
    other = user.inputs[0] if user.inputs[1] is factor else user.inputs[1]
    if _is_numerator(other, rows, facts):
        return _match_scale(rows, [user], facts)
    if not _is_row(other, rows, facts):
        return None
    rows.nodes.append(user)
    scaled = user.outputs[0]
    uses = [use.node for use in scaled.uses()]
    muls = [node for node in uses if node.op_type == "Mul" and not node.domain]
    if len(uses) == 1 and muls and _is_numerator(_other(muls[0], scaled), rows, facts):
        return _match_bias(rows, [muls[0]], other, facts)
    if len(uses) != 2 or len(muls) != 2 or rows.mean is None:
        return None
    return _match_shifted_by_mean(rows, scaled, other, muls, facts)


def _match_shifted_by_mean(
    rows: _Rows,
    factor: ir.Value,
    scale: ir.Value | None,
    muls: list[ir.Node],
    facts: Facts,
) -> Group | None:
    """Match x · factor + (bias - mean · factor)."""
    of_mean = [node for node in muls if _other(node, factor) is rows.mean]
    of_rows = [node for node in muls if skip_casts(_other(node, factor), facts) is rows.x]
    if len(of_mean) != 1 or len(of_rows) != 1:
        return None
    less, last = (facts.only_user(node.outputs[0]) for node in (of_mean[0], of_rows[0]))
    if less is None or less.op_type != "Sub" or less.inputs[1] is not of_mean[0].outputs[0]:
        return None
    bias = less.inputs[0]
    if last is None or last.op_type != "Add" or facts.only_user(less.outputs[0]) is not last:
        return None
    if not _is_row(bias, rows, facts):
        return None
    nodes = [*rows.nodes, of_mean[0], less, of_rows[0], last]
    return _group(rows, scale, bias, nodes, facts)


def _other(node: ir.Node, value: ir.Value) -> ir.Value | None:
    return node.inputs[1] if node.inputs[0] is value else node.inputs[0]


def _is_row(value: ir.Value | None, rows: _Rows, facts: Facts) -> bool:
    """Return whether a value has one element for each column."""
    dims = facts.dims(value) or (None,)
    return dims[-1] == rows.width and all(dim == 1 for dim in dims[:-1])


def _match_scale(rows: _Rows, nodes: list[ir.Node], facts: Facts) -> Group | None:
    """Match the Mul by a scale after the normalization, if there is one."""
    mul, casts = _next(nodes[-1], "Mul", facts)
    scale = None if mul is None else _row_operand(mul, [*nodes, *casts][-1], rows, facts)
    if mul is None or scale is None:
        return _group(rows, None, None, [*rows.nodes, *nodes], facts)
    return _match_bias(rows, [*nodes, *casts, mul], scale, facts)


def _match_bias(
    rows: _Rows, nodes: list[ir.Node], scale: ir.Value | None, facts: Facts
) -> Group | None:
    """Match the Add of a bias after the scale, if there is one."""
    add, casts = _next(nodes[-1], "Add", facts)
    bias = None if add is None else _row_operand(add, [*nodes, *casts][-1], rows, facts)
    if add is not None and bias is not None:
        nodes = [*nodes, *casts, add]
    return _group(rows, scale, bias, [*rows.nodes, *nodes], facts)


def _next(node: ir.Node, op_type: str, facts: Facts) -> tuple[ir.Node | None, list[ir.Node]]:
    """Return the only reader of a node, if it is of a type, and the casts between."""
    casts: list[ir.Node] = []
    user = facts.only_user(node.outputs[0])
    while user is not None and (
        is_exact_upcast(user, facts) or (not casts and is_downcast(user, facts))
    ):
        if casts and is_downcast(casts[0], facts):
            break  # rounded, and upcast again
        casts.append(user)
        user = facts.only_user(user.outputs[0])
    found = user is not None and user.op_type == op_type and not user.domain
    return (user if found else None), casts


def _row_operand(node: ir.Node, before: ir.Node, rows: _Rows, facts: Facts) -> ir.Value | None:
    """Return the operand with one element per column, of a node that reads rows from another.

    The rows of one token are one row, too, so that both operands have that shape.
    """
    value = before.outputs[0]
    other = _other(node, value)
    if other is value or not _is_row(other, rows, facts):
        return None
    rank = facts.rank(other)
    return other if rank is not None and rank <= (facts.rank(rows.x) or 0) else None


def _group(
    rows: _Rows,
    scale: ir.Value | None,
    bias: ir.Value | None,
    nodes: list[ir.Node],
    facts: Facts,
) -> Group | None:
    if not only_read_within(nodes, facts):
        return None
    kind = "rms-norm" if rows.mean is None else "layer-norm"
    return Group(kind, [rows.x, scale, bias], nodes, {"epsilon": rows.epsilon})
