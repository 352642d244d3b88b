"""Normalization; oracle: numpy in float64.

Accumulators of n terms err by sqrt(n) units, and by a few more than that: `ACCUMULATED`.
"""

from __future__ import annotations

import numpy as np
from edge_kit import EDGES, SOME, UNIT, Cases
from tolerances import ACCUMULATED

from narrowpass_xnn_cpu.native import kernels

CASES = Cases()
EPSILON = 0.01
"""With it, groups whose elements are nearly equal amplify rounding errors by 10 at most."""


def images(x, channels_last):
    """Return [N, C, P] in the order of axes that a kernel is to read."""
    return np.moveaxis(x, 1, 2) if channels_last else x


@CASES.of(
    "NP_AFFINE",
    channels=EDGES,
    pixels=EDGES,
    count=(0, 1, 2, 3),
    channels_last=(False, True),
    limits=((-np.inf, np.inf), (0.0, 6.0), (-0.5, 0.25)),
)
def affine(kernel, channels, pixels, count, channels_last, limits):
    x, scale, shift = (
        kernel.floats(*shape) for shape in ((count, channels, pixels), (channels,), (channels,))
    )
    wide = x.astype(np.float64) * scale[:, None] + shift[:, None]
    expected = images(np.clip(wide, *limits).astype(np.float32), channels_last)
    given = images(x, channels_last)
    params = kernels.affine(given.shape, limits, channels_last=channels_last)
    # The multiplication may be rounded on its own: by half a unit of a number that cancels.
    kernel.expect(params, [given, scale, shift], expected, 8 * UNIT)


def normalized(x, axes):
    mean = x.mean(axes, keepdims=True)
    return (x - mean) / np.sqrt(((x - mean) ** 2).mean(axes, keepdims=True) + EPSILON)


@CASES.of(
    "NP_GROUP_NORM",
    each=EDGES[1:],
    pixels=EDGES,
    groups=(1, 2, 3, 7),
    count=(0, 1, 2),
    channels_last=(False, True),
    by_group=(False, True),
)
def group_norm(kernel, each, pixels, groups, count, channels_last, by_group):
    channels = groups * each
    x = kernel.floats(count, channels, pixels)
    scale, bias = (kernel.floats(groups if by_group else channels) for _ in range(2))
    expected = x
    if x.size:
        whole = normalized(x.astype(np.float64).reshape(count, groups, -1), 2).reshape(x.shape)
        factors = [np.repeat(part, each if by_group else 1)[:, None] for part in (scale, bias)]
        expected = (whole * factors[0] + factors[1]).astype(np.float32)
    given = images(x, channels_last)
    params = kernels.group_norm(
        given.shape, groups, EPSILON, channels_last=channels_last, by_group=by_group
    )
    out = images(expected, channels_last)
    kernel.expect(params, [given, scale, bias], out, ACCUMULATED.relative)


@CASES.of(
    "NP_LRN",
    channels=EDGES,
    pixels=EDGES,
    size=(1, 2, 3, 5),
    beta=(0.75, 0.6),
    count=(0, 1, 2),
    channels_last=(False, True),
)
def lrn(kernel, channels, pixels, size, beta, count, channels_last):
    x = kernel.floats(count, channels, pixels)
    squares = x.astype(np.float64) ** 2
    around = np.zeros_like(squares)
    for shift in range(-((size - 1) // 2), size - (size - 1) // 2):
        to = slice(max(0, -shift), max(0, channels - shift))
        of = slice(max(0, shift), max(0, channels + shift))
        if min(channels, channels - abs(shift)) > 0:
            around[:, to] += squares[:, of]
    expected = (x / (1.5 + 0.3 / size * around) ** beta).astype(np.float32)
    given = images(x, channels_last)
    params = kernels.lrn(given.shape, size, 0.3, beta, 1.5, channels_last=channels_last)
    kernel.expect(params, [given], images(expected, channels_last), 16 * UNIT)


def log_softmax(x):
    top = x.max(1, keepdims=True)
    return x - top - np.log(np.exp(x - top).sum(1, keepdims=True))


def softmax(x):
    powers = np.exp(x - x.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def hardmax(x):
    return (np.arange(x.shape[1]) == x.argmax(1)[:, None]).astype(float)


ROWS = {
    "softmax": softmax,
    "log softmax": log_softmax,
    "hardmax": hardmax,
    "l1 normalization": lambda x: x / np.abs(x).sum(1, keepdims=True),
    "l2 normalization": lambda x: x / np.sqrt((x**2).sum(1, keepdims=True)),
}


@CASES.of("NP_ROWS", columns=EDGES[1:], rows=EDGES, name=tuple(ROWS))
def row_function(kernel, columns, rows, name):
    x = kernel.floats(rows, columns)
    expected = ROWS[name](x.astype(np.float64)) if rows else x
    params = kernels.row_function(rows, columns, name)
    kernel.expect(params, [x], expected.astype(np.float32), ACCUMULATED.relative)


@CASES.of(
    "NP_LAYER_NORM",
    columns=EDGES[1:],
    rows=SOME,
    outer=(1, 2, 3),
    bias=(False, True),
    added=("", "dense", "broadcast"),
    root=(False, True),
    keeps_sum=(False, True),
)
def layer_norm(kernel, columns, rows, outer, bias, added, root, keeps_sum):
    x = kernel.floats(outer, rows, columns)
    given = [x, *(kernel.floats(columns) for _ in range(1 + bias))]
    whole, views = x.astype(np.float64), [(outer, rows)]
    if added:
        given.append(kernel.floats(1 if added == "broadcast" else outer, rows, columns))
        whole = (x + given[-1]).astype(np.float64)  # it is rounded before
        views.append(given[-1].shape[:2])
    if root:
        expected = whole / np.sqrt((whole**2).mean(2, keepdims=True) + EPSILON)
    else:
        expected = normalized(whole, 2)
    expected = expected * given[1] + (given[2] if bias else 0)
    keeps_sum = keeps_sum and bool(added)
    params = kernels.layer_norm(
        (outer, rows),
        columns,
        [kernels.broadcast_strides(view, (outer, rows)) for view in views],
        EPSILON,
        bias=bias,
        root_mean_square=root,
        sum_offset=x.size if keeps_sum else 0,
    )
    out = np.stack([expected, whole]) if keeps_sum else expected
    kernel.expect(params, given, out.astype(np.float32), ACCUMULATED.relative)
