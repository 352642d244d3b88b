"""Functions, normalizations, attention and shapes, in the operators that exporters write."""

from __future__ import annotations

import math

import numpy as np

from narrowpass_testing.random_models._builder import Chain, Recipes, UnfitError

TABLE = Recipes()


def _pair(c: Chain, operator: str, one: str, other: str) -> str:
    """Add an operator of two operands, which may be swapped where that changes nothing."""
    swapped = operator in ("Add", "Mul") and c.chance(0.4)
    return c.add(operator, [other, one] if swapped else [one, other])


@TABLE.block("written", "Gelu", opset=9)
def _gelu(c: Chain) -> None:
    """By Erf, or by its approximation with Tanh."""
    x = c.take(0, 4)
    half = c.number(0.5)
    if c.chance(0.5):
        root = c.pick(("Mul", math.sqrt(0.5)), ("Div", math.sqrt(2)))
        inner = c.add("Erf", [_pair(c, root[0], x, c.number(root[1]))])
    else:
        cube = c.add("Pow", [x, c.number(3)]) if c.chance(0.5) else ""
        cube = cube or _pair(c, "Mul", _pair(c, "Mul", x, x), x)
        inner = _pair(c, "Add", x, _pair(c, "Mul", cube, c.number(0.044715)))
        inner = c.add("Tanh", [_pair(c, "Mul", inner, c.number(math.sqrt(2 / math.pi)))])
    one = _pair(c, "Add", inner, c.number(1))
    if c.chance(0.5):
        _pair(c, "Mul", _pair(c, "Mul", x, one), half)
    else:
        _pair(c, "Mul", _pair(c, "Mul", x, half), one)


@TABLE.block("written", "Swish")
def _swish(c: Chain) -> None:
    x = c.take(0, 4)
    steep = _pair(c, "Mul", x, c.number(1.702)) if c.chance(0.5) else x
    _pair(c, "Mul", x, c.add("Sigmoid", [steep]))


@TABLE.block("written", "HardSwish", opset=11)
def _hard_swish(c: Chain) -> None:
    x = c.take(0, 4)
    if c.chance(0.3):
        _pair(c, "Mul", x, c.add("HardSigmoid", [x], alpha=1 / 6, beta=0.5))
        return
    low, high, six = (c.operand(np.float32(n), fed=0) for n in (0, 6, 6))
    inner = c.add("Clip", [_pair(c, "Add", x, c.number(3)), low, high])
    if c.chance(0.5):
        _pair(c, "Mul", x, c.add("Div", [inner, six]))
    else:
        c.add("Div", [_pair(c, "Mul", x, inner), six])


@TABLE.block("written", "LayerNormalization")
def _normalization(c: Chain) -> None:
    """Or RMSNormalization, where the mean is not subtracted."""
    x = c.take(1, 4)
    width = c.shape(x)[-1:]

    def mean(value: str) -> str:
        if c.opset >= 18:
            return c.add("ReduceMean", [value, c.ints(-1)])
        return c.add("ReduceMean", [value], axes=[-1 if c.opset >= 11 else len(c.shape(x)) - 1])

    centred = c.add("Sub", [x, mean(x)]) if c.chance(0.6) else x
    square = c.add("Pow", [centred, c.number(2)]) if c.chance(0.5) else ""
    square = square or c.add("Mul", [centred, centred])
    root = c.add("Sqrt", [_pair(c, "Add", mean(square), c.number(1e-2))])
    if c.chance(0.6):
        y = c.add("Div", [centred, root])
    else:
        y = c.add("Mul", [centred, c.add("Reciprocal", [root])])
    if c.chance(0.8):
        y = c.add("Mul", [y, c.weight(width)])
        if c.chance(0.6):
            c.add("Add", [y, c.weight(width)])


@TABLE.block("written", "Attention")
def _attention(c: Chain) -> None:
    """Softmax(q k^T scale + mask) v, of heads that a Reshape and a Transpose split."""
    batch, heads = c.pick(1, 2, 3), c.pick(1, 2, 4)
    n, m, d, e = (c.pick(1, 2, 5, 8, 16, 33) for _ in range(4))

    def split(length: int, width: int, order: list[int]) -> str:
        value = c.weight((batch, length, heads * width), fed=1)
        shape = c.ints(batch if c.chance(0.5) else 0, length, heads, width)
        return c.add("Transpose", [c.add("Reshape", [value, shape])], perm=order)

    q, k, v = split(n, d, [0, 2, 1, 3]), split(m, d, [0, 2, 3, 1]), split(m, e, [0, 2, 1, 3])
    scale = c.operand(np.float32(c.pick(0.25, 2.0)), fed=0)
    operator = c.pick("Mul", "Div")
    if c.chance(0.4):
        q = c.add(operator, [q, scale])
    scores = c.add("MatMul", [q, k])
    if c.chance(0.5):
        scores = c.add(operator, [scores, scale])
    if c.chance(0.6):
        mask = c.pick((n, m), (1, 1, n, m), (batch, 1, 1, m), (batch, heads, n, m), (m,), (n, 1))
        scores = c.add("Add", [scores, c.weight(mask, fed=0.5)])
    y = c.add("MatMul", [c.add("Softmax", [scores], axis=-1 if c.opset >= 13 else 3), v])
    c.add("Reshape", [c.add("Transpose", [y], perm=[0, 2, 1, 3]), c.ints(0, n, heads * e)])


@TABLE.block("written", "RotaryEmbedding", opset=10)
def _rotary(c: Chain) -> None:
    """X cos + (the halves of x swapped, one of them negated) sin."""
    batch, heads, n, d = c.pick(1, 2), c.pick(1, 3, 4), c.pick(1, 5, 8), c.pick(2, 4, 8, 16)
    x = c.weight((batch, heads, n, d), fed=1)
    cos, sin = (c.weight(c.pick((n, d), (1, 1, n, d), (batch, 1, n, d)), fed=0.5) for _ in range(2))

    def cut(start: int, end: int) -> str:
        return c.add("Slice", [x, c.ints(start), c.ints(end), c.ints(3), c.ints(1)])

    low, high = cut(0, d // 2), cut(d // 2, 2**31 - 1)
    turned = c.add("Concat", [c.add("Neg", [high]), low], axis=-1 if c.opset > 10 else 3)
    c.add("Add", [c.add("Mul", [x, cos]), c.add("Mul", [turned, sin])])


@TABLE.block("written", "Gate")
def _gate(c: Chain) -> None:
    """Multiply by a function of a reduction, as squeeze-and-excitation does."""
    x = c.take(3, 4)
    axes = list(range(2, len(c.shape(x))))
    if c.opset >= 18:
        y = c.add("ReduceMean", [x, c.ints(*axes)])
    else:
        y = c.add("ReduceMean", [x], axes=axes)
    c.add("Mul", [x, c.add("Sigmoid", [y])])


@TABLE.block("written", "Shape", opset=10)
def _shapes(c: Chain) -> None:
    """Sizes that are computed from a shape: of a Reshape, a Range, an Expand or of constants."""
    x = c.take(1, 4)
    sizes = c.add("Shape", [x])
    form = c.pick("ConstantOfShape", "Reshape", "Range", "Expand", "Slice")
    if form == "ConstantOfShape":
        c.add(form, [sizes])
        return
    if form == "Range":
        if c.opset < 11:
            raise UnfitError
        size = c.add("Gather", [sizes, c.constant(np.int64(0))], axis=0)
        c.add(form, [c.constant(np.int64(0)), size, c.constant(np.int64(1))])
        return
    first = c.add("Gather", [sizes, c.ints(0)], axis=0)
    if form == "Reshape":
        c.add(form, [x, c.add("Concat", [first, c.ints(-1)], axis=0)])
    elif form == "Slice":
        c.add(form, [x, c.ints(0), c.add("Sub", [first, c.ints(c.pick(0, 1))]), c.ints(0)])
    else:
        row = c.weight((1, *c.shape(x)[1:]), fed=0.5)
        ones = [1] * (len(c.shape(x)) - 1)
        target = c.add("Concat", [first, c.ints(*ones)], axis=0) if ones else first
        c.add(form, [row, target])
