"""Convolutions of whole numbers: accumulators are exact in any order, but for Winograd's."""

from __future__ import annotations

import fp32_kit
import int8_kernels_kit
import ml_dtypes
import numpy as np
from edge_kit import EDGES, SOME, UNIT, Cases
from gemm_cases import whole

from narrowpass_planning.weights.weight import Quantized, Weight
from narrowpass_xnn_cpu.native.own import (
    bf16,
    fp32,
    fp32_depthwise,
    fp32_winograd,
    int8_convolution,
    int8_depthwise,
    int8_winograd,
)
from narrowpass_xnn_cpu.native.own.separable import Separable
from narrowpass_xnn_cpu.native.problems.convolution import ConvAttributes, Convolution
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue
from narrowpass_xnn_cpu.native.problems.matmul import Matmul
from narrowpass_xnn_cpu.native.problems.quantization import Quantization, Requantized
from narrowpass_xnn_cpu.native.xnnpack import convolution as xnn

CASES = Cases()
ZERO = -5
"""Zero point of int8 inputs."""
IMAGES = {
    "width": (1, 2, 3, 5, 6, 7, 11, 12, 13, 17),
    "height": (1, 2, 3, 5),
    "pads": ((0, 0, 0, 0), (1, 1, 1, 1), (0, 1, 2, 0)),
    "batch": (1, 2),
    "limits": ((-np.inf, np.inf), (0.0, 6.0)),
}
GEOMETRY = {
    "shape": ((1, 1), (3, 3), (2, 3), (1, 2)),
    "stride": ((1, 1), (2, 2), (1, 3)),
    "dilation": ((1, 1), (2, 1)),
}
CHANNELS = {"outputs": EDGES[1:], "inputs": (2, 3, 4, 7, 8, *SOME)}


def problem_of(kernel, inputs, outputs, image, shape, attributes, depthwise=False):
    """Return an image that the kernel fits into, the kernel and a bias."""
    size = fp32_kit.valid_image_size(image[1:], shape, attributes)
    x = whole(kernel, image[0], *size, inputs * (1 if depthwise else attributes.groups))
    if depthwise:
        weights = whole(kernel, *shape, outputs)
    else:
        weights = whole(kernel, outputs * attributes.groups, *shape, inputs)
    return x, weights, whole(kernel, weights.shape[-1] if depthwise else len(weights))


def check(kernel, operator, x, expected, tolerance=0.0):
    out = operator.reshape(x.shape, kernel.pool)
    assert tuple(out) == expected.shape[1:3]
    options = {"operator": operator, "workspace": operator.workspace}
    kernel.expect(operator.params, [x], expected.astype(np.float32), tolerance, **options)


def convolve(kernel, create, dtype, sizes, groups):
    attributes = ConvAttributes(sizes["pads"], sizes["stride"], sizes["dilation"], groups)
    image = sizes["batch"], sizes["height"], sizes["width"]
    x, weights, bias = problem_of(
        kernel, sizes["inputs"], sizes["outputs"], image, sizes["shape"], attributes
    )
    result = Epilogue(limits=sizes["limits"])
    operator = create(
        Convolution(Weight.of(weights.astype(dtype)), Weight.of(bias), attributes, result)
    )
    exact = fp32_kit.convolve(x, weights, bias, attributes)
    check(kernel, operator, x, np.clip(exact, *sizes["limits"]))


PLAIN = {**CHANNELS, **IMAGES, **GEOMETRY, "groups": (1, 2)}


@CASES.of("NP_CONVOLUTION", **PLAIN)
def of_xnnpack(kernel, groups, **sizes):
    convolve(kernel, xnn.CONVOLUTION.create, np.float32, sizes, groups)


@CASES.of("NP_FP32_CONVOLUTION", **PLAIN)
def floats(kernel, groups, **sizes):
    convolve(kernel, fp32.CONVOLUTION.create, np.float32, sizes, groups)


@CASES.of("NP_BF16_CONVOLUTION", **PLAIN)
def bfloat16(kernel, groups, **sizes):
    convolve(kernel, bf16.CONVOLUTION.create, ml_dtypes.bfloat16, sizes, groups)


@CASES.of("NP_FP32_WINOGRAD", **CHANNELS, **IMAGES, tile=(2, 4))
def winograd(kernel, inputs, outputs, width, height, pads, batch, limits, tile):
    """Within the error of the transforms, whose factors amplify rounding, and of K additions."""
    attributes = ConvAttributes(pads)
    x, weights, bias = problem_of(
        kernel, inputs, outputs, (batch, height, width), (3, 3), attributes
    )
    result = Epilogue(limits=limits)
    operator = fp32_winograd.BY_TILE[tile].create(
        Convolution(Weight.of(weights), Weight.of(bias), attributes, result)
    )
    exact = fp32_kit.convolve(x, weights, bias, attributes)
    check(kernel, operator, x, np.clip(exact, *limits), (512 + 16 * inputs) * UNIT)


SHAPES = ((3, 3), (5, 5), (1, 1), (2, 7), (9, 1), (1, 11))


@CASES.of("NP_FP32_DEPTHWISE", channels=EDGES[1:], **{**GEOMETRY, "shape": SHAPES}, **IMAGES)
def depthwise(kernel, channels, shape, stride, dilation, width, height, pads, batch, limits):
    attributes = ConvAttributes(pads, stride, dilation, channels)
    image = batch, height, width
    x, weights, bias = problem_of(kernel, channels, channels, image, shape, attributes, True)
    result = Epilogue(limits=limits)
    operator = fp32_depthwise.DEPTHWISE.create(
        Convolution(Weight.of(weights), Weight.of(bias), attributes, result, depthwise=True)
    )
    grouped = weights.transpose(2, 0, 1)[..., None]
    exact = fp32_kit.convolve(x, grouped, bias, attributes)
    check(kernel, operator, x, np.clip(exact, *limits))


@CASES.of("NP_FP32_SEPARABLE", inner=EDGES[1:], inputs=(0, 1, *SOME), outputs=SOME, **IMAGES)
def separable(kernel, inner, inputs, outputs, width, height, pads, batch, limits):
    """Expansion, unless it has no inputs, a depthwise convolution of 3 x 3, and projection."""
    attributes = ConvAttributes(pads, groups=inner)
    size = fp32_kit.valid_image_size((height, width), (3, 3), attributes)
    y = x = whole(kernel, batch, *size, inputs or inner, most=1)
    expand = None
    if inputs:
        matrix = whole(kernel, inner, inputs, most=1)
        expand = fp32.MATMUL.create(Matmul(Weight.of(matrix)))
        y = x @ matrix.T
    middle_weights, last = whole(kernel, 3, 3, inner, most=1), whole(kernel, outputs, inner, most=1)
    middle = fp32_depthwise.DEPTHWISE.create(
        Convolution(
            Weight.of(middle_weights), None, attributes, Epilogue(limits=limits), depthwise=True
        )
    )
    project = fp32.MATMUL.create(Matmul(Weight.of(last)))
    y = fp32_kit.convolve(y, middle_weights.transpose(2, 0, 1)[..., None], None, attributes)
    check(kernel, Separable(expand, middle, project), x, np.clip(y, *limits) @ last.T)


def spread(x, weights, pads, stride):
    """Compute a transposed convolution: each pixel adds to several results."""
    batch, height, width, _ = x.shape
    outputs, *shape, _ = weights.shape
    sizes = [(n - 1) * stride + k for n, k in zip((height, width), shape, strict=True)]
    found = np.zeros((batch, *sizes, outputs))
    for i, j in np.ndindex(*shape):
        part = found[:, i : i + stride * height : stride, j : j + stride * width : stride]
        part += x.astype(float) @ weights[:, i, j].T
    return found[:, pads[0] : sizes[0] - pads[2], pads[1] : sizes[1] - pads[3]]


SPREAD = {"shape": ((1, 1), (2, 2), (3, 3), (2, 4)), "stride": (1, 2, 3)}


def transposed(x, weights, sizes):
    """Return the exact result in float64, and the attributes with pads that leave some of it."""
    pads = zip(sizes["pads"], (*sizes["shape"], *sizes["shape"]), strict=True)
    pads = tuple(min(pad, 1, size - 1) for pad, size in pads)
    attributes = ConvAttributes(pads, (sizes["stride"],) * 2)
    return spread(x, weights, pads, sizes["stride"]), attributes


@CASES.of("NP_DECONVOLUTION", **CHANNELS, **IMAGES, **SPREAD)
def transposed_floats(kernel, inputs, outputs, limits, **sizes):
    x = whole(kernel, sizes["batch"], sizes["height"], sizes["width"], inputs)
    weights = whole(kernel, outputs, *sizes["shape"], inputs)
    exact, attributes = transposed(x, weights, sizes)
    if exact.size:
        result = Epilogue(limits=limits)
        problem = Convolution(Weight.of(weights), None, attributes, result, adjustments=(0, 0))
        check(kernel, xnn.DECONVOLUTION.create(problem), x, np.clip(exact, *limits))


def compare_int8(kernel, create, x, outputs, depth, stored, accumulators, attributes, **options):
    """Compare int8 results with requantized accumulators, to which a bias is added."""
    bias = whole(kernel, outputs, most=999, dtype=np.int32)
    scales = int8_kernels_kit.scales_of(kernel.rng, outputs, depth)
    requantized = Requantized(Quantization(0.5, ZERO), Quantization(0.25, 7), (-128, 127))
    quantized = Quantized(Weight.of(stored), Weight.of(scales), None, options.pop("axis", 0))
    problem = Convolution(quantized, Weight.of(bias), attributes, requantized, **options)
    operator = create(problem)
    expected = int8_kernels_kit.requantize(accumulators + bias, scales, requantized)
    assert tuple(operator.reshape(x.shape, kernel.pool)) == expected.shape[1:3]
    given = {"operator": operator, "workspace": operator.workspace}
    kernel.expect(operator.params, [x], expected, **given)


def convolve_int8(kernel, create, x, weights, stored, attributes, **options):
    accumulators = int8_kernels_kit.convolve(x, weights, None, attributes, ZERO)
    sizes = len(weights), weights[0].size
    compare_int8(kernel, create, x, *sizes, stored, accumulators, attributes, **options)


NARROW = {**PLAIN}
del NARROW["limits"]


def bytes_of(kernel, sizes, attributes, inputs, outputs, shape):
    size = fp32_kit.valid_image_size((sizes["height"], sizes["width"]), shape, attributes)
    x = kernel.bytes(sizes["batch"], *size, inputs * attributes.groups)
    return x, np.maximum(kernel.bytes(outputs * attributes.groups, *shape, inputs), -127)


def int8(kernel, create, sizes, groups):
    attributes = ConvAttributes(sizes["pads"], sizes["stride"], sizes["dilation"], groups)
    shape = sizes["inputs"], sizes["outputs"], sizes["shape"]
    x, weights = bytes_of(kernel, sizes, attributes, *shape)
    convolve_int8(kernel, create, x, weights, weights, attributes)


@CASES.of("NP_CONVOLUTION_S8", **NARROW)
def int8_of_xnnpack(kernel, groups, **sizes):
    int8(kernel, xnn.CONVOLUTION_S8.create, sizes, groups)


@CASES.of("NP_INT8_CONVOLUTION", **NARROW)
def int8_of_ours(kernel, groups, **sizes):
    int8(kernel, int8_convolution.CONVOLUTION.create, sizes, groups)


FEW = {name: IMAGES[name] for name in ("width", "height", "pads", "batch")}


@CASES.of("NP_INT8_WINOGRAD", outputs=EDGES[3::3], inputs=EDGES[3::3], **FEW)
def int8_with_winograd(kernel, outputs, inputs, **sizes):
    """Channels are whole tiles of 16, which it is for."""
    attributes = ConvAttributes(sizes["pads"])
    x, weights = bytes_of(kernel, sizes, attributes, inputs, outputs, (3, 3))
    convolve_int8(kernel, int8_winograd.WINOGRAD.create, x, weights, weights, attributes)


@CASES.of("NP_INT8_DEPTHWISE", channels=EDGES[1:], **{**GEOMETRY, "shape": SHAPES[:4]}, **FEW)
def int8_depthwise_of_ours(kernel, channels, shape, stride, dilation, **sizes):
    attributes = ConvAttributes(sizes["pads"], stride, dilation, channels)
    x, weights = bytes_of(kernel, sizes, attributes, 1, 1, shape)
    stored = weights[..., 0].transpose(1, 2, 0).copy()
    create = int8_depthwise.create
    convolve_int8(kernel, create, x, weights, stored, attributes, depthwise=True, axis=2)


@CASES.of("NP_DECONVOLUTION_S8", **CHANNELS, **FEW, **SPREAD)
def transposed_int8(kernel, inputs, outputs, **sizes):
    x = kernel.bytes(sizes["batch"], sizes["height"], sizes["width"], inputs)
    weights = np.maximum(kernel.bytes(outputs, *sizes["shape"], inputs), -127)
    exact, attributes = transposed(x.astype(float) - ZERO, weights.astype(float), sizes)
    if exact.size:
        create = xnn.DECONVOLUTION_S8.create
        depth = weights[0].size
        options = {"adjustments": (0, 0)}
        accumulators = exact.astype(np.int64)
        compare_int8(
            kernel, create, x, outputs, depth, weights, accumulators, attributes, **options
        )
