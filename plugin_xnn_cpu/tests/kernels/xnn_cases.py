"""XNNPACK's operators that pack no weights; oracle: numpy, in float64 where it is not exact."""

from __future__ import annotations

import numpy as np
from edge_kit import EDGES, SOME, UNIT, Cases
from numpy.lib.stride_tricks import sliding_window_view

from narrowpass_xnn_cpu.native.problems.quantization import Quantization
from narrowpass_xnn_cpu.native.xnnpack import elementwise, movement

CASES = Cases()
COUNTS = (*EDGES[1:], 16383, 16385, 50001)
UNARY = {
    "abs": np.abs,
    "negate": np.negative,
    "clamp": lambda x: np.clip(x, -0.5, 1),
    "leaky_relu": lambda x: np.where(x < 0, 0.25 * x, x),
    "floor": np.floor,
}
PARAMETERS = {"clamp": (-0.5, 1.0), "leaky_relu": (0.25,)}


@CASES.of("NP_UNARY", count=COUNTS, kind=tuple(UNARY))
def unary(kernel, count, kind):
    x = kernel.floats(count)
    operator = elementwise.XnnUnary(kind, PARAMETERS.get(kind, ()))
    operator.reshape(count, kernel.pool)
    expected = UNARY[kind](x.astype(np.float64)).astype(np.float32)
    kernel.expect(None, [x], expected, 8 * UNIT, operator=operator)


BINARY = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
}
BROADCAST = {"dense": ((1, 1), (1, 1)), "row": ((1, 1), (0, 1)), "column": ((1, 0), (1, 1))}


@CASES.of(
    "NP_BINARY", columns=EDGES[1:], rows=(1, 2, 3, 300), kind=tuple(BINARY), how=tuple(BROADCAST)
)
def binary(kernel, columns, rows, kind, how):
    shapes = [(rows if down else 1, columns if along else 1) for down, along in BROADCAST[how]]
    a, b = (kernel.floats(*shape) for shape in shapes)
    operator = elementwise.XnnBinary(kind)
    operator.reshape(*shapes, kernel.pool)
    kernel.expect(None, [a, b], BINARY[kind](a, b), 2 * UNIT, operator=operator)


@CASES.of(
    "NP_BINARY",
    columns=EDGES[1:],
    rows=(1, 2, 3, 300),
    kind=("add", "subtract", "multiply"),
    how=tuple(BROADCAST),
)
def binary_int8(kernel, columns, rows, kind, how):
    """Within one step: XNNPACK requantizes in fixed point."""
    given = Quantization(0.03, 5), Quantization(0.02, -7), Quantization(0.05, 3)
    shapes = [(rows if down else 1, columns if along else 1) for down, along in BROADCAST[how]]
    a, b = (kernel.bytes(*shape) for shape in shapes)
    operator = elementwise.XnnBinary(kind, given)
    operator.reshape(*shapes, kernel.pool)
    real = [
        (x.astype(float) - item.zero_point) * item.scale
        for x, item in zip((a, b), given[:2], strict=True)
    ]
    exact = BINARY[kind](*real) / given[2].scale + given[2].zero_point
    expected = np.clip(np.rint(exact), -128, 127).astype(np.int8)
    kernel.expect(None, [a, b], expected, operator=operator, steps=1)


REDUCED = ((0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2))


@CASES.of("NP_REDUCE_S8", last=EDGES[1:], middle=EDGES[1:], first=(1, 2, 3), axes=REDUCED)
def reduce_int8(kernel, last, middle, first, axes):
    x = kernel.bytes(first, middle, last)
    source, result = Quantization(0.03, 5), Quantization(0.01, -3)
    operator = elementwise.XnnMean(source, result)
    operator.reshape(x.shape, axes, kernel.pool)
    mean = x.astype(np.float64).mean(axes, keepdims=True) - source.zero_point
    exact = mean * source.scale / result.scale + result.zero_point
    expected = np.clip(np.rint(exact), -128, 127).astype(np.int8)
    kernel.expect(None, [x], expected, operator=operator, workspace=operator.workspace, steps=1)


def pad(kernel, x, columns, rows, ahead, behind):
    around = ((0, 1), (ahead, behind))
    operator = movement.XnnPad(3, x.itemsize)
    operator.reshape((rows, columns), *zip(*around, strict=True), kernel.pool)
    kernel.expect(None, [x], np.pad(x, around, constant_values=3), operator=operator)


PADS = {"columns": EDGES[1:], "rows": (1, 2, 3, 16, 17), "ahead": EDGES, "behind": EDGES}


@CASES.of("NP_PAD", **PADS)
def pad_floats(kernel, columns, rows, ahead, behind):
    pad(kernel, kernel.floats(rows, columns), columns, rows, ahead, behind)


@CASES.of("NP_PAD_S8", **PADS)
def pad_bytes(kernel, columns, rows, ahead, behind):
    pad(kernel, kernel.bytes(rows, columns), columns, rows, ahead, behind)


def transpose(kernel, x, perm):
    operator = movement.XnnTranspose(x.itemsize)
    operator.reshape(x.shape, perm, kernel.pool)
    kernel.expect(None, [x], x.transpose(perm), operator=operator)


PERMS = {
    "last": EDGES[1:],
    "middle": EDGES[1:],
    "first": (1, 2, 3),
    "perm": ((0, 2, 1), (1, 0, 2), (2, 1, 0), (1, 2, 0), (2, 0, 1)),
}


@CASES.of("NP_TRANSPOSE", **PERMS)
def transpose_floats(kernel, last, middle, first, perm):
    transpose(kernel, kernel.floats(first, middle, last), perm)


@CASES.of("NP_TRANSPOSE_S8", **PERMS)
def transpose_bytes(kernel, last, middle, first, perm):
    transpose(kernel, kernel.bytes(first, middle, last), perm)


def resized(x, size, axis):
    """Interpolate along an axis, with half-pixel centres."""
    places = np.clip((np.arange(size) + 0.5) * x.shape[axis] / size - 0.5, 0, x.shape[axis] - 1)
    low = np.floor(places).astype(int)
    high = np.minimum(low + 1, x.shape[axis] - 1)
    shape = [1] * x.ndim
    shape[axis] = size
    share = (places - low).reshape(shape)
    return x.take(low, axis) * (1 - share) + x.take(high, axis) * share


@CASES.of(
    "NP_RESIZE_BILINEAR",
    channels=EDGES[1:],
    width=SOME[:12],
    height=(1, 2, 5),
    out=((1, 1), (2, 3), (5, 17), (8, 33)),
    batch=(1, 2),
)
def resize(kernel, channels, width, height, out, batch):
    x = kernel.floats(batch, height, width, channels)
    operator = movement.XnnResizeBilinear(*out, "half_pixel")
    operator.reshape(x.shape, kernel.pool)
    expected = resized(resized(x.astype(np.float64), out[0], 1), out[1], 2).astype(np.float32)
    # Places are rounded: by some units of the largest one.
    tolerance = 8 * (8 + width) * UNIT
    kernel.expect(None, [x], expected, tolerance, operator=operator, workspace=operator.workspace)


@CASES.of(
    "NP_MAX_POOL_S8",
    channels=EDGES[1:],
    width=SOME[:12],
    height=(3, 4, 5),
    taps=((2, 2), (3, 3), (1, 2), (3, 1)),
    stride=(1, 2),
    pad=(0, 1),
    batch=(1, 2),
)
def max_pool(kernel, channels, width, height, taps, stride, pad, batch):
    pads = [min(pad, size - 1) for size in taps]
    if width + 2 * pads[1] < taps[1]:
        return
    x = kernel.bytes(batch, height, width, channels)
    operator = movement.XnnMaxPool(taps, (*pads, *pads), (stride, stride), (1, 1))
    operator.reshape(x.shape, kernel.pool)
    around = ((0, 0), (pads[0],) * 2, (pads[1],) * 2, (0, 0))
    seen = sliding_window_view(np.pad(x, around, constant_values=-128), taps, (1, 2))
    expected = seen[:, ::stride, ::stride].max((4, 5))
    kernel.expect(None, [x], expected, operator=operator)
