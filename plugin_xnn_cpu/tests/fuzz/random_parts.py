"""Draws of parts of models: attention, rotations, resizing, quantized and recurrent layers."""

from __future__ import annotations

import numpy as np
from random_layers import image
from random_operators import F32, F64, FLOATS, Graph


def attend(g: Graph) -> None:
    """Softmax(q · kᵀ · scale + mask) · v, as exporters write it."""
    kind = g.float
    b, h = g.random.choice([1, 2, 3]), g.random.choice([1, 2, 4])
    n, m, d, e = (g.random.choice([1, 2, 5, 8, 16, 33]) for _ in range(4))
    if g.opset >= 23 and g.chance(0.5):
        shared = g.random.choice([s for s in (1, 2, 4) if h % s == 0])
        q, k, v = (
            g.weight(s, kind, fed=1) for s in ((b, h, n, d), (b, shared, m, d), (b, shared, m, e))
        )
        mask = g.weight(
            g.random.choice([(n, m), (1, 1, n, m), (b, 1, n, m), (b, h, n, m)]), kind, fed=0.6
        )
        given = [q, k, v] + ([mask] if g.chance(0.5) else [])
        g.add(
            "Attention",
            given,
            is_causal=g.random.randint(0, 1) if n <= m else None,
            softcap=2.0 if g.chance(0.2) else None,
            scale=0.3 if g.chance(0.3) else None,
        )
        return
    q, k, v = (g.weight(s, kind, fed=1) for s in ((b, n, h * d), (b, m, h * d), (b, m, h * e)))

    def heads(value: str, size: int, depth: int, perm) -> list[str] | None:
        split = g.add("Reshape", [value, g.ints(b if g.chance(0.5) else 0, size, h, depth, fed=0)])
        return split and g.add("Transpose", split, perm=perm)

    q2, v2 = heads(q, n, d, [0, 2, 1, 3]), heads(v, m, e, [0, 2, 1, 3])
    k2 = heads(k, m, d, [0, 2, 3, 1])
    scale = g.constant(np.array(g.random.choice([0.25, 2.0]), kind), fed=0)
    op = g.random.choice(["Mul", "Div"])
    if g.chance(0.4):
        q2 = q2 and g.add(op, [*q2, scale])
    scores = q2 and k2 and g.add("MatMul", [*q2, *k2])
    if scores and g.chance(0.5):
        scores = g.add(op, [*scores, scale])
    if scores and g.chance(0.6):
        mask = g.random.choice([(n, m), (1, 1, n, m), (b, 1, 1, m), (b, h, n, m), (m,), (n, 1)])
        scores = g.add("Add", [*scores, g.weight(mask, kind, fed=0.5)])
    weights = scores and g.add("Softmax", scores, axis=-1 if g.opset >= 13 else 3)
    y = weights and v2 and g.add("MatMul", [*weights, *v2])
    y = y and g.add("Transpose", y, perm=[0, 2, 1, 3])
    if y:
        g.add("Reshape", [*y, g.ints(0, n, h * e, fed=0)])


def rotary(g: Graph) -> None:
    kind = g.float
    b, h, n, d = (g.random.choice(s) for s in ((1, 2), (1, 3, 4), (1, 5, 8), (2, 4, 8, 16)))
    x = g.weight((b, h, n, d), kind, fed=1)
    cos, sin = (
        g.weight(g.random.choice([(n, d), (1, 1, n, d), (b, 1, n, d)]), kind, fed=0.5) for _ in "cs"
    )
    if g.opset < 10:
        return
    big = 2**31 - 1

    def cut(start: int, end: int) -> list[str] | None:
        return g.add(
            "Slice",
            [x, g.ints(start, fed=0), g.ints(end, fed=0), g.ints(3, fed=0), g.ints(1, fed=0)],
        )

    low, high = cut(0, d // 2), cut(d // 2, big)
    turned = high and g.add("Neg", high)
    joined = turned and low and g.add("Concat", [*turned, *low], axis=-1 if g.opset > 10 else 3)
    left, right = g.add("Mul", [x, cos]), joined and g.add("Mul", [*joined, sin])
    if left and right:
        g.add("Add", [*left, *right])


def resize(g: Graph) -> None:
    x = image(g, 4) if g.chance(0.8) else g.pick(FLOATS, 2, 5)
    if x is None or g.opset < 11:
        return
    shape = g.shape_of(x)
    mode = g.random.choice(["nearest", "nearest", "linear", "linear", "cubic"])
    lead = [1.0] * (len(shape) - 2)
    scales = [*lead, *(g.random.choice([1.0, 2.0, 0.5, 1.5, 3.0]) for _ in range(2))]
    how = ["half_pixel", "asymmetric", "align_corners"] + (
        ["half_pixel_symmetric"] if g.opset >= 19 else []
    )
    given = [x, "", ""] if g.opset >= 13 else [x, g.constant(np.zeros(0, np.float32), fed=0)]
    if g.chance(0.5):
        given = [*given[:2], g.constant(np.array(scales, np.float32), fed=0.05)]
    else:
        sizes = [max(1, int(s * f)) if s else 0 for s, f in zip(shape, scales, strict=True)]
        empty = given[2] if len(given) > 2 else g.constant(np.zeros(0, np.float32), fed=0)
        given = [*given[:2], empty, g.ints(*sizes, fed=0.05)]
    nearest = g.random.choice(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
    g.add(
        "Resize",
        given,
        mode=mode,
        coordinate_transformation_mode=g.random.choice(how),
        nearest_mode=nearest if mode == "nearest" else None,
        exclude_outside=1 if mode == "cubic" and g.chance(0.3) else None,
        antialias=1 if g.opset >= 18 and mode != "nearest" and g.chance(0.1) else None,
    )


def quantized(g: Graph) -> None:
    """A layer between DequantizeLinear and QuantizeLinear."""
    if g.opset < 10:
        return
    x = g.pick((F32,), 1, 4, exact=True)
    if x is None:
        return
    kind = g.random.choice([np.uint8, np.int8])
    scale = np.float32(g.random.choice([0.02, 0.05, 0.1, 0.25]))
    zero = g.constant(
        np.array(g.random.choice([0, 3, 10]) if kind == np.int8 else 128, kind), fed=0
    )
    step = g.constant(scale, fed=0)
    q = g.add("QuantizeLinear", [x, step, zero])
    y = q and g.add("DequantizeLinear", [*q, step, zero])
    if not y:
        return
    shape = g.shape_of(y[0])
    form = g.random.randrange(4)
    if form == 0 and len(shape) >= 2 and shape[-1]:
        w = quantized_weight(g, (shape[-1], g.random.choice([1, 3, 8, 17, 32])), 1)
        y = w and g.add("MatMul", [*y, *w])
    elif form == 1 and len(shape) == 4 and shape[1]:
        side = g.random.choice([1, 3])
        w = quantized_weight(g, (g.random.choice([1, 8, 17]), shape[1], side, side), 0)
        y = w and g.add("Conv", [*y, *w], pads=[side // 2] * 4)
    elif form == 2:
        y = g.add(g.random.choice(["Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSwish"]), y)
    if y and g.chance(0.3):
        g.add("Relu", y)


def quantized_weight(g: Graph, shape, axis: int) -> list[str] | None:
    each = g.chance(0.5) and g.opset >= 13
    count = (shape[axis],) if each else ()
    scales = g.constant((g.numbers.uniform(0.5, 1, count) * 0.02).astype(np.float32), fed=0)
    zero = g.constant(np.zeros(count, np.int8), fed=0)
    ints = g.constant(g.numbers.integers(-127, 128, shape).astype(np.int8), fed=0)
    return g.add("DequantizeLinear", [ints, scales, zero], axis=axis if each else None)


def integers(g: Graph) -> None:
    """MatMulInteger, QLinearMatMul, ConvInteger, DynamicQuantizeLinear."""
    if g.opset < 11:
        return
    form = g.random.randrange(3)
    if form == 0:
        g.add("DynamicQuantizeLinear", [g.pick((F32,), exact=True)], 3)
    elif form == 1:
        kind = g.random.choice([np.int8, np.uint8])
        x = g.weight((g.random.choice([1, 3, 8]), 9), kind, fed=1)
        zero = g.constant(np.array(2, kind), fed=0)
        g.add("MatMulInteger", [x, g.weight((9, 5), kind), *([zero] if g.chance(0.5) else [])])
    else:
        x = g.weight((1, 3, 8, 8), np.uint8, fed=1)
        g.add("ConvInteger", [x, g.weight((4, 3, 3, 3), np.uint8)], pads=[1] * 4)


def recurrent(g: Graph) -> None:
    kind = g.random.choice([F32, F32, F64 if g.opset > 30 else F32])
    n, b, i, h = (g.random.choice(s) for s in ((1, 2, 5), (1, 3), (1, 4), (1, 2, 8)))
    op, gates = g.random.choice([("LSTM", 4), ("GRU", 3), ("RNN", 1)])
    way = g.random.choice(["forward", "reverse", "bidirectional"])
    d = 2 if way == "bidirectional" else 1
    x = g.weight((n, b, i), kind, fed=1)
    given = [x, g.weight((d, gates * h, i), kind), g.weight((d, gates * h, h), kind)]
    given.append(g.weight((d, 2 * gates * h), kind) if g.chance(0.6) else "")
    lengths = g.numbers.integers(1, n + 1, b).astype(np.int32)
    given.append(g.constant(lengths, fed=0.4) if g.chance(0.3) else "")
    given.append(g.weight((d, b, h), kind) if g.chance(0.4) else "")
    if op == "LSTM":
        given.append(g.weight((d, b, h), kind) if g.chance(0.4) else "")
        given.append(g.weight((d, 3 * h), kind) if g.chance(0.3) else "")
    g.add(
        op,
        given,
        3 if op == "LSTM" else 2,
        hidden_size=h,
        direction=way,
        linear_before_reset=g.random.randint(0, 1) if op == "GRU" else None,
        clip=0.7 if g.chance(0.2) else None,
        input_forget=1 if op == "LSTM" and g.chance(0.2) else None,
    )
