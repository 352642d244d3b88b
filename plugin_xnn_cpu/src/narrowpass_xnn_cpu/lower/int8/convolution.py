"""Convolutions of bytes."""

from __future__ import annotations

import math

from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.weights.weight import Quantized, Weight
from narrowpass_xnn_cpu.lower.builder import Builder
from narrowpass_xnn_cpu.lower.convolve import CHANNELS_LAST, Convolve, Window
from narrowpass_xnn_cpu.lower.int8.constants import bias_in_steps, byte_limits
from narrowpass_xnn_cpu.lower.int8.instead import or_floats
from narrowpass_xnn_cpu.lower.op import Op, lowers
from narrowpass_xnn_cpu.native.operators import (
    DeconvolutionS8,
    Movement,
    Quantization,
    Requantized,
    UnfitError,
)
from narrowpass_xnn_cpu.native.operators.int8_choice import convolution_s8


def requantized(op: Op) -> Requantized:
    """Give from what an operation comes, and to what."""
    (given,), made = op.attributes["given"], op.attributes["made"]
    return Requantized(given, made, byte_limits(op.limits, made))


def stored(weight: Weight) -> Quantized:
    """Give the bytes of a weight that was laid out anew.

    Raises:
        UnfitError: scales of several axes were mixed up by that.
    """
    if weight.quantized is None:
        raise UnfitError("its scales are not of its outputs")
    return weight.quantized


def _window(op: Op, facts: Facts, sizes: tuple[int, ...]) -> Window:
    dims = facts.dims(op.input(0))
    return Window.of(op, sizes, None if dims is None else dims[2:])


def _bias(
    op: Op, facts: Facts, kernel: Quantized, terms: int, given: Quantization, made: Quantization
) -> Weight | None:
    value = op.input(2)
    return bias_in_steps(None if value is None else facts.weight(value), kernel, given, made, terms)


@lowers("conv-s8", check=lambda op, facts: None)
@or_floats
def _conv(op: Op, builder: Builder) -> None:
    facts = builder.facts
    weight = facts.weight(op.required(1))
    window = _window(op, facts, weight.shape[2:])
    outputs, per_group = weight.shape[:2]
    groups = op.get("group", 1)
    image = weight.reshape(outputs, per_group, *window.size)
    depthwise = per_group == 1 and groups > 1
    if depthwise:
        kernel = stored(image.reshape(outputs, *window.size).transpose(1, 2, 0))
    else:
        kernel = stored(image.transpose(0, 2, 3, 1))
    change = requantized(op)
    terms = per_group * math.prod(window.size)
    bias = _bias(op, facts, kernel, terms, change.given, change.made)
    movement = Movement(window.pads, window.strides, window.dilations, groups)
    operator = convolution_s8(
        kernel, bias, movement, change, depthwise=depthwise, session=builder.session
    )
    perm = CHANNELS_LAST[len(weight.shape)]
    given, output = builder.at(op.required(0), perm), builder.new(op.output)
    name = "depthwise convolution int8" if depthwise else "convolution int8"
    builder.emit(Convolve(given, output, operator, window, outputs, name), op.output, perm)


@lowers("deconv-s8", check=lambda op, facts: None)
@or_floats
def _deconv(op: Op, builder: Builder) -> None:
    facts = builder.facts
    weight = facts.weight(op.required(1))
    window = _window(op, facts, weight.shape[2:])
    groups = op.get("group", 1)
    inputs, per_group = weight.shape[:2]
    outputs = per_group * groups
    grouped = weight.reshape(groups, inputs // groups, per_group, *window.size)
    moved = grouped.transpose(0, 2, 3, 4, 1)
    kernel = stored(moved.reshape(outputs, *window.size, inputs // groups))
    change = requantized(op)
    terms = (inputs // groups) * math.prod(window.size)
    bias = _bias(op, facts, kernel, terms, change.given, change.made)
    movement = Movement(window.pads, window.strides, window.dilations, groups)
    rank = len(weight.shape)
    extra = list(op.get("output_padding", [0] * (rank - 2)))
    adjustments = [0, *extra] if len(extra) == 1 else extra
    operator = DeconvolutionS8(kernel, bias, movement, change, adjustments, session=builder.session)
    perm = CHANNELS_LAST[rank]
    given, output = builder.at(op.required(0), perm), builder.new(op.output)
    step = Convolve(given, output, operator, window, outputs, "deconvolution int8")
    builder.emit(step, op.output, perm)
