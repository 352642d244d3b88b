"""Pattern of rotary embedding, as exporters write it: x · cos + rotate(x) · sin.

``rotate`` concatenates the negated second half of a row and the first half, or exchanges pairs of
neighbours and negates one. The halves come from Slice or Split. In partial rotary embedding, the
other elements are concatenated to the result.
"""

from __future__ import annotations

import onnx_ir as ir

from narrowpass_planning.graph.facts import Facts
from narrowpass_xnn_cpu.lower import sizes
from narrowpass_xnn_cpu.lower.fusion.matching import Group, producer, slice_of


def match(add: ir.Node, facts: Facts, _version: int) -> Group | None:
    """Match x · cos + rotate(x) · sin, from its Add."""
    if len(add.inputs) != 2:
        return None
    muls = [producer(value, "Mul") for value in add.inputs]
    for straight, crossed in (muls, muls[::-1]):
        if straight is None or crossed is None or straight is crossed:
            continue
        for rotated, sines in (tuple(crossed.inputs), tuple(crossed.inputs)[::-1]):
            found = _match_rotate(rotated, facts)
            if found is None:
                continue
            x, nodes, interleaved = found
            others = [value for value in straight.inputs if value is not x]
            if len(others) != 1 or not _fits(x, others[0], sines, facts):
                return None
            nodes = [*nodes, straight, crossed]
            if any(facts.only_user(node.outputs[0]) is None for node in nodes):
                return None
            attributes = {"interleaved": interleaved}
            inputs = [x, others[0], sines]
            return _match_partial(Group("rotary", inputs, [*nodes, add], attributes), facts)
    return None


def _fits(x: ir.Value, cosines: ir.Value | None, sines: ir.Value | None, facts: Facts) -> bool:
    """Return whether there is one cosine and one sine for each element of a row."""
    depth = (facts.dims(x) or (None,))[-1]
    given = [facts.dims(value) for value in (cosines, sines)]
    return isinstance(depth, int) and all(dims and dims[-1] == depth for dims in given)


def _match_rotate(
    value: ir.Value | None, facts: Facts
) -> tuple[ir.Value, list[ir.Node], bool] | None:
    """Match rotate(x): return x, the nodes, and whether it is interleaved (exchanges neighbours).

    The Slice or Split nodes are not among the nodes: others may read their results.
    """
    outer = producer(value, "Concat", "Reshape")
    joined = (
        outer if outer is None or outer.op_type == "Concat" else producer(outer.inputs[0], "Concat")
    )
    if outer is None or joined is None or len(joined.inputs) != 2:
        return None
    rank = facts.rank(joined.outputs[0]) or 0
    if joined.attributes.get_int("axis", 0) not in (-1, rank - 1):
        return None
    nodes = [joined]
    pieces = list(joined.inputs)
    if outer is not joined:
        spread = [producer(piece, "Unsqueeze", "Reshape") for piece in pieces]
        if None in spread or not all(_appends_axis(node, facts) for node in spread if node):
            return None
        nodes = [*(node for node in spread if node is not None), joined, outer]
        pieces = [node.inputs[0] for node in spread if node is not None]
    negated = producer(pieces[0], "Neg")
    if negated is None:
        return None
    nodes.insert(0, negated)
    first, second = slice_of(pieces[1], facts), slice_of(negated.inputs[0], facts)
    if first is None or second is None or first.whole is not second.whole:
        return None
    depth, half = first.depth, first.depth // 2
    if depth % 2:
        return None
    if outer is joined:
        halves = first.covers(0, half, 1) and second.covers(half, depth, 1)
        return (first.whole, nodes, False) if halves else None
    given = sizes.dimensions(first.whole, facts)
    if given is None or not sizes.keeps_leading(outer, given[:-1], [depth], facts):
        return None
    others = first.covers(0, depth, 2) and second.covers(1, depth, 2)
    return (first.whole, nodes, True) if others else None


def _appends_axis(node: ir.Node, facts: Facts) -> bool:
    """Return whether a node appends an axis of size 1."""
    before = sizes.dimensions(node.inputs[0], facts)
    after = facts.dims(node.outputs[0])
    if before is None or after is None or len(after) != len(before) + 1 or after[-1] != 1:
        return False
    if node.op_type == "Reshape":
        return sizes.keeps_leading(node, before, [1], facts)
    return after[-2] == before[-1] != 1


def _match_partial(group: Group, facts: Facts) -> Group:
    """Fuse the Concat of the other elements, in partial rotary embedding."""
    output = group.nodes[-1].outputs[0]
    join = facts.only_user(output)
    x = slice_of(group.inputs[0], facts)
    if join is None or x is None or join.op_type != "Concat" or join.domain:
        return group
    rest = slice_of(join.inputs[1], facts) if len(join.inputs) == 2 else None
    rotated = (facts.dims(group.inputs[0]) or (0,))[-1]
    rank = facts.rank(join.outputs[0]) or 0
    fits = (
        rest is not None
        and join.inputs[0] is output
        and join.attributes.get_int("axis", 0) in (-1, rank - 1)
        and rest.whole is x.whole
        and isinstance(rotated, int)
        and x.covers(0, rotated, 1)
        and rest.covers(rotated, x.depth, 1)
    )
    if not fits:
        return group
    attributes = {**group.attributes, "rotated": rotated}
    return Group("rotary", [x.whole, *group.inputs[1:]], [*group.nodes, join], attributes)
