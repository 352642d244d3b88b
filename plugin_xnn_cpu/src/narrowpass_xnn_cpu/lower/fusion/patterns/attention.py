"""Pattern of attention, softmax(q·kᵀ · scale + mask)·v, as exporters write it.

Exporters differ in the operand that is scaled, by Mul or Div; in how keys are transposed; in masks,
additive or boolean; in Expand of key and value heads (grouped-query attention); and in a Where that
replaces NaN by 0 in rows whose keys are all masked.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir

from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.state.operators import APPEND_ROWS, CAUSAL_MASK, DOMAIN
from narrowpass_xnn_cpu.lower import sizes
from narrowpass_xnn_cpu.lower.fusion.matching import (
    Group,
    is_downcast,
    is_exact_upcast,
    producer,
    split_constant,
    swaps_last_axes,
)


@dataclass
class _Operand:
    """An operand with the nodes that are fused into it.

    Attributes:
        value: the operand before these nodes.
        scale: the scalar that it is multiplied by.
        nodes: casts and scalings, read by no other node, the last one first.
    """

    value: ir.Value | None
    scale: float = 1.0
    nodes: list[ir.Node] = field(default_factory=list)


@dataclass
class _Masked:
    """Scores and their mask; for `kind` and `fill` see `lower.attention.Attention`.

    There may be two masks of the kind ``added``.
    """

    scores: ir.Value | None
    masks: list[ir.Value | None] = field(default_factory=list)
    kind: str = "added"
    fill: float = 0.0
    nodes: list[ir.Node] = field(default_factory=list)


def match(softmax: ir.Node, facts: Facts, version: int) -> Group | None:
    """Match MatMul, a scale, a mask, Softmax and MatMul, with casts between floats."""
    rank = facts.rank(softmax.outputs[0])
    # Before operator set 13 Softmax flattened all axes from the axis on, 1 by default.
    axis = softmax.attributes.get_int("axis", -1 if version >= 13 else 1)
    if rank not in (3, 4, 5) or axis not in (-1, rank - 1):
        return None
    weights, after = _guarded(softmax.outputs[0], facts)
    safe = bool(after)
    last = facts.only_user(weights)
    # Weights, at most 1, may be rounded to the dtype of the second MatMul.
    if last is not None and (is_downcast(last, facts) or is_exact_upcast(last, facts)):
        after.append(last)
        weights = last.outputs[0]
        last = facts.only_user(weights)
    if last is None or last.op_type != "MatMul" or last.domain or last.inputs[0] is not weights:
        return None
    scores = _skip_casts(_Operand(softmax.inputs[0]), facts)
    masked = _unmasked(scores.value, facts)
    if masked is None:
        return None
    capped = _uncapped(masked.scores, facts)
    scaled = capped.scores
    qk = producer(scaled.value, "MatMul")
    if qk is None or facts.only_user(qk.outputs[0]) is None:
        return None
    q = _unscaled(_Operand(qk.inputs[0]), facts)
    k = _unscaled(_Operand(qk.inputs[1]), facts)
    keys, values, targets, attributes = _keys_and_values(k, q.value, last.inputs[1], facts)
    attributes["scale"] = scaled.scale * q.scale * k.scale
    attributes["safe"] = safe
    attributes["softcap"] = capped.softcap
    others, visible = _without_causal(masked.masks)
    attributes |= visible
    masks = [*others, None, None][:2]
    inputs = [q.value, keys, values, *masks, *targets]
    if others:
        attributes |= {"mask": masked.kind, "fill": masked.fill}
    around = [*scores.nodes, *masked.nodes, *capped.nodes, *scaled.nodes]
    before = [softmax, *around, qk, *q.nodes, *k.nodes]
    return Group("attention", inputs, [*reversed(before), *after, last], attributes)


@dataclass
class _Capped:
    """Scores and their soft cap: softcap · tanh(scores / softcap); 0 for none."""

    scores: _Operand
    softcap: float = 0.0
    nodes: list[ir.Node] = field(default_factory=list)


def _uncapped(value: ir.Value | None, facts: Facts) -> _Capped:
    """Return scores before their scale, and before their soft cap where they have one."""
    node = producer(value, "Mul")
    constant = None if node is None else split_constant(node, facts)
    tanh = None if constant is None else producer(constant[0], "Tanh")
    if node is None or constant is None or tanh is None or constant[1] <= 0:
        return _Capped(_unscaled(_Operand(value), facts))
    if not _has_sole_reader(node, facts) or not _has_sole_reader(tanh, facts):
        return _Capped(_unscaled(_Operand(value), facts))
    # By the cap, and by the root of the head size.
    scaled = _unscaled(_unscaled(_Operand(tanh.inputs[0]), facts), facts)
    scaled.scale *= constant[1]
    return _Capped(scaled, constant[1], [node, tanh])


def _without_causal(
    masks: list[ir.Value | None],
) -> tuple[list[ir.Value | None], dict[str, object]]:
    """Return masks without causal ones of appended caches, and the attributes of these."""
    others: list[ir.Value | None] = []
    nodes = []
    for mask in masks:
        node = None if mask is None else mask.producer()
        if node is None or (node.domain, node.op_type) != (DOMAIN, CAUSAL_MASK):
            others.append(mask)
            continue
        nodes.append(node)
        others += node.inputs[1:]
    if not nodes:
        return others, {}
    window_sizes = [node.attributes.get_int("window_size", 0) for node in nodes]
    window_size = min(filter(None, window_sizes), default=0)
    causal = any(node.attributes.get_int("causal", 0) for node in nodes)
    return others, {"visible": True, "causal": causal, "window_size": window_size}


def _guarded(weights: ir.Value, facts: Facts) -> tuple[ir.Value, list[ir.Node]]:
    """Return the result of Where(IsNaN(weights), 0, weights), if it follows, and its nodes."""
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


def _has_sole_reader(node: ir.Node, facts: Facts) -> bool:
    return facts.only_user(node.outputs[0]) is not None


def _skip_casts(found: _Operand, facts: Facts) -> _Operand:
    """Skip casts between floats that do not round and have no other readers."""
    value, nodes = found.value, list(found.nodes)
    node = producer(value, "Cast")
    while node is not None and is_exact_upcast(node, facts) and _has_sole_reader(node, facts):
        nodes.append(node)
        value = node.inputs[0]
        node = producer(value, "Cast")
    return _Operand(value, found.scale, nodes)


def _unscaled(found: _Operand, facts: Facts) -> _Operand:
    """Skip a Mul or Div by a scalar that has no other readers, and casts around it."""
    before = _skip_casts(found, facts)
    node = producer(before.value, "Mul", "Div")
    constant = None if node is None else split_constant(node, facts)
    if node is None or constant is None or not _has_sole_reader(node, facts) or not constant[1]:
        return before
    operand, number = constant
    if node.op_type == "Div":
        if operand is not node.inputs[0]:
            return before
        number = 1 / number
    return _skip_casts(_Operand(operand, before.scale * number, [*before.nodes, node]), facts)


def _unmasked(value: ir.Value | None, facts: Facts) -> _Masked | None:
    """Return scores and mask; None if something that is no mask is added to the scores."""
    node = producer(value, "Add", "Where")
    if node is None or not _has_sole_reader(node, facts):
        return None if node is not None else _Masked(value)
    if node.op_type == "Add":
        first, second = node.inputs
        for scores, mask in ((first, second), (second, first)):
            behind = producer(_uncapped(scores, facts).scores.value, "MatMul")
            if behind is not None and _has_sole_reader(behind, facts):
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
    k: _Operand, q: ir.Value | None, v: ir.Value | None, facts: Facts
) -> tuple[ir.Value | None, ir.Value | None, list[ir.Value], dict[str, object]]:
    """Skip the transpose of keys, and the Expand of key and value heads.

    Returns:
        Keys, values, the shapes that both are expanded to, and attributes.
    """
    keys_untransposed = _untransposed(k.value, facts)
    dims = facts.dims(q)
    heads = dims[1] if dims is not None and len(dims) == 4 else None
    keys, values = _unexpanded(keys_untransposed, heads, facts), _unexpanded(v, heads, facts)
    if keys is not None and values is not None:
        # Expand may broadcast other axes too: the computation reads both target shapes.
        targets = [keys[1], values[1]]
        return keys[0], values[0], targets, {"transposed_keys": True, "grouped": True}
    if keys_untransposed is not None and _is_reshape(k.value):
        return keys_untransposed, v, [], {"transposed_keys": True}
    return k.value, v, [], {}


def _is_reshape(value: ir.Value | None) -> bool:
    return producer(value, "Reshape") is not None


def _untransposed(value: ir.Value | None, facts: Facts) -> ir.Value | None:
    """Return the operand of a transpose of the last two axes; None if it is no such transpose.

    One exporter writes Reshape to three dimensions, Transpose, and Reshape back. Symbolic shapes
    must show that this only exchanges the last two axes.
    """
    node = producer(value, "Transpose")
    if node is not None:
        return node.inputs[0] if swaps_last_axes(node, facts) else None
    outer = producer(value, "Reshape")
    swap = None if outer is None else producer(outer.inputs[0], "Transpose")
    inner = None if swap is None else producer(swap.inputs[0], "Reshape")
    if outer is None or swap is None or inner is None or facts.rank(swap.outputs[0]) != 3:
        return None
    given = sizes.dimensions(inner.inputs[0], facts)
    flat, result = sizes.reshaped(inner, facts), sizes.reshaped(outer, facts)
    if given is None or flat is None or result is None or not swaps_last_axes(swap, facts):
        return None
    depth, rank = given[-1], len(given)
    fits = len(flat) == 3 and len(result) == rank == 4 and isinstance(depth, int) and depth > 0
    same = fits and flat[2] == result[2] == depth and flat[1] == result[3] and flat[1] != -1
    return inner.inputs[0] if same and result[:2] == given[:2] else None


def _unexpanded(
    value: ir.Value | None, heads: int | str | None, facts: Facts
) -> tuple[ir.Value, ir.Value] | None:
    """Return keys or values before Expand to `heads` heads, and the shape of the Expand.

    Exporters reshape to [batch, groups, 1, rows, depth], expand the third axis, and merge it with
    the second.
    """
    merge = producer(value, "Reshape")
    expand = None if merge is None else producer(merge.inputs[0], "Expand")
    spread = None if expand is None else producer(expand.inputs[0], "Unsqueeze", "Reshape")
    if merge is None or expand is None or spread is None:
        return None
    if not isinstance(heads, int) and _is_appended(spread.inputs[0]):
        # Queries have as many heads as keys are expanded to: the kernel checks it.
        merged = sizes.reshaped(merge, facts)
        known = merged[1] if merged is not None and len(merged) == 4 else None
        heads = known if isinstance(known, int) else None
    if not isinstance(heads, int):
        return None
    given, target = spread.inputs[0], expand.inputs[1]
    dims, wide = facts.dims(given), facts.dims(spread.outputs[0])
    if given is None or target is None or dims is None or wide is None or len(dims) != 4:
        return None
    groups = dims[1]
    if len(wide) != 5 or wide[1] != groups or wide[2] != 1 or not isinstance(groups, int):
        return None
    if spread.op_type == "Reshape" and not _is_unsqueeze(spread, facts):
        return None
    repeated, merged = sizes.elements_of(target, facts), sizes.reshaped(merge, facts)
    if repeated is None or merged is None or len(repeated) != 5 or len(merged) != 4:
        return None
    each = sizes.element_count(repeated[1:3])
    rest = [repeated[0], *repeated[3:]], [merged[0], *merged[2:]]
    if groups < 1 or repeated[1] != groups or each != heads or merged[1] != heads:
        return None
    # One of the other sizes may be -1, since it follows from all others.
    pairs = [(one, other) for one, other in zip(*rest, strict=True) if other != -1]
    same = len(pairs) >= 2 and all(one == other for one, other in pairs)
    return (given, target) if same and repeated[4] == dims[3] else None


def _is_appended(value: ir.Value | None) -> bool:
    node = None if value is None else value.producer()
    return node is not None and (node.domain, node.op_type) == (DOMAIN, APPEND_ROWS)


def _is_unsqueeze(reshape: ir.Node, facts: Facts) -> bool:
    """Return whether a Reshape is equal to Unsqueeze of axis 2."""
    given, result = sizes.dimensions(reshape.inputs[0], facts), sizes.reshaped(reshape, facts)
    if given is None or result is None or len(result) != 5 or result[2] != 1:
        return False
    rest = [*result[:2], *result[3:]]
    return rest.count(-1) < 2 and all(a == b for a, b in zip(rest, given, strict=True) if a != -1)
