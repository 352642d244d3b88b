"""Draws of rarer operators, of networks for images, of functions and of sequences."""

from __future__ import annotations

import numpy as np
import random_layers as layers
from onnx import helper
from random_operators import BOOL, F32, F64, FLOATS, I32, I64, Graph

MICROSOFT = "com.microsoft"


def network(g: Graph) -> None:
    """Convolutions as in networks for images: separable ones, residuals, gates, branches."""
    c, side = g.random.choice([3, 8, 16, 24, 32, 48]), g.random.choice([7, 8, 14, 15, 20])
    x = (
        g.pick((F32,), 4, 4)
        if g.chance(0.3)
        else g.input(g.array(F32, (g.sizes.get("N", 1), c, side, side)))
    )
    if x is None or 0 in g.shape_of(x):
        return
    for _ in range(g.random.randint(1, 4)):
        c = g.shape_of(x)[1]
        form = g.random.randrange(6)
        found: list[str] | None = None
        if form <= 1:
            k = g.random.choice([3, 3, 5])
            s = g.random.choice([1, 1, 2])
            w = layers.scaled(g, (c, 1, k, k), F32, fed=0)
            pads = [k // 2] * 4 if g.chance(0.8) else [k // 2, k // 2, 0, 1]
            given = [x, w, g.weight((c,), F32, fed=0)] if g.chance(0.6) else [x, w]
            found = g.add("Conv", given, group=c, pads=pads, strides=[s, s])
        elif form <= 3:
            n = g.random.choice([8, 16, 24, 40, c])
            k = g.random.choice([1, 1, 3])
            w = layers.scaled(g, (n, c, k, k), F32, fed=0)
            given = [x, w, g.weight((n,), F32, fed=0)] if g.chance(0.6) else [x, w]
            found = g.add("Conv", given, pads=[k // 2] * 4)
        elif form == 4:
            y = g.add("GlobalAveragePool", [x])
            y = y and g.add("Conv", [*y, layers.scaled(g, (c, c, 1, 1), F32, fed=0)])
            y = y and g.add(g.random.choice(["Sigmoid", "HardSigmoid"]), y)
            found = y and g.add("Mul", [x, *y])
        else:
            found = g.add(
                g.random.choice(["MaxPool", "AveragePool"]),
                [x],
                kernel_shape=[2, 2],
                strides=[2, 2],
            )
        if not found:
            return
        before = len(g.nodes)
        layers.ending(g, found[0])
        last = g.nodes[-1].output[0] if len(g.nodes) > before else found[0]
        fits = g.values[last].ndim == 4
        if fits and g.shape_of(last) == g.shape_of(x) and g.chance(0.6):
            last = (g.add("Add", [last, x] if g.chance(0.5) else [x, last]) or [last])[0]
            if g.chance(0.5):
                last = (g.add("Relu", [last]) or [last])[0]
        x = last if fits else found[0]


def rare(g: Graph) -> None:
    form = g.random.randrange(16)
    x = g.pick(FLOATS, 2, 4, lambda a: a.size > 0)
    if x is None:
        return
    shape, kind = g.shape_of(x), g.values[x].dtype
    if form == 0:
        image = g.pick((F32,), 4, 4)
        if image:
            n = g.shape_of(image)[0]
            grid = g.constant(g.numbers.uniform(-1.2, 1.2, (n, 3, 4, 2)).astype(F32), fed=0.5)
            mode = g.random.choice(
                ["bilinear", "nearest", "bicubic"]
                if g.opset < 20
                else ["linear", "nearest", "cubic"]
            )
            pads = g.random.choice(["zeros", "border", "reflection"])
            g.add(
                "GridSample",
                [image, grid],
                mode=mode,
                padding_mode=pads,
                align_corners=g.random.randint(0, 1),
            )
    elif form == 1:
        g.add("CenterCropPad", [x, g.ints(*(g.random.choice([1, 3, 6]) for _ in shape))])
    elif form == 2 and len(shape) >= 2 and shape[-1] == shape[-2]:
        g.add("Det", [x])
    elif form == 3 and len(shape) == 3:
        g.add(
            "Col2Im",
            [g.weight((1, 5, 5), F32, fed=1), g.ints(5, 5), g.ints(1, 5)],
            dilations=[1, 1],
        )
    elif form == 4:
        target = g.weight((shape[0], *shape[2:]), np.int64, fed=0)
        zero = g.constant(np.abs(g.values[target]) % max(shape[1], 1), fed=0.3)
        op = g.random.choice(["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"])
        g.add(op, [x, zero], reduction=g.random.choice(["mean", "sum", "none"]))
    elif form == 5:
        boxes = np.sort(g.numbers.uniform(0, 8, (1, 6, 4)), axis=-1).astype(F32)
        scores = g.numbers.random((1, 2, 6)).astype(F32)
        limits = [
            g.constant(np.array(3), fed=0),
            g.constant(F32.type(0.4), fed=0),
            g.constant(F32.type(0.1), fed=0),
        ]
        g.add("NonMaxSuppression", [g.constant(boxes, fed=1), g.constant(scores, fed=1), *limits])
    elif form == 6:
        g.add(g.random.choice(["IsNaN", "IsInf"]), [g.pick((F32, F64), exact=True)])
    elif form == 7:
        condition = g.numbers.random(shape[0]) < 0.6
        g.add(
            "Compress",
            [
                g.pick(FLOATS, 2, 4, lambda a: a.shape[0] == shape[0]),
                g.constant(condition, fed=0.4),
            ],
            axis=0,
        )
    elif form == 8 and g.opset >= 23:
        b, h, n, d = 2, 3, 5, 8
        halves = [g.weight((b, n, d // 2), kind, fed=0.5) for _ in range(2)]
        g.add(
            "RotaryEmbedding",
            [g.weight((b, h, n, d), kind, fed=1), *halves],
            interleaved=g.random.randint(0, 1),
        )
    elif form == 9 and g.opset >= 10:
        scale, zero = g.constant(F32.type(0.05), fed=0), g.constant(np.array(3, np.int8), fed=0)
        a, b = g.weight((4, 9), np.int8, fed=1), g.weight((9, 5), np.int8)
        g.add(
            "QLinearMatMul",
            [a, scale, zero, b, scale, zero, g.constant(F32.type(0.5), fed=0), zero],
        )
    elif form == 10 and g.opset >= 10:
        scale, zero = g.constant(F32.type(0.05), fed=0), g.constant(np.array(3, np.uint8), fed=0)
        none = g.constant(np.array(0, np.int8), fed=0)
        a, b = g.weight((1, 4, 6, 6), np.uint8, fed=1), g.weight((5, 4, 3, 3), np.int8)
        g.add(
            "QLinearConv",
            [a, scale, zero, b, scale, none, g.constant(F32.type(0.3), fed=0), zero],
            pads=[1] * 4,
        )
    elif form == 11:
        g.add(
            g.random.choice(["BitwiseXor", "BitwiseNot"]),
            [g.pick((I32, I64))] * g.random.randint(1, 2),
        )
    elif form == 12 and g.opset >= 17:
        g.add("DFT", [g.weight((2, 8, 1), F32, fed=1)], axis=1 if g.opset < 20 else None)
    elif form == 13:
        image = g.weight((1, 3, 8, 8), F32, fed=1)
        rois = g.constant(np.float32([[0, 0, 5, 5], [1, 2, 7, 6]]), fed=0.5)
        batch = g.constant(np.int64([0, 0]), fed=0.5)
        g.add("RoiAlign", [image, rois, batch], output_height=2, output_width=3, spatial_scale=0.9)
    elif form == 14:
        g.add("Range", [g.constant(np.array(n, np.float32)) for n in (0, 5.5, 0.5)])
    elif form == 15 and g.opset >= 12:
        g.add("LessOrEqual", [g.pick((I32, I64)), g.constant(np.array(1, np.int64))])


def written(g: Graph) -> None:
    """GELU, SiLU and hard swish in the forms that exporters write, with numbers of any rank."""
    x = g.pick(FLOATS, 0, 4)
    if x is None:
        return
    kind = g.values[x].dtype

    def number(value: float) -> str:
        return g.constant(np.full((1,) * g.random.choice([0, 0, 0, 1, 2]), value, kind), fed=0)

    def pair(op: str, a: str | list[str] | None, b: str | list[str] | None) -> list[str] | None:
        if not a or not b:
            return None
        one, other = (v if isinstance(v, str) else v[0] for v in (a, b))
        swapped = op in ("Add", "Mul") and g.chance(0.4)
        return g.add(op, [other, one] if swapped else [one, other])

    form = g.random.randrange(5)
    if form == 0:
        inner = (
            pair("Mul", x, number(0.7071067811865476))
            if g.chance(0.5)
            else pair("Div", x, number(1.4142135))
        )
        one = pair("Add", inner and g.add("Erf", inner), number(1))
        pair("Mul", pair("Mul", x, one), number(0.5)) if g.chance(0.5) else pair(
            "Mul", pair("Mul", x, number(0.5)), one
        )
    elif form == 1:
        cube = g.add("Pow", [x, number(3)]) if g.chance(0.5) else pair("Mul", pair("Mul", x, x), x)
        inner = pair("Add", x, pair("Mul", cube, number(0.044715)))
        inner = pair("Mul", inner, number(0.7978845608))
        one = pair("Add", inner and g.add("Tanh", inner), number(1))
        pair("Mul", pair("Mul", x, number(0.5)), one)
    elif form == 2:
        steep = pair("Mul", x, number(1.702)) if g.chance(0.6) else [x]
        pair("Mul", x, steep and g.add("Sigmoid", steep))
    elif form == 3 and g.opset >= 11:
        low, high = (g.constant(np.array(n, kind), fed=0) for n in (0, 6))
        inner = pair("Add", x, number(3))
        inner = inner and g.add("Clip", [*inner, low, high])
        pair("Mul", x, pair("Div", inner, number(6))) if g.chance(0.5) else pair(
            "Div", pair("Mul", x, inner), number(6)
        )
    else:
        pair("Mul", x, g.add("HardSigmoid", [x], alpha=1 / 6, beta=0.5))


def sequence(g: Graph) -> None:
    """Values that go through a sequence."""
    x = g.pick(FLOATS, 1, 4, lambda a: a.size > 0)
    if x is None or g.opset < 11 or g.parent is not None:
        return
    y = g.pick((g.values[x].dtype,), fits=lambda a: a.shape == g.shape_of(x))
    if y is None:
        return
    name = g.name("q")
    nodes = [helper.make_node("SequenceConstruct", [x, y, x], [name], name)]
    at = g.constant(np.array(g.random.choice([0, 1, -1]), np.int64), fed=0.3)
    if g.chance(0.5):
        longer = g.name("q")
        nodes.append(helper.make_node("SequenceInsert", [name, y, at], [longer], longer))
        name = longer
    if g.chance(0.5):
        result = g.name("v")
        nodes.append(helper.make_node("ConcatFromSequence", [name], [result], result, axis=0))
    else:
        result = g.name("v")
        nodes.append(helper.make_node("SequenceAt", [name, at], [result], result))
    values = g.evaluate_all(nodes, [x, y, at], [result])
    if values is not None and values[0].size <= g.most:
        g.nodes.extend(nodes)
        g.know(result, values[0], exact=x in g.exact and y in g.exact, scale=g.scale[x])


def integers(g: Graph) -> None:
    """Integers of all sizes, moved and compared."""
    kind = np.dtype(
        g.random.choice([np.int16, np.uint16, np.uint32, np.uint64, np.int64, np.uint8])
    )
    x = g.weight(g.shape(1, 4), kind, fed=0.8)
    for _ in range(g.random.randint(1, 3)):
        shape = g.shape_of(x)
        op = g.random.choice(
            [
                "Transpose",
                "Concat",
                "Neg",
                "Abs",
                "Add",
                "Max",
                "Equal",
                "ReduceMax",
                "Where",
                "Slice",
            ]
        )
        if op == "Where":
            found = g.add(op, [g.weight(shape, BOOL), x, g.weight((1,), kind)])
        elif op == "Slice":
            found = g.add(op, [x, g.ints(0), g.ints(-1), g.ints(0)]) if g.opset >= 10 else None
        elif op in ("Concat", "Add", "Max", "Equal"):
            found = g.add(
                op, [x, g.weight(shape, kind, fed=0.3)], axis=0 if op == "Concat" else None
            )
        else:
            found = g.add(op, [x])
        if found and g.values[found[0]].dtype == kind and g.values[found[0]].ndim:
            x = found[0]
