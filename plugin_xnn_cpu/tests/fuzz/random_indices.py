"""Draws of reductions, and of operators with indices, shapes and letters."""

from __future__ import annotations

import math

import numpy as np
from random_draws import with_axes
from random_operators import (
    ALL,
    BOOL,
    F32,
    F64,
    FLOATS,
    I8,
    I32,
    I64,
    U8,
    Graph,
    names,
)


def reduce(g: Graph) -> None:
    op = g.random.choice(
        names(
            "ReduceSum ReduceMean ReduceMax ReduceMin ReduceL2 ReduceL1 ReduceSumSquare "
            "ReduceProd ReduceLogSumExp ReduceLogSum"
        )
    )
    whole = g.chance(0.2) and "Log" not in op  # logarithms near an integer are cut off
    kinds = (I32, I64) if whole else FLOATS
    x = g.pick(kinds)
    if x is None:
        return
    shape = g.shape_of(x)
    if op == "ReduceLogSum":
        found = g.add("Abs", [x])
        x = found[0] if found else x
    axes = g.random.sample(range(len(shape)), g.random.randint(0, len(shape)))
    axes = [a - len(shape) if g.chance(0.3) and g.opset >= 11 else a for a in axes]
    since = 13 if op == "ReduceSum" else 18
    keep = {"keepdims": g.random.randint(0, 1)} if g.chance(0.8) else {}
    if g.opset >= since and g.chance(0.3):
        keep["noop_with_empty_axes"] = g.random.randint(0, 1)
    if not axes and (g.opset < since or g.chance(0.5)):
        with_axes(g, op, x, None, since, **keep)
    else:
        with_axes(g, op, x, axes, since, **keep)


def arg(g: Graph) -> None:
    x = g.pick((F32, F64, I32, U8, I8), 1, exact=True)
    if x is None:
        return
    shape = g.shape_of(x)
    op = g.random.choice(["ArgMax", "ArgMin", "TopK", "Hardmax", "CumSum", "Unique", "NonZero"])
    axis = g.axis(len(shape))
    if op.startswith("Arg"):
        last = g.random.randint(0, 1) if g.opset >= 12 else None
        g.add(op, [x], axis=axis, keepdims=g.random.randint(0, 1), select_last_index=last)
    elif op == "TopK" and g.opset >= 10:
        k = g.ints(g.random.randint(0, shape[axis]))
        order = {"largest": g.random.randint(0, 1), "sorted": 1} if g.opset >= 11 else {}
        g.add(op, [x, k], 2, axis=axis, **order)
    elif op == "CumSum":
        at = g.constant(np.array(axis, g.random.choice([np.int32, np.int64])))
        g.add(op, [x, at], exclusive=g.random.randint(0, 1), reverse=g.random.randint(0, 1))
    elif op == "Hardmax":
        g.add(op, [x], axis=axis)
    elif op == "NonZero":
        g.add(op, [x])
    elif op == "Unique":
        g.add(op, [x], g.random.randint(1, 4), axis=axis if g.chance(0.5) else None)


def gather(g: Graph) -> None:
    x = g.pick(ALL, 1, 5, lambda a: a.size > 0)
    if x is None:
        return
    shape = g.shape_of(x)
    axis = g.random.randrange(len(shape))
    size = shape[axis]
    at = axis - len(shape) if g.chance(0.3) and g.opset >= 11 else axis
    kind = g.random.choice([np.int64, np.int32])
    low = -size if g.opset >= 11 else 0
    op = g.random.choice(
        ["Gather", "Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND"]
    )
    if op == "Gather":
        indices = g.numbers.integers(low, size, g.shape(0, 2)[:2])
        g.add(op, [x, g.constant(np.asarray(indices, kind), fed=0.5)], axis=at)
    elif op == "GatherElements":
        part = [g.random.randint(1, s) for s in shape]
        part[axis] = g.random.choice([1, 2, size, size + 1])
        indices = g.numbers.integers(low, size, part)
        g.add(op, [x, g.constant(indices.astype(kind), fed=0.5)], axis=at)
    elif op == "GatherND":
        batch = g.random.randint(0, len(shape) - 1) if g.opset >= 12 else 0
        depth = g.random.randint(1, len(shape) - batch)
        lead = (*shape[:batch], *((g.random.randint(1, 4),) if g.chance(0.7) else ()))
        columns = [g.numbers.integers(low, shape[batch + i], lead) for i in range(depth)]
        indices = np.stack(columns, -1).astype(np.int64)
        g.add(op, [x, g.constant(indices, fed=0.5)], batch_dims=batch or None)
    elif op == "ScatterElements":
        part = [g.random.randint(1, s) for s in shape]
        order = np.argsort(g.numbers.random([*part[:axis], size, *part[axis + 1 :]]), axis=axis)
        indices = np.take(order, range(part[axis]), axis)
        updates = g.weight(part, g.values[x].dtype, fed=0.4)
        how = g.random.choice([None, "add", "mul", "max", "min"]) if g.opset >= 18 else None
        g.add(op, [x, g.constant(indices.astype(kind), fed=0.4), updates], axis=at, reduction=how)
    else:
        depth = g.random.randint(1, len(shape))
        places = math.prod(shape[:depth])
        chosen = g.numbers.permutation(places)[: g.random.randint(1, min(places, 5))]
        indices = np.stack(np.unravel_index(chosen, shape[:depth]), -1).astype(np.int64)
        updates = g.weight((len(chosen), *shape[depth:]), g.values[x].dtype, fed=0.4)
        how = g.random.choice([None, "add", "mul", "max", "min"]) if g.opset >= 18 else None
        g.add(op, [x, g.constant(indices, fed=0.4), updates], reduction=how)


def shapes(g: Graph) -> None:
    """Shapes as values: what exporters write for dynamic sizes."""
    x = g.pick(ALL, 1, 5)
    if x is None:
        return
    shape = g.shape_of(x)
    kind = g.random.randrange(6)
    part = {"start": g.random.randint(-2, 1), "end": len(shape)} if g.opset >= 15 else {}
    if kind == 0:
        g.add("Shape", [x], **(part if g.chance(0.5) else {}))
        return
    if kind == 1:
        g.add("Size", [x])
        return
    sizes = g.add("Shape", [x])
    if sizes is None:
        return
    if kind == 2:
        value = g.array(g.random.choice([F32, I64, BOOL]), (1,))
        import onnx

        g.add("ConstantOfShape", sizes, value=onnx.numpy_helper.from_array(value))
        return
    first = g.add("Gather", [sizes[0], g.ints(0)], axis=0)
    if first is None:
        return
    if kind == 3:
        rest = g.add("Concat", [first[0], g.ints(-1)], axis=0)
        if rest:
            g.add("Reshape", [x, rest[0]])
    elif kind == 4:
        scalar = g.add("Gather", [sizes[0], g.constant(np.array(0), fed=0)], axis=0)
        if scalar:
            zero, one = (g.constant(np.array(n, np.int64), fed=0) for n in (0, 1))
            g.add("Range", [zero, scalar[0], one])
    else:
        y = g.pick(ALL, 1, 4, lambda a: a.shape[0] == 1)
        if y is not None and first is not None:
            ones = [g.ints(*([1] * (len(g.shape_of(y)) - 1)))] if len(g.shape_of(y)) > 1 else []
            target = g.add("Concat", [first[0], *ones], axis=0)
            if target:
                g.add("Expand", [y, target[0]])


def misc(g: Graph) -> None:
    x = g.pick(FLOATS, 2, 4)
    if x is None:
        return
    shape = g.shape_of(x)
    kind = g.random.randrange(7)
    if kind == 0 and g.opset >= 14:
        k = g.constant(np.array(g.random.randint(-2, 2), np.int64)) if g.chance(0.6) else ""
        g.add("Trilu", [x, k], upper=g.random.randint(0, 1))
    elif kind == 1 and g.opset >= 10:
        lengths = g.numbers.integers(1, shape[0] + 1, shape[1]) if shape[0] else np.zeros(shape[1])
        g.add(
            "ReverseSequence", [x, g.constant(lengths.astype(np.int64))], batch_axis=1, time_axis=0
        )
    elif kind == 2 and g.opset >= 12:
        einsum(g, x)
    elif kind == 3:
        g.add("Dropout", [x], 1)
    elif kind == 4:
        g.add("EyeLike", [g.pick((F32, F64, I32, I64), 2, 2)], k=g.random.randint(-1, 1))
    elif kind == 5:
        depth = g.constant(np.array(5, np.int64))
        pair = g.constant(np.array([0.5, 2], np.float32))
        g.add(
            "OneHot",
            [g.weight(g.shape(1, 2), np.int64), depth, pair],
            axis=g.random.choice([-1, 0, 1]),
        )
    elif len(shape) == 4:
        c, h, w = shape[1:]
        if c % 4 == 0 and g.chance(0.5):
            mode = g.random.choice(["DCR", "CRD"]) if g.opset >= 11 else None
            g.add("DepthToSpace", [x], blocksize=2, mode=mode)
        elif h % 2 == 0 and w % 2 == 0:
            g.add("SpaceToDepth", [x], blocksize=2)


def einsum(g: Graph, x: str) -> None:
    shape, kind = g.shape_of(x), g.values[x].dtype
    letters = "abcd"[: len(shape)]
    form = g.random.randrange(4)
    if form == 0:
        g.add("Einsum", [x], equation=f"{letters}->{letters[::-1]}")
    elif form == 1:
        g.add(
            "Einsum",
            [x, g.weight((shape[-1], 5), kind)],
            equation=f"{letters},{letters[-1]}z->{letters[:-1]}z",
        )
    elif form == 2:
        g.add("Einsum", [x, g.weight((7, shape[-1]), kind)], equation="...k,nk->...n")
    else:
        g.add("Einsum", [x, x], equation=f"{letters},{letters}->{letters[0]}")
