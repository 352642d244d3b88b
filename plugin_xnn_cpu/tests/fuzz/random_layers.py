"""Draws of layers: convolutions, pooling, matmuls, normalizations."""

from __future__ import annotations

import math

import numpy as np
from random_operators import F16, F32, F64, FLOATS, Graph, names

RELUS = ("Relu", "Relu", "Sigmoid", "Tanh", "HardSwish", "LeakyRelu", "Elu", "HardSigmoid")


def scaled(g: Graph, shape, kind, fed: float = 0.1) -> str:
    fan = math.prod(shape[1:]) or 1
    return g.constant((g.numbers.standard_normal(shape) / math.sqrt(fan)).astype(kind), fed=fed)


def image(g: Graph, rank: int | None = None) -> str | None:
    rank = rank or g.random.choice([3, 4, 4, 4, 4, 4, 5])
    return g.pick(FLOATS, rank, rank)


def padding(g: Graph, shape, kernel, strides, dilations) -> dict:
    form = g.random.randrange(6)
    if form == 0:
        return {}
    if form == 1 and all(d == 1 for d in dilations):
        # Where a kernel is smaller than its stride, pads would be negative.
        fit = all(k >= s for k, s in zip(kernel, strides, strict=True))
        return {
            "auto_pad": g.random.choice(["SAME_UPPER", "SAME_LOWER", "VALID"] if fit else ["VALID"])
        }
    if form == 2:
        return {"pads": [(k - 1) * d // 2 for k, d in zip(kernel, dilations, strict=True)] * 2}
    return {"pads": [g.random.choice([0, 1, 2]) for _ in range(2 * len(kernel))]}


def conv(g: Graph) -> None:
    x = image(g)
    if x is None:
        return
    shape, kind = g.shape_of(x), g.values[x].dtype
    c, spatial = shape[1], shape[2:]
    if c == 0:
        return
    groups = g.random.choice([1, 1, 1, c, c, *(d for d in (2, 3, 4) if c % d == 0)])
    outputs = (
        groups * g.random.choice([1, 1, 2, 3])
        if groups > 1
        else g.random.choice([1, 2, 5, 8, 16, 17, 32, 48])
    )
    kernel = [g.random.choice([1, 1, 2, 3, 3, 3, 5]) for _ in spatial]
    if g.chance(0.5):
        kernel = [kernel[0]] * len(spatial)
    strides = [g.random.choice([1, 1, 1, 2, 3]) for _ in spatial]
    if g.chance(0.6):
        strides = [strides[0]] * len(spatial)
    dilations = [g.random.choice([1, 1, 1, 1, 2, 3]) for _ in spatial]
    given = [x, scaled(g, (outputs, c // groups, *kernel), kind)]
    if g.chance(0.6):
        given.append(g.weight((outputs,), kind))
    found = g.add(
        "Conv",
        given,
        group=groups if groups > 1 or g.chance(0.3) else None,
        kernel_shape=kernel if g.chance(0.6) else None,
        strides=strides if g.chance(0.8) else None,
        dilations=dilations if g.chance(0.5) else None,
        **padding(g, spatial, kernel, strides, dilations),
    )
    if found:
        ending(g, found[0])


def ending(g: Graph, y: str) -> None:
    """Epilogues of a convolution or matmul: norms, residuals, activations, gates."""
    for _ in range(g.random.choice([0, 0, 1, 2, 3])):
        shape, kind = g.shape_of(y), g.values[y].dtype
        form = g.random.randrange(8)
        if form == 0 and len(shape) >= 3:
            c = shape[1]
            var = g.constant(np.abs(g.numbers.standard_normal(c)).astype(kind) + kind.type(0.5))
            terms = [g.weight((c,), kind) for _ in range(3)]
            found = g.add("BatchNormalization", [y, *terms, var], epsilon=1e-3)
        elif form in (1, 2):
            other = g.pick((kind,), fits=lambda a, shape=shape: a.shape == shape)
            if other is None or g.chance(0.4):
                other = g.weight(g.broadcast(shape), kind, fed=0.4)
            op = g.random.choice(["Add", "Add", "Mul", "Sub"])
            found = g.add(op, [y, other] if g.chance(0.6) else [other, y])
        elif form == 3:
            gate = g.add("Sigmoid", [y])
            found = gate and g.add("Mul", [y, *gate])
        elif form == 4 and g.opset >= 11:
            low, high = g.random.choice([(0, 6), (-1, 1), (0, 1), (-np.inf, 2)])
            found = g.add(
                "Clip",
                [
                    y,
                    g.constant(np.array(low, kind), fed=0),
                    g.constant(np.array(high, kind), fed=0),
                ],
            )
        elif form == 5:
            half, one, root = (g.constant(np.array(n, kind), fed=0) for n in (0.5, 1, math.sqrt(2)))
            inner = g.add("Div", [y, root])
            inner = inner and g.add("Erf", inner)
            inner = inner and g.add("Add", [*inner, one])
            inner = inner and g.add("Mul", [y, *inner])
            found = inner and g.add("Mul", [*inner, half])
        else:
            found = g.add(g.random.choice(RELUS), [y])
        if found:
            y = found[0]


def conv_transpose(g: Graph) -> None:
    x = image(g)
    if x is None:
        return
    shape, kind = g.shape_of(x), g.values[x].dtype
    c, spatial = shape[1], shape[2:]
    if c == 0:
        return
    groups = g.random.choice([1, 1, c, *(d for d in (2, 3) if c % d == 0)])
    each = g.random.choice([1, 2, 3, 8])
    kernel = [g.random.choice([1, 2, 3, 3, 4]) for _ in spatial]
    strides = [g.random.choice([1, 2, 2, 3]) for _ in spatial]
    dilations = [g.random.choice([1, 1, 1, 2]) for _ in spatial]
    extra = [g.random.randrange(max(s, d)) for s, d in zip(strides, dilations, strict=True)]
    more = {"output_padding": extra} if g.chance(0.35) else {}
    form = g.random.randrange(4)
    if form == 0:
        more = {
            "output_shape": [
                s * t + g.random.choice([0, 0, 1]) for s, t in zip(spatial, strides, strict=True)
            ]
        }
        if g.chance(0.4):
            more["auto_pad"] = g.random.choice(["SAME_UPPER", "SAME_LOWER"])
    elif form == 1:
        # Where a kernel is smaller than its stride, pads are below 0, which onnxruntime clips.
        fit = all(k >= s for k, s in zip(kernel, strides, strict=True))
        more["auto_pad"] = g.random.choice(
            ["SAME_UPPER", "SAME_LOWER", "VALID"] if fit else ["VALID"]
        )
    elif form == 2:
        more["pads"] = [g.random.choice([0, 1, 1, 2]) for _ in range(2 * len(kernel))]
    given = [x, scaled(g, (c, each, *kernel), kind)]
    if g.chance(0.5):
        given.append(g.weight((each * groups,), kind))
    found = g.add(
        "ConvTranspose",
        given,
        group=groups,
        kernel_shape=kernel if g.chance(0.6) else None,
        strides=strides,
        dilations=dilations,
        **more,
    )
    if found:
        ending(g, found[0])


def pool(g: Graph) -> None:
    x = image(g)
    if x is None:
        return
    spatial = g.shape_of(x)[2:]
    op = g.random.choice(["MaxPool", "MaxPool", "AveragePool", "AveragePool", "LpPool", "Global"])
    if op == "Global":
        g.add(g.random.choice(["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"]), [x])
        return
    kernel = [g.random.choice([1, 2, 2, 3, 3, 5]) for _ in spatial]
    strides = [g.random.choice([1, 1, 2, 3]) for _ in spatial]
    dilations = [1] * len(spatial)
    since = {"MaxPool": 10, "AveragePool": 19, "LpPool": 18}[op]
    if g.opset >= since and g.chance(0.3):
        dilations = [g.random.choice([1, 2, 3]) for _ in spatial]
    pads = padding(g, spatial, kernel, strides, dilations)
    ceil = g.opset >= (18 if op == "LpPool" else 10) and g.chance(0.4)
    two = op == "MaxPool" and g.chance(0.1)
    g.add(
        op,
        [x],
        2 if two else 1,
        kernel_shape=kernel,
        strides=strides if g.chance(0.8) else None,
        dilations=dilations if any(d > 1 for d in dilations) else None,
        ceil_mode=1 if ceil else None,
        count_include_pad=1 if op == "AveragePool" and g.chance(0.4) else None,
        **pads,
    )


def matmul(g: Graph) -> None:
    x = g.pick((F32, F32, F16, F64), 1, 5)
    if x is None:
        return
    shape, kind = g.shape_of(x), g.values[x].dtype
    k = shape[-1]
    n = g.random.choice([1, 2, 3, 5, 8, 15, 16, 17, 32, 33, 64, 100])
    form = g.random.randrange(6)
    if form == 0 and len(shape) == 2:
        a, b = g.random.randint(0, 1), g.random.randint(0, 1)
        k = shape[0] if a else shape[1]
        rows = shape[1] if a else shape[0]
        given = [x, scaled(g, (n, k) if b else (k, n), kind)]
        if g.chance(0.6):
            given.append(
                g.weight(g.random.choice([(n,), (1, n), (rows, 1), (1,), (rows, n), ()]), kind)
            )
        alpha = g.random.choice([None, 1.0, 0.5, 0.0])
        beta = g.random.choice([None, 1.0, 2.0, 0.0])
        found = g.add("Gemm", given, alpha=alpha, beta=beta, transA=a or None, transB=b or None)
    elif form == 1 and len(shape) >= 2:
        y = g.pick((kind,), 1, 5, lambda o: o.shape[-2 if o.ndim > 1 else 0] == k)
        found = g.add("MatMul", [x, y])
    elif form == 2 and len(shape) >= 2:
        perm = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
        turned = g.add("Transpose", [x], perm=perm)
        found = turned and g.add("MatMul", [x, *turned] if g.chance(0.5) else [*turned, x])
    elif form == 3:
        lead = g.broadcast(shape[:-2])
        found = g.add("MatMul", [x, scaled(g, (*lead, k, n), kind)])
    elif form == 4:
        found = g.add("MatMul", [x, g.weight((k,), kind)])
    else:
        found = g.add("MatMul", [x, scaled(g, (k, n), kind)])
        if found and g.chance(0.5):
            found = g.add("Add", [*found, g.weight((n,), kind)])
    if found:
        ending(g, found[0])


def normalize(g: Graph) -> None:
    x = g.pick(FLOATS, 1, 5)
    if x is None:
        return
    shape, kind = g.shape_of(x), g.values[x].dtype
    axis = g.axis(len(shape))
    op = g.random.choice(
        names(
            "Softmax Softmax LogSoftmax LayerNormalization LayerNormalization "
            "RMSNormalization InstanceNormalization GroupNormalization LpNormalization LRN "
            "BatchNormalization MeanVarianceNormalization written"
        )
    )
    tail = shape[axis:]
    if op in ("Softmax", "LogSoftmax"):
        g.add(op, [x], axis=axis if g.chance(0.8) else None)
    elif op in ("LayerNormalization", "RMSNormalization"):
        terms = [x, g.weight(tail if g.chance(0.8) else tail[-1:], kind)]
        if op[0] == "L" and g.chance(0.6):
            terms.append(g.weight(tail, kind))
        g.add(op, terms, g.random.choice([1, 1, 3]) if op[0] == "L" else 1, axis=axis, epsilon=1e-3)
    elif op == "InstanceNormalization" and len(shape) >= 3:
        g.add(op, [x, g.weight(shape[1:2], kind), g.weight(shape[1:2], kind)], epsilon=0.01)
    elif op == "GroupNormalization" and len(shape) >= 3 and shape[1]:
        groups = g.random.choice([d for d in range(1, shape[1] + 1) if shape[1] % d == 0])
        count = shape[1] if g.opset >= 21 else groups
        g.add(
            op,
            [x, g.weight((count,), kind), g.weight((count,), kind)],
            num_groups=groups,
            epsilon=0.01,
        )
    elif op == "LpNormalization":
        g.add(op, [x], axis=axis, p=g.random.choice([1, 2]))
    elif op == "LRN" and len(shape) == 4:
        g.add(op, [x], size=g.random.choice([1, 3, 5]), alpha=0.1, beta=0.7, bias=1.5)
    elif op == "BatchNormalization" and len(shape) >= 2:
        c = shape[1]
        var = g.constant(np.abs(g.numbers.standard_normal(c)).astype(kind) + kind.type(0.5))
        g.add(op, [x, *(g.weight((c,), kind) for _ in range(3)), var], epsilon=1e-2)
    elif op == "MeanVarianceNormalization":
        g.add(
            op,
            [x],
            axes=sorted(g.random.sample(range(len(shape)), 1 + g.random.randrange(len(shape)))),
        )
    elif op == "written":
        written_norm(g, x)


def written_norm(g: Graph, x: str) -> None:
    """LayerNormalization as exporters write it."""
    shape, kind = g.shape_of(x), g.values[x].dtype

    def mean(value: str) -> list[str] | None:
        if g.opset >= 18:
            return g.add("ReduceMean", [value, g.ints(-1, fed=0)])
        return g.add("ReduceMean", [value], axes=[-1] if g.opset >= 11 else [len(shape) - 1])

    centred: list[str] | None = [x]
    if g.chance(0.6):
        middle = mean(x)
        centred = middle and g.add("Sub", [x, *middle])
    if not centred:
        return
    two, eps = (g.constant(np.array(n, kind), fed=0) for n in (2, 1e-2))
    square = g.add("Pow", [*centred, two]) if g.chance(0.5) else g.add("Mul", centred * 2)
    var = square and mean(square[0])
    var = var and g.add("Add", [*var, eps])
    root = var and g.add("Sqrt", var)
    if not root:
        return
    if g.chance(0.6):
        y = g.add("Div", [*centred, *root])
    else:
        inverse = g.add("Reciprocal", root)
        y = inverse and g.add("Mul", [*centred, *inverse])
    if y and g.chance(0.8):
        y = g.add("Mul", [*y, g.weight(shape[-1:], kind)])
        if y and g.chance(0.6):
            g.add("Add", [*y, g.weight(shape[-1:], kind)])
