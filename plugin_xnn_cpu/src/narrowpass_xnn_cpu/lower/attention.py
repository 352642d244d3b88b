"""Attention: softmax(q·kᵀ · scale + mask)·v as one operation, its scores never in memory.

The kernel reads q, k and v by strides, so that heads stay where a projection has put them, as
[batch, rows, heads, depth], and its result lies the same way.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.lower.builder import Builder, Perm, identity
from narrowpass_xnn_cpu.lower.facts import Facts
from narrowpass_xnn_cpu.lower.matching import Group, producer, with_constant
from narrowpass_xnn_cpu.lower.op import Op, lowers, needs_floats
from narrowpass_xnn_cpu.lower.steps import broadcast
from narrowpass_xnn_cpu.native import kernels
from narrowpass_xnn_cpu.plan.step import Run, Shape, Sizing, Slot, Step, elements

_SIDE_BY_SIDE: Perm = (0, 2, 1, 3)
"""Heads beside each other in rows, as [batch, rows, heads, depth]."""


class Attention(Step):
    """Attention of heads that lie anywhere, their last axis dense.

    Args:
        slots: q, k and v, and a mask where there is one: floats, or booleans.
        perms: for each of them the order that its axes lie in; for k as [.., keys, depth].
        output: the result.
        perm: the order that the axes of the result are to lie in.
        scale: what scores are multiplied by before the mask.
        mask: what the mask does to scores: ``added``, or of booleans, ``kept`` where it is true,
            or ``filled`` there.
        fill: what scores become that are not kept.
        grouped: whether k and v have one head for each group of heads of q that lie side by side,
            as [batch, groups, ..] beside [batch, groups · heads of a group, ..].
    """

    kernel = "attention"

    def __init__(
        self,
        slots: Sequence[Slot],
        perms: Sequence[Perm],
        output: Slot,
        perm: Perm,
        scale: float,
        *,
        mask: str = "added",
        fill: float = 0.0,
        grouped: bool = False,
    ) -> None:
        super().__init__(slots, output)
        self._perms = tuple(perms)
        self._perm = perm
        self._scale = scale
        self._mask = mask if len(slots) > 3 else "none"
        self._fill = fill
        self._grouped = grouped

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Step.size`."""
        views = [_View(shape, perm) for shape, perm in zip(shapes, self._perms, strict=True)]
        q, k, v, *masks = views
        if q.shape[-1] != k.shape[-1]:
            raise BackendError(f"queries of {q.shape[-1]} and keys of {k.shape[-1]} do not fit")
        heads, groups = q.shape[-3:-2], k.shape[-3:-2]
        each = _each(heads, groups, v.shape[-3:-2]) if self._grouped else 1
        leading_k, leading_v = k.shape[:-2], v.shape[:-2]
        if each > 1:
            leading_k, leading_v = (*leading_k[:-1], *heads), (*leading_v[:-1], *heads)
        scores = broadcast((*q.shape[:-1], 1), (*leading_k, 1, k.shape[-2]))
        scores = broadcast(scores, *(mask.shape for mask in masks))
        if scores[-1] != v.shape[-2]:
            raise BackendError(f"{scores[-1]} scores and {v.shape[-2]} values do not fit")
        leading = broadcast(scores[:-2], leading_v)
        result = (*leading, scores[-2], v.shape[-1])
        lies = tuple(result[axis] for axis in self._perm)
        if not elements(result):
            return Run(lies)
        if not scores[-1]:
            return Run(lies, constant=np.zeros(lies, np.float32))
        many = [1] * (3 - len(leading)) + list(leading)
        out = _View(lies, self._perm)
        strides = [view.strides() for view in (q, k, v, *masks)]
        out_strides = out.strides()
        if each > 1:
            many = [*many[1:2], many[2] // each, each]
            whole = zip((q, k, v, *masks), strides, strict=True)
            strides = [_split(view.shape, steps, groups[0], each) for view, steps in whole]
            out_strides = _split(out.shape, out_strides, groups[0], each)
        rows = scores[-2]
        if rows == 1 and not strides[1][2] and not strides[2][2]:
            # One token: its heads that share keys are rows, so that these are read once.
            rows, many[2] = many[2], 1
            for steps in (*strides[:1], *strides[3:], out_strides):
                steps[2], steps[3] = 0, steps[2]
        params, workspace = kernels.attention(
            heads=many,
            rows=rows,
            keys=scores[-1],
            depth=q.shape[-1],
            values=v.shape[-1],
            strides=strides,
            out_strides=out_strides,
            scale=self._scale,
            threads=sizing.pool.threads,
            mask=self._mask,
            fill=self._fill,
        )
        return Run(lies, "NP_ATTENTION", params=params, workspace=workspace)


def _each(heads: Shape, groups: Shape, others: Shape) -> int:
    """Give the heads of each group."""
    if groups != others or not groups or not groups[0] or heads[0] % groups[0]:
        raise BackendError(
            f"{heads} heads of queries, {groups} of keys and {others} of values are no groups"
        )
    return heads[0] // groups[0]


def _split(shape: Shape, strides: Sequence[int], groups: int, each: int) -> list[int]:
    """Cut the axis of heads, the last but two, into groups and heads: [batch, group, head, ..]."""
    _, batch, head, *rest = strides
    if len(shape) > 2 and shape[-3] == groups * each:
        return [batch, head * each, head, *rest]
    return [batch, head, 0, *rest]


class _View:
    """An operand with its axes in ONNX's order, wherever they lie."""

    def __init__(self, lies: Shape, perm: Perm) -> None:
        steps = kernels.dense_strides(lies)
        places = [perm.index(axis) for axis in range(len(perm))]
        self.shape = tuple(lies[place] for place in places)
        self._strides = [steps[place] for place in places]

    def strides(self) -> list[int]:
        """Give five strides; 0 along axes that are broadcast."""
        steps = [0 if n == 1 else step for n, step in zip(self.shape, self._strides, strict=True)]
        return [0] * (5 - len(steps)) + steps


def match(softmax: ir.Node, facts: Facts, version: int) -> Group | None:
    """Match MatMul, a scale, a mask that is added, Softmax and MatMul; casts between floats too."""
    rank = facts.rank(softmax.outputs[0])
    # Before operator set 13 the axis was 1 by default, and all from it on counted as one.
    axis = softmax.attributes.get_int("axis", -1 if version >= 13 else 1)
    if rank not in (3, 4) or axis not in (-1, rank - 1):
        return None
    weights, after = softmax.outputs[0], []
    last = facts.only_user(weights)
    while last is not None and _is_float_cast(last, facts):
        after.append(last)
        weights = last.outputs[0]
        last = facts.only_user(weights)
    if last is None or last.op_type != "MatMul" or last.domain or last.inputs[0] is not weights:
        return None
    scores, inner = _uncast(softmax.inputs[0], facts)
    inner.insert(0, softmax)
    mask = None
    add = producer(scores, "Add")
    if add is not None:
        if not _alone(add, facts):
            return None
        inner.append(add)
        operands = [tuple(add.inputs), tuple(add.inputs)[::-1]]
        pairs = [(s, m) for s, m in operands if _product(s, facts) is not None]
        if not pairs:
            return None
        scores, mask = pairs[0]
    found = _product(scores, facts)
    if found is None:
        return None
    product, scale, scaling = found
    q, scale_q, nodes_q = _scaled(product.inputs[0], facts)
    k, scale_k, nodes_k = _scaled(product.inputs[1], facts)
    inner += [*scaling, product, *nodes_q, *nodes_k]
    inputs = [q, k, last.inputs[1], *([] if mask is None else [mask])]
    attributes = {"scale": scale * scale_q * scale_k}
    return Group("attention", inputs, [*reversed(inner), *after, last], attributes)


def _is_float_cast(node: ir.Node, facts: Facts) -> bool:
    """Tell whether a node changes the type of a float: what lies between is float32 here."""
    if node.op_type != "Cast" or node.domain:
        return False
    return facts.is_float(node.inputs[0]) and facts.is_float(node.outputs[0])


def _uncast(value: ir.Value | None, facts: Facts) -> tuple[ir.Value | None, list[ir.Node]]:
    """Look behind casts between floats that are for nobody else."""
    nodes: list[ir.Node] = []
    node = producer(value, "Cast")
    while node is not None and _is_float_cast(node, facts) and _alone(node, facts):
        nodes.append(node)
        value = node.inputs[0]
        node = producer(value, "Cast")
    return value, nodes


def _alone(node: ir.Node, facts: Facts) -> bool:
    return facts.only_user(node.outputs[0]) is not None


def _scaled(value: ir.Value | None, facts: Facts) -> tuple[ir.Value | None, float, list[ir.Node]]:
    """Look behind a multiplication by a number that is for nobody else, and casts around it."""
    before, casts = _uncast(value, facts)
    node = producer(before, "Mul", "Div")
    found = None if node is None else with_constant(node, facts)
    if node is None or found is None or not _alone(node, facts) or not found[1]:
        return before, 1.0, casts
    operand, number = found
    if node.op_type == "Div":
        if operand is not node.inputs[0]:
            return before, 1.0, casts
        number = 1 / number
    inner, more = _uncast(operand, facts)
    return inner, number, [*casts, node, *more]


def _product(scores: ir.Value | None, facts: Facts) -> tuple[ir.Node, float, list[ir.Node]] | None:
    """Give the product that scores come from, its scale, and the nodes that apply it."""
    value, scale, nodes = _scaled(scores, facts)
    node = producer(value, "MatMul")
    if node is None or not _alone(node, facts):
        return None
    return node, scale, nodes


def _check(op: Op, facts: Facts) -> str | None:
    reason = needs_floats(op, facts, 4)
    if reason:
        return reason
    ranks = [facts.rank(value) for value in op.inputs[:3]]
    if len(set(ranks)) != 1 or ranks[0] not in (3, 4):
        return "its operands have no three or four dimensions"
    if len(op.inputs) > 3 and (facts.rank(op.input(3)) or 0) > (ranks[0] or 0):
        return "its mask has more dimensions than its scores"
    if any(facts.is_constant(value) for value in op.inputs[:2]):
        return "its queries or keys are constant"
    return None


@lowers("attention", check=_check)
def _attention(op: Op, builder: Builder) -> None:
    rank = builder.rank(op.required(0))
    slots, perms = [], []
    for index, dense in ((0, rank - 1), (1, rank - 2), (2, rank - 1)):
        value = op.required(index)
        perm = builder.layout(value)
        if perm[-1] != dense:
            perm = (*(axis for axis in range(rank) if axis != dense), dense)
        slots.append(builder.at(value, perm))
        if index == 1:
            # kᵀ counts its axes as [.., depth, keys].
            swap = {rank - 1: rank - 2, rank - 2: rank - 1}
            perm = tuple(swap.get(axis, axis) for axis in perm)
        perms.append(perm)
    mask = op.input(3)
    if mask is not None:
        slots.append(builder.at(mask))
        perms.append(identity(builder.rank(mask)))
    output = op.output
    user = builder.facts.only_user(output)
    moved = user is not None and user.op_type == "Transpose" and rank == 4
    perm = _SIDE_BY_SIDE if moved else identity(rank)
    step = Attention(slots, perms, builder.new(output), perm, op.get("scale", 1.0))
    builder.emit(step, output, perm)
