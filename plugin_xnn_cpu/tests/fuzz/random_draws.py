"""Draws of operators on one or several values: elementwise, data movement."""

from __future__ import annotations

import math

import numpy as np
from random_operators import (
    ALL,
    BOOL,
    F16,
    F32,
    F64,
    FLOATS,
    I8,
    I32,
    I64,
    INTS,
    NUMBERS,
    U8,
    Graph,
    names,
)

UNARY = names(
    "Abs Neg Relu Sigmoid Tanh Exp Sqrt Erf Softplus Softsign Sin Cos Reciprocal Log "
    "Identity Elu Selu LeakyRelu HardSigmoid HardSwish Mish Celu ThresholdedRelu "
    "Shrink Floor Ceil Round Sign Atan Sinh Cosh Asinh Gelu Swish Clip Not Tan Asin "
    "Acos Acosh Atanh"
)


def unary(g: Graph) -> None:
    op = g.random.choice(UNARY)
    if op == "Not":
        g.add(op, [g.pick((BOOL,))])
        return
    kinds = NUMBERS if op in ("Abs", "Neg", "Identity", "Relu", "Sign", "Clip") else FLOATS
    x = g.pick(kinds, exact=op in ("Floor", "Ceil", "Round", "Sign", "ThresholdedRelu", "Shrink"))
    if x is None:
        return
    if op in ("Sqrt", "Log") and g.chance(0.8):
        found = g.add("Abs", [x])
        if found is None:
            return
        x = found[0]
    if op == "Clip":
        clip(g, x)
        return
    alpha = round(g.random.uniform(0.05, 1.5), 3)
    attributes = {
        "Elu": {"alpha": alpha},
        "Selu": {"alpha": alpha, "gamma": 1.1},
        "LeakyRelu": {"alpha": g.random.choice([alpha, 0.0, -0.3, 1.5])},
        "HardSigmoid": {"alpha": alpha, "beta": 0.3},
        "Celu": {"alpha": alpha},
        "ThresholdedRelu": {"alpha": alpha},
        "Shrink": {"lambd": alpha, "bias": 0.2},
        "Swish": {"alpha": alpha},
        "Gelu": {"approximate": g.random.choice(["none", "tanh"])},
    }.get(op, {})
    if g.chance(0.3) and op != "Gelu":
        attributes = {}
    g.add(op, [x], **attributes)


def clip(g: Graph, x: str) -> None:
    kind = g.values[x].dtype
    low, high = sorted(g.random.choice([(-1, 1), (0, 6), (0, 1), (-3, -1), (2, 2)]))
    if kind == U8:
        low, high = abs(low), abs(high) + 3
    if g.opset < 11:
        limits = {"min": float(low), "max": float(high)}
        g.add("Clip", [x], **{k: v for k, v in limits.items() if g.chance(0.8)})
        return
    least = g.constant(np.array(low, kind)) if g.chance(0.8) else ""
    most = g.constant(np.array(high, kind)) if g.chance(0.8) else ""
    g.add("Clip", [x, least, most])


def operands(g: Graph, kinds, exact: bool = False) -> list[str] | None:
    a = g.pick(kinds, exact=exact)
    if a is None:
        return None
    kind, shape = g.values[a].dtype, g.shape_of(a)
    if g.chance(0.08):
        return [a, a]
    b = None
    if g.chance(0.4):

        def fits(other) -> bool:
            try:
                return math.prod(np.broadcast_shapes(shape, other.shape)) <= 60_000
            except ValueError:
                return False

        b = g.pick((kind,), fits=fits, exact=exact)
    if b is None:
        b = g.weight(g.broadcast(shape), kind, fed=0.3)
    return [a, b] if g.chance(0.65) else [b, a]


def binary(g: Graph) -> None:
    op = g.random.choice(
        names(
            "Add Add Add Mul Mul Sub Div Max Min Pow PRelu Sum Mean Mod Less Greater Equal "
            "LessOrEqual GreaterOrEqual And Or Xor BitwiseAnd BitwiseOr BitShift"
        )
    )
    comparison = op in ["Less", "Greater", "Equal", "LessOrEqual", "GreaterOrEqual", "Mod"]
    kinds = (BOOL,) if op in ("And", "Or", "Xor") else FLOATS if not comparison else NUMBERS
    if op in ("Add", "Mul", "Sub", "Max", "Min", "Div") and g.chance(0.2):
        kinds = INTS
    if op.startswith("Bit"):
        kinds = (U8,) if op == "BitShift" else INTS
    given = operands(g, kinds, exact=comparison)
    if given is None:
        return
    if op == "Div" and g.chance(0.8):
        kind = g.values[given[0]].dtype
        divisor = g.array(kind, g.broadcast(g.shape_of(given[0])))
        given[1] = g.constant(
            np.where(np.abs(divisor.astype(float)) < 0.5, 1, divisor).astype(kind)
        )
    if op == "Pow":
        kind = g.values[given[0]].dtype
        power = g.random.choice([2, 3, 0.5, 1, 0, -1, -2, 4])
        given[1] = g.constant(np.array(power, kind).reshape([1] * g.random.choice([0, 0, 1])))
        if power == 0.5 or g.chance(0.2):
            found = g.add("Abs", given[:1])
            given[0] = found[0] if found else given[0]
    if op == "PRelu":
        given = given if len(g.shape_of(given[0])) >= len(g.shape_of(given[1])) else given[::-1]
    if op in ("Max", "Min", "Sum", "Mean") and g.chance(0.4):
        given = [*given, g.weight(g.broadcast(g.shape_of(given[0])), g.values[given[0]].dtype)]
        if g.chance(0.1):
            given = given[:1]
    attributes = {}
    if op == "Mod" and (g.values[given[0]].dtype.kind == "f" or g.chance(0.3)):
        attributes = {"fmod": 1}
    if op == "BitShift":
        attributes = {"direction": g.random.choice(["LEFT", "RIGHT"])}
    found = g.add(op, given, **attributes)
    if found and g.chance(0.25) and op in ("Add", "Sub", "Mul"):
        g.add(g.random.choice(["Relu", "Sigmoid", "Tanh", "HardSwish"]), found)


def where(g: Graph) -> None:
    given = operands(g, ALL, exact=True)
    if given is None:
        return
    shape = max((g.shape_of(name) for name in given), key=math.prod)
    cond = g.pick((BOOL,), fits=lambda a: a.shape in (shape, (), shape[-1:]))
    if cond is None or g.chance(0.5):
        cond = g.weight(g.broadcast(shape), np.bool_, fed=0.4)
    g.add("Where", [cond, *given])


def cast(g: Graph) -> None:
    x = g.pick(ALL, exact=True)
    to = g.random.choice([F32, F32, F16, F64, I64, I32, I8, U8, BOOL])
    if x is None:
        return
    kind = g.values[x].dtype
    if to.kind in "iu" and kind.kind == "f" and not np.all(np.abs(g.values[x]) < 100):
        return
    if to == U8 and g.values[x].size and kind != BOOL and g.values[x].min() < 0:
        return
    import onnx

    if g.chance(0.15) and g.opset >= 15:
        g.add("CastLike", [x, g.weight((1,), to)])
        return
    g.add("Cast", [x], to=onnx.helper.np_dtype_to_tensor_dtype(to))


def transpose(g: Graph) -> None:
    x = g.pick(ALL, 0, 6)
    if x is None:
        return
    perm = list(range(len(g.shape_of(x))))
    if len(perm) == 4 and g.chance(0.5):
        perm = g.random.choice([[0, 2, 3, 1], [0, 3, 1, 2], [0, 1, 3, 2], [0, 2, 1, 3]])
    else:
        g.random.shuffle(perm)
    g.add("Transpose", [x], perm=None if not perm or g.chance(0.15) else perm)


def reshape(g: Graph) -> None:
    x = g.pick(ALL)
    if x is None:
        return
    shape = g.shape_of(x)
    if g.chance(0.15):
        g.add("Flatten", [x], axis=g.random.randint(0, len(shape)))
        return
    total = math.prod(shape)
    target: list[int] = []
    rest = max(total, 1)
    for _ in range(g.random.randint(0, 3)):
        size = g.random.choice([d for d in range(1, min(rest, 200) + 1) if rest % d == 0])
        target.append(size)
        rest //= size
    target.insert(g.random.randint(0, len(target)), rest)
    if total == 0:
        target[-1] = 0
    for i, size in enumerate(target):
        if i < len(shape) and shape[i] == size and g.chance(0.5) and total:
            target[i] = 0
    if g.chance(0.5) and total:
        target[g.random.randrange(len(target))] = -1
    allow = 1 if total == 0 and g.opset >= 14 else None
    g.add("Reshape", [x, g.ints(*target)], allowzero=allow)


def with_axes(g: Graph, op: str, x: str, axes, since: int, **attributes) -> None:
    """Axes as an attribute before an operator set, and as an input from it on."""
    if axes is None:
        g.add(op, [x], **attributes)
    elif g.opset < since:
        g.add(op, [x], axes=list(axes), **attributes)
    else:
        g.add(op, [x, g.ints(*axes)], **attributes)


def squeeze(g: Graph) -> None:
    x = g.pick(ALL)
    if x is None:
        return
    shape = g.shape_of(x)
    ones = [axis for axis, size in enumerate(shape) if size == 1]
    if ones and g.chance(0.5):
        axes = g.random.sample(ones, g.random.randint(1, len(ones)))
        axes = [a - len(shape) if g.chance(0.3) and g.opset >= 11 else a for a in axes]
        with_axes(g, "Squeeze", x, None if g.chance(0.2) else axes, 13)
    elif len(shape) < 5:
        rank = len(shape) + g.random.randint(1, 2)
        axes = g.random.sample(range(rank), rank - len(shape))
        axes = [a - rank if g.chance(0.3) and g.opset >= 11 else a for a in axes]
        with_axes(g, "Unsqueeze", x, axes, 13)


def concat(g: Graph) -> None:
    a = g.pick(ALL, 1, 5)
    if a is None:
        return
    shape, kind = g.shape_of(a), g.values[a].dtype
    axis = g.random.randrange(len(shape))
    given = [a]
    for _ in range(g.random.choice([0, 1, 1, 2, 3])):
        same = g.pick(
            (kind,),
            fits=lambda o: (
                o.ndim == len(shape)
                and all(i == axis or s == o.shape[i] for i, s in enumerate(shape))
            ),
        )
        if same is None or g.chance(0.3):
            other = list(shape)
            other[axis] = g.random.choice([1, 2, 3, 8])
            same = g.weight(other, kind, fed=0.4)
        given.append(same)
    g.random.shuffle(given)
    g.add("Concat", given, axis=axis - len(shape) if g.chance(0.3) and g.opset > 10 else axis)


def slice_(g: Graph) -> None:
    x = g.pick(ALL, 1, 5)
    if x is None:
        return
    shape = g.shape_of(x)
    axes = g.random.sample(range(len(shape)), g.random.randint(1, min(2, len(shape))))
    starts, ends, steps = [], [], []
    for axis in axes:
        size = shape[axis]
        step = g.random.choice([1, 1, 1, 2, 3, -1, -2])
        start, end = sorted(g.random.choices(range(-size - 1, size + 2), k=2))
        if g.chance(0.3):
            start, end = 0, g.random.choice([2**31 - 1, 2**63 - 1, size])
        if step < 0:
            start, end = end, start
            if g.chance(0.4):
                start, end = -1, -(2**63) + 1
        starts.append(start)
        ends.append(end)
        steps.append(step)
    if g.opset < 10:
        g.add("Slice", [x], starts=starts, ends=[min(e, 2**31) for e in ends], axes=axes)
        return
    axes = [a - len(shape) if g.chance(0.2) and g.opset >= 11 else a for a in axes]
    given = [x, g.ints(*starts), g.ints(*ends), g.ints(*axes)]
    if any(step != 1 for step in steps) or g.chance(0.5):
        given.append(g.ints(*steps))
    g.add("Slice", given)


def split(g: Graph) -> None:
    x = g.pick(ALL, 1, 5)
    if x is None:
        return
    shape = g.shape_of(x)
    axis = g.random.randrange(len(shape))
    size = shape[axis]
    count = g.random.randint(1, min(4, max(size, 1)))
    cuts = sorted(g.random.choices(range(size + 1), k=count - 1))
    parts = [b - a for a, b in zip([0, *cuts], [*cuts, size], strict=True)]
    at = axis - len(shape) if g.chance(0.2) and g.opset >= 11 else axis
    if g.chance(0.4) and (size % count == 0 or g.opset >= 18):
        g.add("Split", [x], count, axis=at, num_outputs=count if g.opset >= 18 else None)
    elif g.opset < 13:
        g.add("Split", [x], count, axis=at, split=parts)
    else:
        g.add("Split", [x, g.ints(*parts)], count, axis=at)


def pad(g: Graph) -> None:
    x = g.pick(NUMBERS, 1, 5)
    if x is None:
        return
    shape, kind = g.shape_of(x), g.values[x].dtype
    mode = g.random.choice(["constant", "constant", "reflect", "edge", "wrap"])
    pads = [g.random.choice([0, 0, 0, 1, 2, 3, -1]) for _ in range(2 * len(shape))]
    if g.opset < 11:
        g.add("Pad", [x], mode=mode, pads=pads, value=0.5 if g.chance(0.5) else None)
        return
    value = g.constant(np.array(g.random.choice([0, 1, 3]), kind)) if g.chance(0.5) else ""
    given = [x, g.ints(*pads), value]
    if g.opset >= 18 and g.chance(0.4):
        axes = g.random.sample(range(len(shape)), g.random.randint(1, len(shape)))
        pads = [g.random.choice([0, 1, 2]) for _ in range(2 * len(axes))]
        axes = [a - len(shape) if g.chance(0.3) else a for a in axes]
        given = [x, g.ints(*pads), value, g.ints(*axes)]
    g.add("Pad", given, mode=mode)


def expand(g: Graph) -> None:
    x = g.pick(ALL, 0, 4)
    if x is None:
        return
    shape = g.shape_of(x)
    if g.chance(0.4):
        g.add("Tile", [x, g.ints(*(g.random.choice([1, 1, 2, 3]) for _ in shape))])
        return
    target = [g.random.choice([2, 3, s]) if s == 1 else g.random.choice([s, 1]) for s in shape]
    if g.chance(0.3):
        target = [g.random.choice([1, 2]), *target]
    elif g.chance(0.2):
        target = target[1:]
    g.add("Expand", [x, g.ints(*target)])
