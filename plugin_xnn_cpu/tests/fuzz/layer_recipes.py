"""Blocks of layers, in the sizes and with the epilogues that kernels and fusions are made for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from narrowpass_testing.random_models import (
    RECIPES,
    Case,
    Chain,
    Recipes,
    UnfitError,
    random_models,
)

LAYERS = Recipes()
"""The blocks of this module; `RECIPES | LAYERS` has those of the testing kit, too."""

ACTIVATIONS = ("Relu", "Relu", "Sigmoid", "Tanh", "HardSwish", "LeakyRelu", "Elu", "HardSigmoid")
SIDES = (1, 2, 3, 4, 5, 7, 8, 13, 16, 17)
WIDTHS = (1, 2, 3, 5, 8, 15, 16, 17, 32, 33, 64, 100)


def activation(c: Chain, y: str) -> str:
    operators = [each for each in ACTIVATIONS if each != "HardSwish" or c.opset >= 14]
    return c.add(c.pick(*operators), [y])


def ending(c: Chain, y: str) -> str:
    """Add epilogues of a convolution or a matmul: norms, residuals, activations, gates."""
    for _ in range(c.pick(0, 0, 1, 2, 3)):
        shape, form = c.shape(y), c.pick("norm", "residual", "residual", "gate", "clip", "", "")
        if form == "norm" and len(shape) >= 3 and c.opset >= 9:
            terms = [c.weight(shape[1:2]) for _ in range(3)]
            variance = c.operand(np.abs(c.floats(shape[1:2])) + np.float32(0.5))
            y = c.add("BatchNormalization", [y, *terms, variance], epsilon=1e-3)
        elif form == "residual":
            other = c.take(0, 5, lambda a, shape=shape: a.shape == shape) if c.chance(0.4) else ""
            other = other or c.weight(broadcast(c, shape), fed=0.4)
            if c.value(other).dtype != c.value(y).dtype:
                other = y
            operands = [y, other] if c.chance(0.6) else [other, y]
            y = c.add(c.pick("Add", "Add", "Mul", "Sub"), operands)
        elif form == "gate":
            y = c.add("Mul", [y, c.add("Sigmoid", [y])])
        elif form == "clip" and c.opset >= 11:
            bounds = c.pick((0, 6), (-1, 1), (0, 1), (-np.inf, 2))
            y = c.add("Clip", [y, *(c.operand(np.float32(b), fed=0) for b in bounds)])
        else:
            y = activation(c, y)
    return y


def broadcast(c: Chain, shape: Sequence[int]) -> tuple[int, ...]:
    """Draw a shape that broadcasts to another one."""
    other = [size if c.chance(0.65) else 1 for size in shape]
    return tuple(other[c.pick(0, 0, 0, *range(len(other) + 1)) :])


def image(c: Chain) -> str:
    """Take an image of one to three axes, or feed one."""
    if c.chance(0.5):
        return c.take(3, 5)
    axes = c.pick(1, 2, 2, 2, 2, 3)
    sides = [c.pick(*SIDES) for _ in range(axes)]
    return c.weight((c.pick(1, 2), c.pick(1, 2, 3, 8, 16), *sides[:2], *[3] * (axes - 2)), fed=1)


def padding(c: Chain, kernel: Sequence[int], strides: Sequence[int], dilated: bool) -> Any:
    """Return the attributes of padding, if any."""
    form = c.pick("none", "auto", "same", "any", "any", "any")
    if form == "none":
        return {}
    if form == "auto" and not dilated:
        # Where a kernel is smaller than its stride, pads would be negative.
        fit = all(k >= s for k, s in zip(kernel, strides, strict=True))
        return {"auto_pad": c.pick(*(("SAME_UPPER", "SAME_LOWER") if fit else ()), "VALID")}
    if form == "same" and not dilated:
        return {"pads": [(k - 1) // 2 for k in kernel] * 2}
    return {"pads": [c.pick(0, 1, 2) if k > 2 else c.pick(0, k - 1) for k in [*kernel, *kernel]]}


@LAYERS.block("layers", "Conv")
def conv(c: Chain) -> None:
    x = image(c)
    channels, inner = c.shape(x)[1], c.shape(x)[2:]
    groups = c.pick(1, 1, 1, channels, *(d for d in (2, 3, 4) if channels % d == 0))
    each = c.pick(1, 1, 2, 3) if groups > 1 else c.pick(1, 2, 5, 8, 16, 17, 32, 48)
    kernel = [c.pick(*(k for k in (1, 1, 2, 3, 3, 3, 5) if k <= size)) for size in inner]
    strides = [c.pick(1, 1, 1, 2, 3)] * len(inner)
    if c.chance(0.3):
        strides = [c.pick(1, 2, 3) for _ in inner]
    dilations = [1] * len(inner)
    if c.chance(0.2):
        sides = zip(kernel, inner, strict=True)
        dilations = [c.pick(1, 2, 3) if (k - 1) * 3 < size else 1 for k, size in sides]
    inputs = [x, c.weight((groups * each, channels // groups, *kernel))]
    if c.chance(0.6):
        inputs.append(c.weight((groups * each,)))
    y = c.add(
        "Conv",
        inputs,
        group=groups if groups > 1 or c.chance(0.3) else None,
        kernel_shape=kernel if c.chance(0.6) else None,
        strides=strides,
        dilations=dilations if c.chance(0.5) or max(dilations) > 1 else None,
        **padding(c, kernel, strides, max(dilations) > 1),
    )
    ending(c, y)


@LAYERS.block("layers", "ConvTranspose", opset=11)
def conv_transpose(c: Chain) -> None:
    x = image(c)
    channels, inner = c.shape(x)[1], c.shape(x)[2:]
    groups = c.pick(1, 1, channels, *(d for d in (2, 3) if channels % d == 0))
    each, kernel = c.pick(1, 2, 3, 8), [c.pick(1, 2, 3, 3, 4) for _ in inner]
    strides = [c.pick(1, 2, 2, 3) for _ in inner]
    dilations = [c.pick(1, 1, 1, 2) for _ in inner]
    more: dict[str, Any] = {}
    if c.chance(0.35):
        limits = zip(strides, dilations, strict=True)
        more["output_padding"] = [c.random.randrange(max(pair)) for pair in limits]
    form = c.pick("shape", "auto", "pads", "")
    if form == "shape":
        sides = zip(inner, strides, strict=True)
        more = {"output_shape": [s * t + c.pick(0, 0, 1) for s, t in sides]}
    elif form == "auto":
        more["auto_pad"] = "VALID"
    elif form == "pads":
        more["pads"] = [c.pick(0, 1) if k > 1 else 0 for k in [*kernel, *kernel]]
    inputs = [x, c.weight((channels, each, *kernel))]
    if c.chance(0.5):
        inputs.append(c.weight((each * groups,)))
    shape = kernel if c.chance(0.6) else None
    attributes = {"group": groups, "kernel_shape": shape, "strides": strides}
    ending(c, c.add("ConvTranspose", inputs, dilations=dilations, **attributes, **more))


@LAYERS.block("layers", "MatMul", opset=11)
def matmul(c: Chain) -> None:
    """Of constant matrices, of batches, of a value and its transpose; Gemm of two axes."""
    x = c.take(1, 5)
    shape, n = c.shape(x), c.pick(*WIDTHS)
    k = shape[-1]
    form = c.pick("gemm", "self", "batch", "vector", "dense", "dense")
    if form == "gemm" and len(shape) == 2:
        left, right = c.pick(0, 1), c.pick(0, 1)
        k, rows = shape[::-1] if not left else shape
        inputs = [x, c.weight((n, k) if right else (k, n))]
        if c.chance(0.6):
            inputs.append(c.weight(c.pick((n,), (1, n), (rows, 1), (1,), (rows, n), ())))
        alpha, beta = c.pick(None, 1.0, 0.5, 0.0), c.pick(None, 1.0, 2.0, 0.0)
        y = c.add("Gemm", inputs, alpha=alpha, beta=beta, transA=left, transB=right)
    elif form == "self" and len(shape) >= 2:
        order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
        turned = c.add("Transpose", [x], perm=order)
        y = c.add("MatMul", [x, turned] if c.chance(0.5) else [turned, x])
    elif form == "batch":
        y = c.add("MatMul", [x, c.weight((*broadcast(c, shape[:-2]), k, n))])
    elif form == "vector":
        y = c.add("MatMul", [x, c.weight((k,))])
    else:
        y = c.add("MatMul", [x, c.weight((k, n))])
        if c.chance(0.5):
            y = c.add("Add", [y, c.weight((n,))])
    ending(c, y)


@LAYERS.block("layers", "Network", opset=14)
def network(c: Chain) -> None:
    """Convolutions as in networks for images: separable ones, residuals, gates, branches."""
    side = c.pick(7, 8, 14, 15, 20)
    fits = c.chance(0.3)
    x = c.take(4, 4) if fits else ""
    x = x or c.fed(c.floats((c.pick(1, 2), c.pick(3, 8, 16, 24, 32, 48), side, side)))
    c.float = c.value(x).dtype
    for _ in range(c.pick(1, 2, 3, 4)):
        channels, kernel = c.shape(x)[1], c.pick(1, 3, 3, 5)
        form = c.pick("depthwise", "depthwise", "dense", "dense", "gate", "pool")
        if form == "depthwise":
            pads = [kernel // 2] * 4 if c.chance(0.8) else [kernel // 2, kernel // 2, 0, 1]
            inputs = [x, c.weight((channels, 1, kernel, kernel), fed=0)]
            inputs += [c.weight((channels,), fed=0)] if c.chance(0.6) else []
            stride = c.pick(1, 1, 2)
            y = c.add("Conv", inputs, group=channels, pads=pads, strides=[stride] * 2)
        elif form == "dense":
            out = c.pick(8, 16, 24, 40, channels)
            inputs = [x, c.weight((out, channels, kernel, kernel), fed=0)]
            inputs += [c.weight((out,), fed=0)] if c.chance(0.6) else []
            y = c.add("Conv", inputs, pads=[kernel // 2] * 4)
        elif form == "gate":
            y = c.add("GlobalAveragePool", [x])
            y = c.add("Conv", [y, c.weight((channels, channels, 1, 1), fed=0)])
            y = c.add("Mul", [x, c.add(c.pick("Sigmoid", "HardSigmoid"), [y])])
        elif min(c.shape(x)[2:]) < 2:
            raise UnfitError
        else:
            pool = c.pick("MaxPool", "AveragePool")
            y = c.add(pool, [x], kernel_shape=[2, 2], strides=[2, 2])
        y = ending(c, y)
        if c.shape(y) == c.shape(x) and c.chance(0.6):
            y = c.add("Add", [y, x] if c.chance(0.5) else [x, y])
            y = c.add("Relu", [y]) if c.chance(0.5) else y
        if len(c.shape(y)) != 4 or min(c.shape(y)[2:]) < 2:
            return
        x = y


@LAYERS.block("layers", "Attention", opset=23)
def attention(c: Chain) -> None:
    """Heads that share keys and values, with masks of any shape that broadcasts."""
    batch, heads = c.pick(1, 2, 3), c.pick(1, 2, 4)
    n, m, d, e = (c.pick(1, 2, 5, 8, 16, 33) for _ in range(4))
    shared = c.pick(*(s for s in (1, 2, 4) if heads % s == 0))
    shapes = ((batch, heads, n, d), (batch, shared, m, d), (batch, shared, m, e))
    inputs = [c.operand(c.floats(shape), fed=1) for shape in shapes]
    if c.chance(0.5):
        mask = c.pick((n, m), (1, 1, n, m), (batch, 1, n, m), (batch, heads, n, m))
        inputs.append(c.operand(c.floats(mask), fed=0.6))
    causal = c.pick(0, 1) if n == m else None
    softcap, scale = c.pick(None, None, None, 2.0), c.pick(None, None, 0.3)
    c.add("Attention", inputs, is_causal=causal, softcap=softcap, scale=scale)


@LAYERS.block("quantized", "Network", opset=21, alone=True)
def quantized(c: Chain) -> None:
    """Layers whose values are bytes in between, each of one scale; see `qdq_kit.off_by`."""
    _Quantized(c).draw()


class _Quantized:
    """A network of images that is being drawn.

    Attributes:
        value: the last value, which a DequantizeLinear computes.
        scale: of it.
        zero: its zero point, in the range of int8.
    """

    def __init__(self, c: Chain) -> None:
        self.c, self.unsigned = c, c.chance(0.5)
        self.channels, self.size = c.random.randrange(1, 40), c.random.randrange(3, 14)
        shape = (c.pick(1, 2), self.channels, self.size, self.size)
        self.value = self.quantized(c.fed(c.floats(shape)), 1.0)

    def pair(self, value: str, scale: float, zero: int) -> str:
        c = self.c
        point = np.uint8(zero + 128) if self.unsigned else np.int8(zero)
        parameters = [c.constant(np.float32(scale)), c.constant(point)]
        stored = c.add("QuantizeLinear", [value, *parameters])
        return c.add("DequantizeLinear", [stored, *parameters], last=True)

    def quantized(self, value: str, largest: float) -> str:
        """Quantize so that numbers up to about `largest` fit, and some do not."""
        self.scale = float(np.float32(largest * 2.0 ** self.c.random.uniform(-1, 1) / 64))
        self.zero = self.c.random.randrange(-128, 128)
        return self.pair(value, self.scale, self.zero)

    def weight(self, shape: Sequence[int], axis: int | None) -> str:
        c = self.c
        stored = c.constant(c.numbers.integers(-127, 128, tuple(shape)).astype(np.int8))
        count = () if axis is None else (shape[axis],)
        scale = c.constant(np.asarray(c.numbers.uniform(0.002, 0.02, count), np.float32))
        along = {} if axis is None else {"axis": axis}
        return c.add("DequantizeLinear", [stored, scale], **along)

    def activated(self, value: str) -> str:
        form = self.c.pick("Relu", "Clip", "", "")
        if form == "Clip":
            bounds = sorted(self.c.random.uniform(-3, 3) for _ in range(2))
            return self.c.add("Clip", [value, *(self.c.constant(np.float32(b)) for b in bounds)])
        return self.c.add(form, [value]) if form else value

    def convolution(self) -> None:
        c, depthwise, side = self.c, self.c.chance(1 / 3), self.c.pick(1, 3, 5)
        groups = self.channels if depthwise else 1
        outputs = self.channels if depthwise else c.random.randrange(1, 40)
        kernel = (outputs, self.channels // groups, side, side)
        inputs = [self.value, self.weight(kernel, 0 if c.chance(0.75) else None)]
        if c.chance(0.5):
            inputs.append(c.constant(c.floats((outputs,))))
        y = c.add("Conv", inputs, group=groups, pads=[side // 2] * 4)
        self.channels = outputs
        self.value = self.quantized(self.activated(y), 1.5)

    def sum(self) -> None:
        negated = self.c.add("Neg", [self.value])
        other = self.pair(negated, self.scale * 1.5, -self.zero // 2)
        y = self.c.add(self.c.pick("Add", "Sub", "Mul"), [self.value, other])
        self.value = self.quantized(self.activated(y), 2.0)

    def function(self) -> None:
        kind = self.c.pick("Sigmoid", "Tanh", "LeakyRelu", "HardSwish", "Gelu", "Abs")
        self.value = self.quantized(self.c.add(kind, [self.value]), 1.0)

    def concatenation(self) -> None:
        other = self.pair(self.c.add("Relu", [self.value]), self.scale * 0.7, -128)
        y = self.c.add("Concat", [self.value, other], axis=1)
        self.channels *= 2
        self.value = self.pair(y, self.scale, self.zero)

    def pooling(self) -> None:
        y = self.c.add("MaxPool", [self.value], kernel_shape=[3, 3], pads=[1] * 4)
        self.value = self.pair(y, self.scale, self.zero) if self.c.chance(0.5) else y

    def padding(self) -> None:
        pads = self.c.constant(np.int64([0, 0, 1, 0, 0, 0, 0, 1]))
        self.size += 1
        self.value = self.pair(self.c.add("Pad", [self.value, pads]), self.scale, self.zero)

    def turn(self) -> None:
        self.value = self.c.add("Transpose", [self.value], perm=[0, 1, 3, 2])

    def draw(self) -> None:
        parts = (
            *(self.convolution, self.convolution, self.sum, self.function, self.concatenation),
            *(self.pooling, self.padding, self.turn),
        )
        for _ in range(self.c.random.randrange(2, 8)):
            if self.channels < 100:
                self.c.pick(*parts)()
        c, count = self.c, self.channels * self.size**2
        y = self.value
        if c.chance(0.5):
            y = self.quantized(c.add("GlobalAveragePool", [y]), 0.5)
            count = self.channels
        weight = self.weight((count, 7), c.pick(None, 1))
        y = c.add("MatMul", [c.add("Flatten", [y]), weight], last=True)
        if c.chance(0.5):
            c.builder.hidden.add(y)
            self.quantized(y, 2.0)


_CHAINED = (
    *("Abs", "Add", "AveragePool", "Concat", "Conv", "GlobalAveragePool", "HardSwish", "Identity"),
    *("LayerNormalization", "MatMul", "MaxPool", "Mul", "Neg", "Pad", "ReduceMax", "ReduceMean"),
    *("ReduceSum", "Relu", "Reshape", "Sigmoid", "Slice", "Softmax", "Split", "Squeeze", "Sub"),
    *("Tanh", "Transpose", "Unsqueeze", "written"),
)
FLOATS = RECIPES.only(_CHAINED) | LAYERS.only(["layers"])
"""What long chains of float32 are drawn of: where layouts, views and fusions meet."""


def chain(seed: int, nodes: int) -> Case:
    """Return a model of float32 with feeds, of about so many nodes and of fixed sizes."""
    seeds = seed * 97  # neighbours are other operators
    most = max(nodes - 1, 0)
    cases = random_models(seeds, 97, recipes=FLOATS, types=["float"], steps=[most])
    fits = (c for c in cases if all(a.dtype == np.float32 for a in c.feeds.values()))
    case = next(case for case in fits if case.feeds)
    for info in case.model.graph.input:
        if info.name in case.feeds:
            sizes = zip(info.type.tensor_type.shape.dim, case.feeds[info.name].shape, strict=True)
            for dim, size in sizes:
                dim.dim_value = size
    return Case(case.model, case.feeds)
