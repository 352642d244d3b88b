"""Operators between DequantizeLinear and QuantizeLinear, as quantized models have them.

What is quantized last was rounded before: it may be one step off, which is the slack of the case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from narrowpass_testing.random_models._builder import Chain, Recipes, UnfitError
from narrowpass_testing.random_models._elements import Array

Form = Callable[[Chain], str]
WEIGHTED = ("int8", "int8", "uint8")


def _type(c: Chain) -> np.dtype[Any]:
    """Draw the type of an activation; those of 16 bits came with operator set 21."""
    wide = ("int16", "uint16") if c.opset >= 21 else ()
    kind: str = c.pick("int8", "uint8", "int8", "uint8", *wide)
    return np.dtype(kind)


def _zero(c: Chain, kind: np.dtype[Any], shape: Sequence[int] = ()) -> Array:
    """Draw zero points: 0, the middle of the range, or any others in its inner half."""
    limits = np.iinfo(kind)
    middle, quarter = (int(limits.min) + int(limits.max) + 1) // 2, (int(limits.max) + 1) // 4
    form = c.pick("none", "middle", "any", "any")
    if form == "any":
        found = middle + c.numbers.integers(-quarter, quarter, tuple(shape))
    else:
        found = np.full(tuple(shape), 0 if form == "none" else middle)
    return np.asarray(found).astype(kind)


def _parameters(c: Chain, array: Array, kind: np.dtype[Any], axis: int | None) -> list[str]:
    """Return the names of a scale and a zero point that represent most of an array."""
    limits = np.iinfo(kind)
    shape = () if axis is None else (array.shape[axis],)
    zero = _zero(c, kind, shape)
    kept = None if axis is None else tuple(k for k in range(array.ndim) if k != axis)
    low = np.minimum(array.min(axis=kept, initial=0.0), 0)
    high = np.maximum(array.max(axis=kept, initial=0.0), 0)
    above, below = limits.max - zero.astype(float), zero.astype(float) - limits.min
    room = np.maximum(np.divide(high, above), np.divide(-low, np.maximum(below, 1)))
    if not below.all():  # nothing is below the zero point: what is there becomes zero
        room = np.where(below > 0, room, np.divide(high, above))
    # Some clip, some leave a part of the range; the noise is not a power of two.
    scale = np.maximum(room, 1e-3) * c.numbers.uniform(0.7, 1.6)
    return [c.constant(np.asarray(scale).astype(np.float32)), c.constant(zero)]


def dequantized(c: Chain, name: str, *, axis: int | None = None, last: bool = False) -> str:
    """Quantize a value and dequantize it; the last pair is the slack of the case."""
    kind = _type(c)
    parameters = _parameters(c, c.value(name), kind, axis)
    along: dict[str, Any] = {} if axis is None else {"axis": axis}
    if last:
        c.builder.slack += 1.01 * float(c.value(parameters[0]).max())
        if axis is None and c.chance(0.2):
            c.add("QuantizeLinear", [name, *parameters], last=True)
            return ""
    quantized = c.add("QuantizeLinear", [name, *parameters], **along)
    return c.add("DequantizeLinear", [quantized, *parameters], last=last, **along)


def activation(c: Chain, shape: Sequence[int]) -> str:
    """Add an input of floats that is quantized and dequantized, or one of integers."""
    if c.chance(0.25):
        kind = _type(c)
        limits = np.iinfo(kind)
        drawn = c.numbers.integers(limits.min, limits.max, tuple(shape), endpoint=True)
        scale = np.float32(c.numbers.uniform(1.0, 3.0) / limits.max)
        parameters = [c.constant(scale), c.constant(_zero(c, kind))]
        return c.add("DequantizeLinear", [c.fed(drawn.astype(kind)), *parameters])
    array = c.floats(shape, c.pick(0.5, 1.0, 3.0))
    axis = c.random.randrange(len(shape)) if len(shape) > 1 and c.chance(0.1) else None
    return dequantized(c, c.fed(array), axis=axis)


def weight(c: Chain, shape: Sequence[int], axis: int) -> str:
    """Add weights of 8 bits with one scale, or with one for each channel."""
    kind = np.dtype(c.pick(*WEIGHTED))
    array = c.floats(shape, 0.4)
    along = axis if c.chance(0.6) else None
    scales = () if along is None else (shape[axis],)
    zero = np.zeros(scales, kind) if kind == np.int8 and c.chance(0.8) else _zero(c, kind, scales)
    steps = np.asarray(c.numbers.uniform(0.006, 0.02, scales)).astype(np.float32)
    parameters = [c.constant(steps), c.constant(zero)]
    attributes: dict[str, Any] = {} if along is None else {"axis": axis}
    if c.chance(0.3):
        quantized = c.add("QuantizeLinear", [c.constant(array), *parameters], **attributes)
    else:
        form = [1] * len(shape)
        if along is not None:
            form[axis] = -1
        limits = np.iinfo(kind)
        drawn = np.rint(array / steps.reshape(form) + zero.astype(float).reshape(form))
        quantized = c.constant(np.clip(drawn, limits.min, limits.max).astype(kind))
    return c.add("DequantizeLinear", [quantized, *parameters], **attributes)


def bias(c: Chain, count: int, x: str, w: str) -> list[str]:
    """Add a bias of int32, one of floats, or none.

    The scale of integers is most often that of the accumulators, as quantizers choose it.
    """
    form = c.pick("none", "float", "int32", "int32")
    if form == "none":
        return []
    if form == "float":
        return [c.constant(c.floats((count,)))]
    integers = c.numbers.integers(-2000, 2000, count).astype(np.int32)
    if c.scale_of(x).ndim or c.chance(0.25):
        scale = np.full(c.pick((), (count,)), 3e-4)
    else:
        scale = c.scale_of(x) * c.scale_of(w)
    scale = np.asarray(scale, np.float32)
    attributes: dict[str, Any] = {"axis": 0} if scale.ndim else {}
    inputs = [c.constant(integers), c.constant(scale)]
    if c.chance(0.5):
        inputs.append(c.constant(np.zeros(scale.shape, np.int32)))
    return [c.add("DequantizeLinear", inputs, **attributes)]


def _image(c: Chain) -> tuple[int, ...]:
    return (c.pick(1, 2, 3), c.pick(1, 2, 3, 8, 16), c.pick(3, 5, 8), c.pick(3, 4, 7))


def _any(c: Chain) -> tuple[int, ...]:
    shape: tuple[int, ...] = c.pick((5,), (2, 7), (3, 16), (2, 3, 17), (2, 8, 4, 4), _image(c))
    return shape


def _conv(c: Chain) -> str:
    shape = _image(c)
    channels, kernel = shape[1], c.pick(1, 1, 3)
    group = c.pick(1, 1, channels)
    out = group * c.pick(1, 2, 3)
    x = activation(c, shape)
    w = weight(c, (out, channels // group, kernel, kernel), 0)
    return c.add(
        "Conv",
        [x, w, *bias(c, out, x, w)],
        group=group,
        pads=[c.pick(0, kernel // 2)] * 4,
        strides=[c.pick(1, 1, 2)] * 2,
    )


def _conv_transpose(c: Chain) -> str:
    shape = _image(c)
    out, kernel = c.pick(1, 3, 8), c.pick(1, 2, 3)
    x = activation(c, shape)
    w = weight(c, (shape[1], out, kernel, kernel), 1)
    return c.add("ConvTranspose", [x, w, *bias(c, out, x, w)], strides=[c.pick(1, 2)] * 2)


def _matmul(c: Chain) -> str:
    k, n = c.pick(1, 4, 17, 32), c.pick(1, 3, 8, 33)
    x = activation(c, c.pick((k,), (2, k), (5, k), (2, 3, k)))
    other = activation(c, (k, n)) if c.chance(0.2) else weight(c, (k, n), 1)
    return c.add("MatMul", [x, other])


def _gemm(c: Chain) -> str:
    k, n, right = c.pick(1, 4, 17, 32), c.pick(1, 3, 8, 33), c.pick(0, 1)
    x = activation(c, (c.pick(1, 2, 5), k))
    w = weight(c, (n, k) if right else (k, n), 0 if right else 1)
    return c.add("Gemm", [x, w, *bias(c, n, x, w)], transB=right)


def _binary(c: Chain, operator: str) -> str:
    shape = _any(c)
    other = c.pick(shape, shape, shape[-1:], tuple(1 for _ in shape))
    operands = [
        activation(c, shape),
        activation(c, other) if c.chance(0.7) else weight(c, other, 0),
    ]
    return c.add(operator, operands[:: c.pick(1, -1)])


def _concat(c: Chain) -> str:
    shape = _any(c)
    axis = c.random.randrange(len(shape))
    count = c.pick(1, 2, 3)
    parts = [tuple(c.pick(1, 2, 5) if k == axis else n for k, n in enumerate(shape))] * count
    return c.add("Concat", [activation(c, part) for part in parts], axis=axis)


def _pool(c: Chain, operator: str) -> str:
    x = activation(c, _image(c))
    if operator.startswith("Global"):
        return c.add(operator, [x])
    kernel = c.pick(2, 3)
    attributes: dict[str, Any] = {"kernel_shape": [kernel] * 2, "strides": [c.pick(1, 2)] * 2}
    if c.chance(0.5):
        attributes["pads"] = [kernel // 2] * 4
        if operator == "AveragePool":
            attributes["count_include_pad"] = c.pick(0, 1)
    return c.add(operator, [x], **attributes)


def _unary(c: Chain, operator: str) -> str:
    attributes: dict[str, Any] = {}
    inputs = [activation(c, _any(c))]
    if operator == "Clip":
        inputs += [c.constant(np.float32(c.pick(-1, 0))), c.constant(np.float32(c.pick(0.5, 6)))]
    elif operator == "LeakyRelu":
        attributes["alpha"] = c.pick(0.01, 0.1, 0.5)
    elif operator == "Softmax":
        attributes["axis"] = -1
    elif operator == "Transpose":
        attributes["perm"] = c.random.sample(
            range(c.value(inputs[0]).ndim), c.value(inputs[0]).ndim
        )
    elif operator == "Reshape":
        inputs.append(c.constant(np.array(c.pick([-1], [1, -1], [-1, 1]), np.int64)))
    elif operator == "Slice":
        inputs += [c.constant(np.array([k], np.int64)) for k in (0, -1, c.random.randrange(2) - 1)]
    elif operator == "Pad":
        rank = c.value(inputs[0]).ndim
        inputs.append(c.constant(c.numbers.integers(0, 3, 2 * rank)))
    elif operator == "ReduceMean" and c.opset >= 18:
        inputs.append(c.constant(np.array([-1], np.int64)))
    elif operator == "ReduceMean":
        attributes["axes"] = [-1]
    return c.add(operator, inputs, **attributes)


def _layer_normalization(c: Chain) -> str:
    shape = c.pick((2, 8), (3, 17), (2, 3, 32))
    x = activation(c, shape)
    gain = 1 + c.floats(shape[-1:], 0.2)
    inputs = [x, c.constant(gain), *([c.constant(c.floats(shape[-1:]))] if c.chance(0.6) else [])]
    return c.add("LayerNormalization", inputs, axis=-1)


def _resize(c: Chain) -> str:
    x = activation(c, _image(c))
    up = c.pick(1.0, 2.0, 2.0, 3.0)
    attributes = c.pick(
        {
            "mode": "nearest",
            "coordinate_transformation_mode": "asymmetric",
            "nearest_mode": "floor",
        },
        {"mode": "linear", "coordinate_transformation_mode": "half_pixel"},
        {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    )
    return c.add("Resize", [x, "", c.constant(np.array([1, 1, up, up], np.float32))], **attributes)


def _pattern(c: Chain, form: Form) -> None:
    """Quantize what is between, dequantize; a third have another operator and pair behind it."""
    found = form(c)
    size = float(np.abs(c.value(found)).max(initial=0.0))
    if not 1e-3 < size < 3e4:
        raise UnfitError
    array = c.value(found)
    axis = 1 if array.ndim > 1 and c.chance(0.08) else None
    again = c.chance(0.35)
    result = dequantized(c, found, axis=axis, last=True)
    if not again or not result:
        return
    c.builder.hidden.add(result)
    # An error of one step stays one of one step: what follows spreads nothing.
    operator = c.pick("Relu", "Abs", "Transpose", "Flatten", "Concat")
    inputs, attributes = [result], dict[str, Any]()
    if operator == "Flatten":
        attributes["axis"] = 0
    elif operator == "Concat":
        inputs, attributes["axis"] = [result, result], 0
        if not c.value(result).ndim:
            raise UnfitError
    dequantized(c, c.add(operator, inputs, **attributes), last=True)


_FORMS: dict[str, Form] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Concat": _concat,
    "LayerNormalization": _layer_normalization,
    "Resize": _resize,
    **{name: partial(_binary, operator=name) for name in ("Add", "Mul", "Sub")},
    **{
        name: partial(_pool, operator=name)
        for name in ("MaxPool", "AveragePool", "GlobalAveragePool")
    },
    **{
        name: partial(_unary, operator=name)
        for name in (
            "Clip",
            "HardSwish",
            "LeakyRelu",
            "Pad",
            "ReduceMean",
            "Relu",
            "Reshape",
            "Sigmoid",
            "Slice",
            "Softmax",
            "Tanh",
            "Transpose",
        )
    },
}

TABLE = Recipes()
for _name, _form in _FORMS.items():
    TABLE.block("qdq", _name, opset=13, alone=True)(partial(_pattern, form=_form))
