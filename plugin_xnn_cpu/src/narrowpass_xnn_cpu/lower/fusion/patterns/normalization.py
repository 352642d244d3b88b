"""Normalization of rows as exporters write it before there was an operator for it.

All start with the root of a mean of squares: of rows themselves, or of what they differ from their
mean by. It is divided by, or its reciprocal is multiplied with; the scale may come before that,
and some shift by bias - mean · factor instead of taking the mean away.
Casts that round nothing are looked through: what lies between is float32 here. So are those to a
narrow type in which the next operator computes, of what is no larger than the rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir

from narrowpass_planning.graph.facts import Facts
from narrowpass_xnn_cpu.lower.fusion.matching import (
    Group,
    are_for,
    is_number,
    narrows,
    producer,
    uncast,
    widens,
    with_constant,
)


@dataclass
class _Rows:
    """What is normalized.

    Attributes:
        x: rows.
        mean: of each of them; None where it is not taken away.
        epsilon: added to the mean of squares.
        width: of a row.
        nodes: that make the root, and what is taken the root of.
        centred: rows less their means, wherever they are computed.
    """

    x: ir.Value
    mean: ir.Value | None
    epsilon: float
    width: int
    nodes: list[ir.Node] = field(default_factory=list)
    centred: list[ir.Value] = field(default_factory=list)


def match(root: ir.Node, facts: Facts, _version: int) -> Group | None:
    """Match a normalization by its root: Sqrt, or Pow with an exponent of -0.5."""
    inverse = root.op_type == "Pow"
    if inverse and not is_number(facts, root.inputs[1], -0.5):
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
            if _is_of(user.inputs[0], rows, facts):
                return _scaled(rows, [user], facts)
            if not is_number(facts, user.inputs[0], 1.0):
                return None
        elif user.op_type != "Reciprocal":
            return None
        rows.nodes.append(user)
        factor = user.outputs[0]
    return _multiplied(rows, factor, facts)


def _rows(root: ir.Node, facts: Facts) -> _Rows | None:
    """Give the rows that a root is of."""
    add = producer(uncast(root.inputs[0], facts), "Add")
    shifted = None if add is None else with_constant(add, facts)
    if add is None or shifted is None:
        return None
    reduce = producer(uncast(shifted[0], facts), "ReduceMean")
    square = None if reduce is None else producer(uncast(reduce.inputs[0], facts), "Mul", "Pow")
    if reduce is None or square is None or not _is_of_rows(reduce, facts):
        return None
    if square.op_type == "Pow" and not is_number(facts, square.inputs[1], 2.0):
        return None
    if square.op_type == "Mul" and square.inputs[0] is not square.inputs[1]:
        return None
    operand = square.inputs[0]
    width = (facts.dims(operand) or (None,))[-1]
    if operand is None or not isinstance(width, int) or width < 1:
        return None
    nodes = [square, reduce, add]
    less = producer(uncast(operand, facts), "Sub")
    mean = (
        None
        if less is None
        else producer(uncast(less.inputs[1], facts, narrowed=True), "ReduceMean")
    )
    if less is not None and mean is not None and _is_of_rows(mean, facts):
        x = uncast(mean.inputs[0], facts)
        if x is not None and uncast(less.inputs[0], facts) is x:
            made = [mean.outputs[0], less.outputs[0]]
            return _Rows(x, made[0], shifted[1], width, [mean, less, *nodes], made[1:])
    x = uncast(operand, facts)
    return None if x is None else _Rows(x, None, shifted[1], width, nodes)


def _is_of_rows(reduce: ir.Node, facts: Facts) -> bool:
    """Tell whether a ReduceMean is over the last axis, which it keeps."""
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


def _is_of(value: ir.Value | None, rows: _Rows, facts: Facts) -> bool:
    """Tell whether a value is what is divided by the root: rows less their means, or rows."""
    behind = uncast(value, facts)
    if rows.mean is None:
        return behind is rows.x
    if behind in rows.centred:
        return True
    less = producer(behind, "Sub")  # some take the mean away twice
    if less is None or uncast(less.inputs[1], facts, narrowed=True) is not rows.mean:
        return False
    if uncast(less.inputs[0], facts) is not rows.x:
        return False
    rows.nodes.insert(0, less)
    rows.centred.append(less.outputs[0])
    return True


def _multiplied(rows: _Rows, factor: ir.Value, facts: Facts) -> Group | None:
    """Follow the reciprocal of the root to where rows are multiplied with it."""
    user = facts.only_user(factor)
    if user is None or user.op_type != "Mul" or user.domain:
        return None
    other = user.inputs[0] if user.inputs[1] is factor else user.inputs[1]
    if _is_of(other, rows, facts):
        return _scaled(rows, [user], facts)
    if not _is_row(other, rows, facts):
        return None
    rows.nodes.append(user)
    scaled = user.outputs[0]
    uses = [use.node for use in scaled.uses()]
    products = [node for node in uses if node.op_type == "Mul" and not node.domain]
    if len(uses) == 1 and products and _is_of(_other(products[0], scaled), rows, facts):
        return _shifted(rows, [products[0]], other, facts)
    if len(uses) != 2 or len(products) != 2 or rows.mean is None:
        return None
    return _shifted_by_mean(rows, scaled, other, products, facts)


def _shifted_by_mean(
    rows: _Rows,
    factor: ir.Value,
    scale: ir.Value | None,
    products: list[ir.Node],
    facts: Facts,
) -> Group | None:
    """Match x · factor + (bias - mean · factor)."""
    of_mean = [node for node in products if _other(node, factor) is rows.mean]
    of_rows = [node for node in products if uncast(_other(node, factor), facts) is rows.x]
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
    """Tell whether a value has a number for each column, and nothing else."""
    dims = facts.dims(value) or (None,)
    return dims[-1] == rows.width and all(dim == 1 for dim in dims[:-1])


def _scaled(rows: _Rows, nodes: list[ir.Node], facts: Facts) -> Group | None:
    """Follow normal rows to their product with a scale, if there is one."""
    product, casts = _next(nodes[-1], "Mul", facts)
    scale = None if product is None else _row_operand(product, rows, facts)
    if product is None or scale is None:
        return _group(rows, None, None, [*rows.nodes, *nodes], facts)
    return _shifted(rows, [*nodes, *casts, product], scale, facts)


def _shifted(
    rows: _Rows, nodes: list[ir.Node], scale: ir.Value | None, facts: Facts
) -> Group | None:
    """Follow scaled rows to their sum with a bias, if there is one."""
    add, casts = _next(nodes[-1], "Add", facts)
    bias = None if add is None else _row_operand(add, rows, facts)
    if add is not None and bias is not None:
        nodes = [*nodes, *casts, add]
    return _group(rows, scale, bias, [*rows.nodes, *nodes], facts)


def _next(node: ir.Node, op_type: str, facts: Facts) -> tuple[ir.Node | None, list[ir.Node]]:
    """Give the node of a type that alone reads what another makes, and the casts between."""
    casts: list[ir.Node] = []
    user = facts.only_user(node.outputs[0])
    while user is not None and (widens(user, facts) or (not casts and narrows(user, facts))):
        if casts and narrows(casts[0], facts):
            break  # rounded, and widened again
        casts.append(user)
        user = facts.only_user(user.outputs[0])
    found = user is not None and user.op_type == op_type and not user.domain
    return (user if found else None), casts


def _row_operand(node: ir.Node, rows: _Rows, facts: Facts) -> ir.Value | None:
    """Give the operand that has a number for each column, of a node whose other one is rows."""
    found = [value for value in node.inputs if _is_row(value, rows, facts)]
    full = facts.rank(rows.x) or 0
    others = [value for value in node.inputs if value not in found and facts.rank(value) == full]
    return found[0] if len(found) == len(others) == 1 else None


def _group(
    rows: _Rows,
    scale: ir.Value | None,
    bias: ir.Value | None,
    nodes: list[ir.Node],
    facts: Facts,
) -> Group | None:
    if not are_for(nodes, facts):
        return None
    kind = "rms-norm" if rows.mean is None else "layer-norm"
    return Group(kind, [rows.x, scale, bias], nodes, {"epsilon": rows.epsilon})
