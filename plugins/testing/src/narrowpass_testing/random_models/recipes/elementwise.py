"""Operators that compute each element from those at the same place."""

from __future__ import annotations

import numpy as np

from narrowpass_testing.random_models._builder import Draft, Recipes
from narrowpass_testing.random_models._elements import TYPES

TABLE = Recipes()


@TABLE.operators(
    "Abs Neg Relu Sigmoid Tanh Exp Erf Softplus Softsign Sin Cos Identity Elu Selu LeakyRelu "
    "HardSigmoid HardSwish Mish Celu ThresholdedRelu Shrink Floor Ceil Round Sign Atan Sinh Cosh "
    "Asinh Gelu Swish Not IsNaN BitwiseNot"
)
def _unary(d: Draft) -> None:
    d.take()
    for name in ("alpha", "lambd"):
        d.maybe(name, 0.01, 0.3, 0.5, 1.0, 1.3)
    d.maybe("beta", 0.2, 0.5)
    d.maybe("gamma", 0.9, 1.1)
    d.maybe("bias", 0.0, 0.2, -0.1)
    d.maybe("approximate", "none", "tanh")


DOMAINS: dict[str, tuple[float, float]] = {
    "Log": (0.01, 1e9),
    "Sqrt": (0, 1e9),
    "Acosh": (1.001, 1e9),
    "Acos": (-1, 1),
    "Asin": (-1, 1),
    "Atanh": (-0.99, 0.99),
    "Tan": (-1.4, 1.4),
}
"""Where functions are defined; others are taken from anywhere."""


@TABLE.operators("Log Sqrt Acosh Acos Asin Atanh Tan Reciprocal")
def _bounded(d: Draft) -> None:
    """Functions of some numbers only."""
    low, high = DOMAINS.get(d.schema.name, (0.2, 4.0))
    if d.chance(0.5):
        d.take(fits=lambda a: not a.size or bool(np.all((a >= low) & (a <= high))))
        return
    shape = tuple(d.pick(0, 1, 2, 3, 8, 17) for _ in range(d.pick(0, 1, 2, 3)))
    dtype = d.bind()
    array = d.numbers.uniform(low, min(high, 4.0), shape)
    d.operand(np.asarray(array).astype(dtype), constant=0.1)


@TABLE.operators("IsInf")
def _is_inf(d: Draft) -> None:
    array = d.numbers.choice([0.0, 1.5, np.inf, -np.inf, np.nan], d.pick((), (3,), (2, 5), (0, 2)))
    d.operand(np.asarray(array).astype(d.bind()), constant=0.1)
    d.maybe("detect_negative", 0, 1)
    d.maybe("detect_positive", 0, 1)


@TABLE.operators(
    "Add Sub Mul Div Pow Mod Less LessOrEqual Greater GreaterOrEqual Equal And Or Xor PRelu "
    "BitwiseAnd BitwiseOr BitwiseXor BitShift"
)
def _binary(d: Draft) -> None:
    name = d.schema.name
    x = d.take(fits=lambda a: name != "Pow" or not a.size or bool((a > 0).all()))
    shape = d.broadcast(x.shape)
    if name == "Mod" and (x.dtype.kind == "f" or d.chance(0.2)):
        d.set("fmod", 1)
    if name == "BitShift":
        d.set("direction", d.pick("LEFT", "RIGHT"))
        d.operand(d.numbers.integers(0, 8, shape).astype(x.dtype))
    elif name in ("Div", "Mod"):
        low = 1 if x.dtype.kind in "iu" else 0.3
        divisor = d.numbers.uniform(low, 5, shape)
        if x.dtype.kind != "u" and d.chance(0.5):
            divisor = divisor * d.numbers.choice([-1, 1], shape)
        d.operand(np.asarray(divisor).astype(x.dtype))
    elif name == "Pow":
        dtype = d.bind()
        whole = d.numbers.integers(0, 4, shape)
        d.operand(np.asarray(whole if d.chance(0.5) else whole / 2).astype(dtype))
    elif d.chance(0.4):
        d.take(shape=shape)
    else:
        d.draw(shape)


@TABLE.operators("Max Min Sum Mean")
def _variadic(d: Draft) -> None:
    x = d.take()
    for _ in range(d.pick(0, 1, 1, 2, 3)):
        d.draw(d.broadcast(x.shape))


@TABLE.operators("Clip")
def _clip(d: Draft) -> None:
    x = d.take()
    low, high = sorted(d.pick((-1, 1), (0, 6), (0, 1), (2, 2), (1, 3)))
    if x.dtype.kind == "u":
        low = abs(low)
    if not d.has_input(1):
        d.maybe("min", float(low))
        d.maybe("max", float(high))
        return
    for bound in (low, high):
        if d.chance(0.75):
            d.operand(np.asarray(bound).astype(x.dtype))
        else:
            d.none()


@TABLE.operators("Where")
def _where(d: Draft) -> None:
    condition = d.take()
    d.draw(d.broadcast(condition.shape))
    d.draw(d.broadcast(condition.shape))


@TABLE.operators("Cast")
def _cast(d: Draft) -> None:
    d.take()
    d.set("to", _cast_target(d))
    d.maybe("saturate", 1)


def _cast_target(d: Draft) -> int:
    from onnx import helper

    whole = d.arrays[0] is not None and bool(np.any(d.arrays[0].astype(np.float64) < 0))
    names = [name for name in TYPES if not (whole and name.startswith("uint"))]
    if d.builder.opset < 13:
        names.remove("bfloat16")
    return helper.np_dtype_to_tensor_dtype(TYPES[d.pick(*d.builder.style.prefers(names))])


@TABLE.operators("CastLike")
def _cast_like(d: Draft) -> None:
    x = d.take()
    signed = bool(np.any(x.astype(np.float64) < 0))
    among = [t for t in d.types() if not (signed and t.startswith("uint"))]
    d.bind(among=among)
    d.draw((2,))


@TABLE.operators("BitCast")
def _bit_cast(d: Draft) -> None:
    from onnx import helper

    x = d.take()
    same = [t for t in TYPES.values() if t.itemsize == x.dtype.itemsize and t != np.bool_]
    d.set("to", helper.np_dtype_to_tensor_dtype(d.pick(*same)))


@TABLE.operators("Dropout")
def _dropout(d: Draft) -> None:
    d.take()
    d.maybe("ratio", 0.3)
    if d.has_input(1) and d.chance(0.4):
        d.scalar(0.25)
        if d.has_input(2) and d.chance(0.5):
            d.operand(np.asarray(False))
    d.outputs = d.pick(1, 1, 2)


@TABLE.operators("SwiGLU")
def _gated(d: Draft) -> None:
    x = d.take()
    d.draw(x.shape)
    d.maybe("alpha", 1.0, 1.7)


@TABLE.operators("RandomNormalLike RandomUniformLike Bernoulli")
def _drawn_like(d: Draft) -> None:
    x = d.take()
    if d.schema.name == "Bernoulli" and x.size and not ((x >= 0) & (x <= 1)).all():
        d.inputs.clear()
        d.arrays.clear()
        d.operand(d.numbers.random((3, 4)).astype(x.dtype))
    d.maybe("dtype", 1, 11)


@TABLE.operators("RandomNormal RandomUniform")
def _drawn(d: Draft) -> None:
    d.set("shape", d.pick([3], [2, 4], [1, 1, 3]))
    d.maybe("dtype", 1, 11)


@TABLE.operators("Multinomial")
def _multinomial(d: Draft) -> None:
    d.operand(d.numbers.standard_normal((2, 5)).astype(d.bind()))
    d.maybe("sample_size", 1, 3)
    d.maybe("dtype", 6, 7)
