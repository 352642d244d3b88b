"""Operators on quantized elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from narrowpass_testing.random_models._builder import Draft, Recipes
from narrowpass_testing.random_models._elements import TYPES, Array

TABLE = Recipes()


def scales(d: Draft, shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
    """Draw scales whose quotients are rarely halves."""
    return np.asarray(d.numbers.uniform(0.013, 0.11, shape)).astype(dtype)


def integers(d: Draft, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Draw integers over the range of a type."""
    limits = np.iinfo(dtype)
    low, high = max(limits.min, -1000), min(limits.max, 1000)
    return np.asarray(d.numbers.integers(low, high + 1, shape)).astype(dtype)


@TABLE.operators("QuantizeLinear DequantizeLinear")
def _linear(d: Draft) -> None:
    quantize = d.schema.name == "QuantizeLinear"
    if quantize:
        x = d.take(0, 4, among=("float", "float16"))
    else:
        kind = d.bind(among=("int8", "uint8", "int16", "uint16", "int32"))
        shape = d.pick((), (3,), (2, 4), (2, 3, 4), (1, 8, 2, 2), (0, 3))
        x = d.operand(integers(d, kind, shape), constant=0.3)
    axis = 0
    form = d.pick("tensor", "tensor", "axis", "axis", "block") if x.ndim else "tensor"
    shape = ()
    if form != "tensor" and "axis" in d.schema.attributes:
        axis = d.random.randrange(x.ndim)
        d.set("axis", axis - x.ndim if d.chance(0.3) else axis)
        shape = (x.shape[axis],)
        if form == "block" and "block_size" in d.schema.attributes and x.shape[axis] > 1:
            block = d.pick(2, 3, x.shape[axis])
            shape = tuple(-(-n // block) if k == axis else n for k, n in enumerate(x.shape))
            d.set("block_size", block)
    types = d.types()
    scale_type = "float" if "float" in types else types[0]
    d.operand(scales(d, shape, TYPES[scale_type]))
    if d.chance(0.75):
        if quantize:
            kind = d.bind(among=("int8", "uint8", "int16", "uint16"))
            zero = integers(d, kind, shape) // 8
        else:
            zero = np.zeros(shape, x.dtype) if x.dtype == np.int32 else integers(d, x.dtype, shape)
        d.operand(zero.astype(kind if quantize else x.dtype))
    elif quantize and d.chance(0.5):
        d.set("output_dtype", d.pick(2, 3))


@TABLE.operators("DynamicQuantizeLinear")
def _dynamic(d: Draft) -> None:
    d.take(1, 4, fits=lambda a: a.size > 0)
    d.outputs = 3


@TABLE.operators("QLinearMatMul")
def _qlinear_matmul(d: Draft) -> None:
    m, k, n = d.pick(1, 2, 5), d.pick(1, 4, 17), d.pick(1, 3, 8)
    kinds = ("uint8", "int8")
    batch = d.pick((), (), (2,))
    first = d.bind(among=kinds)
    d.operand(integers(d, first, (*batch, m, k)), constant=0.1)
    d.operand(scales(d, ()))
    d.operand(integers(d, first, ()))
    second = d.bind(among=kinds)
    d.operand(integers(d, second, (k, n)))
    shape = d.pick((), (n,))
    d.operand(scales(d, shape))
    d.operand(integers(d, second, shape))
    d.operand(scales(d, ()) * 100)
    d.operand(np.asarray(d.pick(0, 7)).astype(first))


@TABLE.operators("QLinearConv")
def _qlinear_conv(d: Draft) -> None:
    channels, side = d.pick(1, 2, 4), d.pick(3, 5)
    group = d.pick(1, channels)
    out = group * d.pick(1, 2)
    kernel = d.pick(1, 3)
    first = d.bind(among=("uint8", "int8"))
    d.operand(integers(d, first, (d.pick(1, 2), channels, side, side)), constant=0.1)
    d.operand(scales(d, ()))
    d.operand(integers(d, first, ()))
    second = d.bind(among=("int8",))
    d.operand(integers(d, second, (out, channels // group, kernel, kernel)))
    shape = d.pick((), (out,))
    d.operand(scales(d, shape))
    d.operand(np.zeros(shape, second))
    d.operand(scales(d, ()) * 50)
    d.operand(np.asarray(d.pick(0, 7)).astype(first))
    if d.chance(0.5):
        d.operand(d.numbers.integers(-500, 500, out).astype(np.int32))
    d.set("group", group)
    d.set("pads", [kernel // 2] * 4)
    d.maybe("strides", [1, 1], [2, 2])
