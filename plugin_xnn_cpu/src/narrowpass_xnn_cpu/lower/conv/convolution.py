"""Convolutions, plain, grouped, depthwise and transposed, in one or two dimensions."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from narrowpass.errors import AttributesError
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.weights.weight import Weight
from narrowpass_xnn_cpu.lower.builder import Builder
from narrowpass_xnn_cpu.lower.conv import transposed
from narrowpass_xnn_cpu.lower.conv.conv2d import CHANNELS_LAST, Conv2d, KernelWindow
from narrowpass_xnn_cpu.lower.conv.separable import fuse_separable
from narrowpass_xnn_cpu.lower.matmul.computations import ConstantMatMul
from narrowpass_xnn_cpu.lower.matmul.epilogue import emit
from narrowpass_xnn_cpu.lower.op import Op, check_floats
from narrowpass_xnn_cpu.lower.rule import Rule, rules
from narrowpass_xnn_cpu.native import target
from narrowpass_xnn_cpu.native.problems.convolution import ConvAttributes, Image
from narrowpass_xnn_cpu.native.table.convolution import (
    bf16_is_own,
    fuses_epilogue,
    is_pixel_matmul,
)


def _kernel_dims(op: Op, facts: Facts) -> tuple[int, ...] | str:
    kernel = op.input(1)
    if kernel is None or not facts.is_constant(kernel):
        return "its kernel is not a constant"
    dims = facts.dims(kernel) or ()
    sizes = tuple(dim for dim in dims if isinstance(dim, int))
    if len(sizes) not in (3, 4):
        return f"convolutions of {len(sizes) - 2} dimensions have no kernel"
    if 0 in sizes:
        return "its kernel is empty"
    if tuple(op.get("kernel_shape", sizes[2:])) != sizes[2:]:
        return f"kernel_shape {list(op.get('kernel_shape', ()))} is not that of its kernel"
    if facts.rank(op.input(0)) not in (None, len(sizes)):
        return f"its input has rank {facts.rank(op.input(0))}, its kernel {len(sizes)}"
    bias = op.input(2)
    if bias is not None and not facts.is_constant(bias):
        return "its bias is not a constant"
    return sizes


def _kernel_window(op: Op, facts: Facts, sizes: tuple[int, ...]) -> KernelWindow:
    dims = facts.dims(op.input(0))
    return KernelWindow.of(op, sizes[2:], None if dims is None else dims[2:])


def _check_conv(op: Op, facts: Facts) -> str | None:
    reason = check_floats(op, facts, 3)
    if reason:
        return reason
    sizes = _kernel_dims(op, facts)
    if isinstance(sizes, str):
        return sizes
    groups = op.get("group", 1)
    if groups < 1 or sizes[0] % groups:
        return f"{sizes[0]} output channels cannot form {groups} groups"
    channels = (facts.dims(op.input(0)) or (None, None))[1]
    if isinstance(channels, int) and channels != sizes[1] * groups:
        return f"its input has {channels} channels, its kernel is for {sizes[1] * groups}"
    try:
        _kernel_window(op, facts, sizes)
    except AttributesError as error:
        return str(error)
    return _check_bias(op, facts, sizes[0])


def _check_bias(op: Op, facts: Facts, channels: int) -> str | None:
    bias = op.input(2)
    if bias is not None and facts.dims(bias) != (channels,):
        return f"its bias is of shape {facts.dims(bias)}, not [{channels}]"
    return None


def _bias(facts: Facts, value: ir.Value | None) -> Weight | None:
    return None if value is None else facts.weight(value)


def _conv_attributes(op: Op, kernel_window: KernelWindow) -> ConvAttributes:
    return ConvAttributes(
        kernel_window.pads, kernel_window.strides, kernel_window.dilations, op.get("group", 1)
    )


def _image(facts: Facts, value: ir.Value) -> Image | None:
    """Return the known batch, height and width of images; None for 1-D images and unknown rank.

    An unknown batch counts as 1: kernels are not slower for larger batches.
    """
    batch, _, *sizes = facts.dims(value) or (None, None)
    if len(sizes) != 2:
        return None
    height, width = (size if isinstance(size, int) else None for size in sizes)
    return (batch if isinstance(batch, int) else 1), height, width


def _is_depthwise(op: Op, outputs: int, per_group: int) -> bool:
    groups = op.get("group", 1)
    # Several outputs for each channel are XNNPACK's, or groups of a convolution.
    whole = outputs == groups or not target.current().emulates_fma
    return per_group == 1 and bool(groups > 1) and whole


def _conv_fuses_epilogue(op: Op, facts: Facts) -> bool:
    sizes = _kernel_dims(op, facts)
    if isinstance(sizes, str):
        return False
    kernel_window, depthwise = _kernel_window(op, facts, sizes), _is_depthwise(op, *sizes[:2])
    dtype, attributes = facts.stored(op.required(1)).dtype, _conv_attributes(op, kernel_window)
    return fuses_epilogue(dtype, attributes, sizes[0], target.current(), depthwise=depthwise)


def lower_conv(op: Op, builder: Builder) -> None:
    """Emit a convolution; a 1x1 one as a matmul of pixels, fused with a depthwise one before it."""
    facts = builder.facts
    given = op.required(0)
    kernel = facts.stored(op.required(1))
    kernel_window = _kernel_window(op, facts, kernel.shape)
    outputs, per_group = kernel.shape[:2]
    perm = CHANNELS_LAST[len(kernel.shape)]
    attributes = _conv_attributes(op, kernel_window)
    depthwise = _is_depthwise(op, outputs, per_group)
    processor = target.current()
    if bf16_is_own(kernel.dtype, processor, depthwise=depthwise):
        narrow = Conv2d(
            op.epilogue,
            op.residual_fits,
            weight=kernel.reshape(outputs, per_group, *kernel_window.size).transpose(0, 2, 3, 1),
            bias=_bias(facts, op.input(2)),
            kernel_window=kernel_window,
            attributes=attributes,
            outputs=outputs,
        )
        emit(op, builder, narrow, [builder.slot_of(given, perm)], perm)
        return
    kernel = kernel.cast(np.dtype(np.float32))
    if is_pixel_matmul(kernel_window.size, attributes, processor):
        # As float32: an int8 matrix would be dequantized in each run.
        floats = dataclasses.replace(kernel.reshape(outputs, per_group), quantized=None)
        matmul = ConstantMatMul(
            op.epilogue,
            op.residual_fits,
            weight=floats.transpose(1, 0),
            bias=_bias(facts, op.input(2)),
        )
        slot = builder.slot_of(given, perm)
        if not fuse_separable(op, matmul, slot, builder, perm):
            emit(op, builder, matmul, [slot], perm)
        return
    image = kernel.reshape(outputs, per_group, *kernel_window.size)
    if depthwise:
        packed = image.reshape(outputs, *kernel_window.size).transpose(1, 2, 0)
    else:
        packed = image.transpose(0, 2, 3, 1)
    convolution = Conv2d(
        op.epilogue,
        op.residual_fits,
        weight=packed,
        bias=_bias(facts, op.input(2)),
        kernel_window=kernel_window,
        attributes=attributes,
        outputs=outputs,
        algorithm="depthwise" if depthwise else "direct",
        image=_image(facts, given),
        winograd=builder.numerics.winograd,
    )
    emit(op, builder, convolution, [builder.slot_of(given, perm)], perm)


def _check_conv_transpose(op: Op, facts: Facts) -> str | None:
    reason = check_floats(op, facts, 3)
    if reason:
        return reason
    sizes = _kernel_dims(op, facts)
    if isinstance(sizes, str):
        return sizes
    if op.get("output_shape", None) is not None:
        return "an output_shape is given; only pads and output_padding are covered"
    if op.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return f"auto_pad {op.get('auto_pad', '')} of transposed convolutions is not covered"
    groups = op.get("group", 1)
    if groups < 1 or sizes[0] % groups:
        return f"{sizes[0]} input channels cannot form {groups} groups"
    channels = (facts.dims(op.input(0)) or (None, None))[1]
    if isinstance(channels, int) and channels != sizes[0]:
        return f"its input has {channels} channels, its kernel is for {sizes[0]}"
    try:
        kernel_window = _kernel_window(op, facts, sizes)
    except AttributesError as error:
        return str(error)
    extra = list(op.get("output_padding", [0] * (len(sizes) - 2)))
    strides = kernel_window.strides[-len(extra) :]
    if any(not 0 <= a < s for a, s in zip(extra, strides, strict=False)):
        return f"output_padding {extra} is not below the strides"
    return _check_bias(op, facts, sizes[1] * groups)


def _conv_transpose(op: Op, builder: Builder) -> None:
    facts = builder.facts
    kernel = facts.weight(op.required(1))
    kernel_window = _kernel_window(op, facts, kernel.shape)
    groups = op.get("group", 1)
    inputs, per_group = kernel.shape[:2]
    outputs = per_group * groups
    bias = _bias(facts, op.input(2))
    padded = any(op.get("output_padding", ()))
    if transposed.is_matmul(kernel_window, groups) and not padded:
        transposed.lower_matmul(op, builder, kernel, bias, kernel_window)
        return
    grouped = kernel.reshape(groups, inputs // groups, per_group, *kernel_window.size)
    packed = grouped.transpose(0, 2, 3, 4, 1).reshape(
        outputs, *kernel_window.size, inputs // groups
    )
    if transposed.is_convolution(kernel_window, groups):
        image = _image(facts, op.required(0))
        transposed.lower_convolution(op, builder, packed, bias, kernel_window, image)
        return
    rank = len(kernel.shape)
    extra = list(op.get("output_padding", [0] * (rank - 2)))
    extra = [0, *extra] if len(extra) == 1 else extra
    if transposed.is_subpixel(kernel_window, groups, extra):
        transposed.lower_subpixel(op, builder, packed, bias, kernel_window, extra)
        return
    transposed_convolution = Conv2d(
        op.epilogue,
        weight=packed,
        bias=bias,
        kernel_window=kernel_window,
        attributes=_conv_attributes(op, kernel_window),
        outputs=outputs,
        algorithm="transposed",
        adjustments=tuple(extra),
    )
    perm = CHANNELS_LAST[rank]
    given = builder.slot_of(op.required(0), perm)
    builder.compute(transposed_convolution, [given], op.output, perm)


RULES: tuple[Rule, ...] = (
    *rules(
        "Conv",
        lower=lower_conv,
        check=_check_conv,
        fuses_clamp=True,
        fuses_epilogue=_conv_fuses_epilogue,
    ),
    *rules("ConvTranspose", lower=_conv_transpose, check=_check_conv_transpose, fuses_clamp=True),
)
