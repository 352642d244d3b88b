"""Attention, softmax(q·kᵀ · scale + mask)·v, as exporters write it.

They differ in what is scaled, whether by a product or a quotient; in how keys are turned; in masks,
that are added or chosen by; in heads of keys that are repeated for those of queries that share
them; and in a guard that makes zeros of rows whose every key is masked, which is NaN by the book.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir

from narrowpass_planning.graph.facts import Facts
from narrowpass_xnn_cpu.lower import sizes
from narrowpass_xnn_cpu.lower.fusion.matching import (
    Group,
    is_swap,
    narrows,
    producer,
    widens,
    with_constant,
)


@dataclass
class _Found:
    """What an operand is, with what was looked through on the way.

    Attributes:
        value: the operand.
        scale: what it is multiplied by.
        nodes: that were looked through and are for nobody else, the last one first.
    """

    value: ir.Value | None
    scale: float = 1.0
    nodes: list[ir.Node] = field(default_factory=list)


@dataclass
class _Masked:
    """Scores, and what is done to them: ``added``, ``kept`` or ``filled``.

    Two masks may be added.
    """

    scores: ir.Value | None
    masks: list[ir.Value | None] = field(default_factory=list)
    kind: str = "added"
    fill: float = 0.0
    nodes: list[ir.Node] = field(default_factory=list)


def match(softmax: ir.Node, facts: Facts, version: int) -> Group | None:
    """Match MatMul, a scale, a mask, Softmax and MatMul; casts between floats too."""
    rank = facts.rank(softmax.outputs[0])
    # Before operator set 13 the axis was 1 by default, and all from it on counted as one.
    axis = softmax.attributes.get_int("axis", -1 if version >= 13 else 1)
    if rank not in (3, 4, 5) or axis not in (-1, rank - 1):
        return None
    weights, after = _guarded(softmax.outputs[0], facts)
    safe = bool(after)
    last = facts.only_user(weights)
    # Weights may be rounded for the product, which computes in their type: they are at most 1.
    if last is not None and (narrows(last, facts) or widens(last, facts)):
        after.append(last)
        weights = last.outputs[0]
        last = facts.only_user(weights)
    if last is None or last.op_type != "MatMul" or last.domain or last.inputs[0] is not weights:
        return None
    scores = _uncast(_Found(softmax.inputs[0]), facts)
    masked = _unmasked(scores.value, facts)
    if masked is None:
        return None
    scaled = _unscaled(_Found(masked.scores), facts)
    product = producer(scaled.value, "MatMul")
    if product is None or facts.only_user(product.outputs[0]) is None:
        return None
    q = _unscaled(_Found(product.inputs[0]), facts)
    k = _unscaled(_Found(product.inputs[1]), facts)
    keys, values, targets, attributes = _keys_and_values(k, q.value, last.inputs[1], facts)
    attributes["scale"] = scaled.scale * q.scale * k.scale
    attributes["safe"] = safe
    masks = [*masked.masks, None, None][:2]
    inputs = [q.value, keys, values, *masks, *targets]
    if masked.masks:
        attributes |= {"mask": masked.kind, "fill": masked.fill}
    before = [softmax, *scores.nodes, *masked.nodes, *scaled.nodes, product, *q.nodes, *k.nodes]
    return Group("attention", inputs, [*reversed(before), *after, last], attributes)


def _guarded(weights: ir.Value, facts: Facts) -> tuple[ir.Value, list[ir.Node]]:
    """Look through Where(IsNaN(weights), 0, weights): a row without keys gives zeros."""
    users = {use.node for use in weights.uses()}
    guards = [node for node in users if node.op_type == "IsNaN" and not node.domain]
    chosen = [node for node in users if node.op_type == "Where" and not node.domain]
    if len(users) != 2 or not guards or not chosen or weights.name in facts.needed:
        return weights, []
    condition, zero, other = chosen[0].inputs
    whole = condition is guards[0].outputs[0] and facts.only_user(guards[0].outputs[0]) is not None
    if not whole or other is not weights or facts.scalar(zero) != 0.0:
        return weights, []
    return chosen[0].outputs[0], [guards[0], chosen[0]]


def _alone(node: ir.Node, facts: Facts) -> bool:
    return facts.only_user(node.outputs[0]) is not None


def _uncast(found: _Found, facts: Facts) -> _Found:
    """Look behind casts between floats that round nothing and are for nobody else."""
    value, nodes = found.value, list(found.nodes)
    node = producer(value, "Cast")
    while node is not None and widens(node, facts) and _alone(node, facts):
        nodes.append(node)
        value = node.inputs[0]
        node = producer(value, "Cast")
    return _Found(value, found.scale, nodes)


def _unscaled(found: _Found, facts: Facts) -> _Found:
    """Look behind a multiplication by a number that is for nobody else, and casts around it."""
    before = _uncast(found, facts)
    node = producer(before.value, "Mul", "Div")
    constant = None if node is None else with_constant(node, facts)
    if node is None or constant is None or not _alone(node, facts) or not constant[1]:
        return before
    operand, number = constant
    if node.op_type == "Div":
        if operand is not node.inputs[0]:
            return before
        number = 1 / number
    return _uncast(_Found(operand, before.scale * number, [*before.nodes, node]), facts)


def _unmasked(value: ir.Value | None, facts: Facts) -> _Masked | None:
    """Give the scores behind a mask; None where something else is added to them."""
    node = producer(value, "Add", "Where")
    if node is None or not _alone(node, facts):
        return None if node is not None else _Masked(value)
    if node.op_type == "Add":
        first, second = node.inputs
        for scores, mask in ((first, second), (second, first)):
            behind = producer(_unscaled(_Found(scores), facts).value, "MatMul")
            if behind is not None and _alone(behind, facts):
                return _Masked(scores, [mask], nodes=[node])
        for scores, mask in ((first, second), (second, first)):
            inner = _unmasked(scores, facts) if producer(scores, "Add") is not None else None
            if inner is not None and inner.kind == "added" and len(inner.masks) == 1:
                return _Masked(inner.scores, [*inner.masks, mask], nodes=[node, *inner.nodes])
        return None
    condition, first, second = node.inputs
    for scores, other, kind in ((first, second, "kept"), (second, first, "filled")):
        fill = facts.scalar(other)
        if fill is not None and facts.dtype(condition) == ir.DataType.BOOL:
            return _Masked(scores, [condition], kind, fill, [node])
    return None


def _keys_and_values(
    k: _Found, q: ir.Value | None, v: ir.Value | None, facts: Facts
) -> tuple[ir.Value | None, ir.Value | None, list[ir.Value], dict[str, object]]:
    """Look behind what turns keys, and repeats heads of keys and values.

    Returns:
        Keys, values, the shapes that both are expanded to, and attributes.
    """
    turned = _unturned(k.value, facts)
    dims = facts.dims(q)
    heads = dims[1] if dims is not None and len(dims) == 4 else None
    keys, values = _unrepeated(turned, heads, facts), _unrepeated(v, heads, facts)
    if keys is not None and values is not None:
        # Expansion may repeat more than heads; the step looks at both targets when they are known.
        targets = [keys[1], values[1]]
        return keys[0], values[0], targets, {"turned": True, "grouped": True}
    if turned is not None and _is_turned_by_reshapes(k.value):
        return turned, v, [], {"turned": True}
    return k.value, v, [], {}


def _is_turned_by_reshapes(value: ir.Value | None) -> bool:
    return producer(value, "Reshape") is not None


def _unturned(value: ir.Value | None, facts: Facts) -> ir.Value | None:
    """Give the value whose last two axes change places in this one; None where there is none.

    One exporter writes that for three dimensions, between two Reshape. What is seen of the sizes
    says that it is nothing else: the numbers of elements must agree.
    """
    node = producer(value, "Transpose")
    if node is not None:
        return node.inputs[0] if is_swap(node, facts) else None
    outer = producer(value, "Reshape")
    swap = None if outer is None else producer(outer.inputs[0], "Transpose")
    inner = None if swap is None else producer(swap.inputs[0], "Reshape")
    if outer is None or swap is None or inner is None or facts.rank(swap.outputs[0]) != 3:
        return None
    given = sizes.dimensions(inner.inputs[0], facts)
    flat, made = sizes.reshaped(inner, facts), sizes.reshaped(outer, facts)
    if given is None or flat is None or made is None or not is_swap(swap, facts):
        return None
    depth, rank = given[-1], len(given)
    fits = len(flat) == 3 and len(made) == rank == 4 and isinstance(depth, int) and depth > 0
    same = fits and flat[2] == made[2] == depth and flat[1] == made[3] and flat[1] != -1
    return inner.inputs[0] if same and made[:2] == given[:2] else None


def _unrepeated(
    value: ir.Value | None, heads: int | str | None, facts: Facts
) -> tuple[ir.Value, ir.Value] | None:
    """Give keys or values whose heads are repeated for `heads`, and the target of their Expand.

    Heads are given an axis, [batch, groups, 1, rows, depth], which is expanded and then merged.
    """
    merge = producer(value, "Reshape")
    expand = None if merge is None else producer(merge.inputs[0], "Expand")
    spread = None if expand is None else producer(expand.inputs[0], "Unsqueeze", "Reshape")
    if merge is None or expand is None or spread is None or not isinstance(heads, int):
        return None
    given, target = spread.inputs[0], expand.inputs[1]
    dims, wide = facts.dims(given), facts.dims(spread.outputs[0])
    if given is None or target is None or dims is None or wide is None or len(dims) != 4:
        return None
    groups = dims[1]
    if len(wide) != 5 or wide[1] != groups or wide[2] != 1 or not isinstance(groups, int):
        return None
    if spread.op_type == "Reshape" and not _only_spreads(spread, facts):
        return None
    repeated, merged = sizes.elements_of(target, facts), sizes.reshaped(merge, facts)
    if repeated is None or merged is None or len(repeated) != 5 or len(merged) != 4:
        return None
    each = sizes.times(repeated[1:3])
    rest = [repeated[0], *repeated[3:]], [merged[0], *merged[2:]]
    if groups < 1 or repeated[1] != groups or each != heads or merged[1] != heads:
        return None
    # Only one of the others may be left open, as -1: it is what remains.
    pairs = [(one, other) for one, other in zip(*rest, strict=True) if other != -1]
    same = len(pairs) >= 2 and all(one == other for one, other in pairs)
    return (given, target) if same and repeated[4] == dims[3] else None


def _only_spreads(reshape: ir.Node, facts: Facts) -> bool:
    """Tell whether a Reshape does what Unsqueeze of axis 2 would."""
    given, made = sizes.dimensions(reshape.inputs[0], facts), sizes.reshaped(reshape, facts)
    if given is None or made is None or len(made) != 5 or made[2] != 1:
        return False
    rest = [*made[:2], *made[3:]]
    return rest.count(-1) < 2 and all(a == b for a, b in zip(rest, given, strict=True) if a != -1)
