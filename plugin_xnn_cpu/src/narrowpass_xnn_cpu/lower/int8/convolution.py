"""Convolutions of int8 activations and weights, with requantization."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from narrowpass.errors import BackendError
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.plan.step import Run, Shape, Sizing
from narrowpass_planning.weights.weight import Quantized, Weight
from narrowpass_xnn_cpu.lower.builder import Builder
from narrowpass_xnn_cpu.lower.conv.conv2d import (
    CHANNELS_LAST,
    KernelWindow,
    output_shape,
    reshape_packed,
)
from narrowpass_xnn_cpu.lower.int8.constants import (
    quantize_bias,
    quantized_limits,
    with_float_fallback,
)
from narrowpass_xnn_cpu.lower.op import Op
from narrowpass_xnn_cpu.lower.rule import Rule, rules
from narrowpass_xnn_cpu.lowered.op import Computation, LoweredOp, PackedStep
from narrowpass_xnn_cpu.lowered.record import record
from narrowpass_xnn_cpu.native import target
from narrowpass_xnn_cpu.native.problems.convolution import ConvAttributes, Convolution, Offsets
from narrowpass_xnn_cpu.native.problems.quantization import (
    AddS8,
    Quantization,
    Requantized,
    UnfitError,
)
from narrowpass_xnn_cpu.native.table import create_convolution, select
from narrowpass_xnn_cpu.native.table.convolution import adds_residual_int8, stores_offsets
from narrowpass_xnn_cpu.native.table.row import Selection
from narrowpass_xnn_cpu.native.target import Target
from narrowpass_xnn_cpu.native.weights_cache import Session


def requantized(op: Op) -> Requantized:
    """Return the requantization from the input to the output of an operation."""
    (source,), target = op.attributes["input_quantizations"], op.attributes["output_quantization"]
    return Requantized(source, target, quantized_limits(op.limits, target))


def stored(weight: Weight) -> Quantized:
    """Return the int8 elements and the scales of a weight after its layout was changed.

    Raises:
        UnfitError: the scales are not per output channel in the new layout.
    """
    if weight.quantized is None:
        raise UnfitError("its scales are not of its outputs")
    return weight.quantized


def _kernel_window(op: Op, facts: Facts, sizes: tuple[int, ...]) -> KernelWindow:
    dims = facts.dims(op.input(0))
    return KernelWindow.of(op, sizes, None if dims is None else dims[2:])


@record
class Conv2dInt8(Computation):
    """A convolution of int8, plain or transposed, over [N, H, W, C] or [N, W, C].

    Operands are the images, and a second tensor of the result's shape where there is `added`.

    Attributes:
        weight: int8 [O, KH, KW, C / groups], or [KH, KW, O] for depthwise, with scales.
        bias: int32 [O], or None.
        kernel_window: kernel size, pads, strides and dilations.
        attributes: pads, strides, dilations and groups of the kernel.
        requantized: from the operand to the result.
        outputs: channels of the result.
        algorithm: ``direct``, ``depthwise`` or ``transposed``.
        adjustments: output padding of a transposed convolution.
        added: scales and zero points of the second tensor; None for none.
        in_offset: whether the images are stored with an offset of +128.
        out_offset: the same of the result.
        other_offset: the same of the second tensor.
    """

    mnemonic = "convolution_int8"
    weight: Quantized
    bias: Weight | None
    kernel_window: KernelWindow
    attributes: ConvAttributes
    requantized: Requantized
    outputs: int
    algorithm: str = "direct"
    adjustments: tuple[int, ...] = ()
    added: AddS8 | None = None
    in_offset: bool = False
    out_offset: bool = False
    other_offset: bool = False

    @functools.cached_property
    def problem(self) -> Convolution:
        """The problem that the kernel table selects a kernel for."""
        return Convolution(
            self.weight,
            self.bias,
            self.attributes,
            self.requantized,
            depthwise=self.algorithm == "depthwise",
            adjustments=self.adjustments if self.algorithm == "transposed" else None,
            added=self.added,
            offsets=Offsets(self.in_offset, self.out_offset, self.other_offset),
        )

    @property
    def can_add(self) -> bool:
        """Whether it can add a second tensor of the result's shape."""
        plain = self.added is None and self.algorithm == "direct"
        return plain and adds_residual_int8(self.weight, self.attributes, target.current())

    @property
    def supports_offset(self) -> bool:
        """Whether it can read and write bytes with an offset of +128."""
        if self.algorithm == "transposed":
            return False
        depthwise = self.algorithm == "depthwise"
        return stores_offsets(self.weight, self.attributes, target.current(), depthwise=depthwise)

    def in_place(self) -> Sequence[int]:
        """See `Computation.in_place`: each element is read before it is overwritten."""
        return () if self.added is None else (1,)

    def kernel_name(self, op: LoweredOp, packed: Any) -> str:
        """See `Computation.kernel_name`."""
        names = {"depthwise": "depthwise convolution", "transposed": "deconvolution"}
        name = names.get(self.algorithm, "convolution")
        return f"{packed.prefix}{name} int8{'' if self.added is None else ' and add'}"

    def select(self, op: LoweredOp, target: Target) -> Selection:
        """See `Computation.select`."""
        return select(self.problem, target).selection

    def pack(self, op: LoweredOp, session: Session | None) -> Any:
        """See `Computation.pack`."""
        return create_convolution(self.problem, session)

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        operator = step.packed
        result, call = output_shape(operator, self.kernel_window, self.outputs, shapes[0], sizing)
        if len(shapes) > 1 and shapes[1] != result:
            raise BackendError(f"{list(shapes[1])} and {list(result)} were declared to be equal")
        reshape_packed(operator, shapes[0], sizing)
        return Run(result, call, operator, operator.params)


def _bias(
    op: Op,
    facts: Facts,
    kernel: Quantized,
    terms: int,
    source: Quantization,
    target: Quantization,
) -> Weight | None:
    value = op.input(2)
    bias = None if value is None else facts.weight(value)
    return quantize_bias(bias, kernel, source, target, terms)


@with_float_fallback
def _conv(op: Op, builder: Builder) -> None:
    facts = builder.facts
    weight = facts.weight(op.required(1))
    kernel_window = _kernel_window(op, facts, weight.shape[2:])
    outputs, per_group = weight.shape[:2]
    groups = op.get("group", 1)
    image = weight.reshape(outputs, per_group, *kernel_window.size)
    depthwise = per_group == 1 and groups > 1
    if depthwise:
        kernel = stored(image.reshape(outputs, *kernel_window.size).transpose(1, 2, 0))
    else:
        kernel = stored(image.transpose(0, 2, 3, 1))
    change = requantized(op)
    terms = per_group * math.prod(kernel_window.size)
    bias = _bias(op, facts, kernel, terms, change.input, change.output)
    attributes = ConvAttributes(
        kernel_window.pads, kernel_window.strides, kernel_window.dilations, groups
    )
    algorithm = "depthwise" if depthwise else "direct"
    convolution = Conv2dInt8(kernel, bias, kernel_window, attributes, change, outputs, algorithm)
    perm = CHANNELS_LAST[len(weight.shape)]
    builder.compute(convolution, [builder.slot_of(op.required(0), perm)], op.output, perm)


@with_float_fallback
def _deconv(op: Op, builder: Builder) -> None:
    facts = builder.facts
    weight = facts.weight(op.required(1))
    kernel_window = _kernel_window(op, facts, weight.shape[2:])
    groups = op.get("group", 1)
    inputs, per_group = weight.shape[:2]
    outputs = per_group * groups
    grouped = weight.reshape(groups, inputs // groups, per_group, *kernel_window.size)
    permuted = grouped.transpose(0, 2, 3, 4, 1)
    kernel = stored(permuted.reshape(outputs, *kernel_window.size, inputs // groups))
    change = requantized(op)
    terms = (inputs // groups) * math.prod(kernel_window.size)
    bias = _bias(op, facts, kernel, terms, change.input, change.output)
    attributes = ConvAttributes(
        kernel_window.pads, kernel_window.strides, kernel_window.dilations, groups
    )
    rank = len(weight.shape)
    extra = list(op.get("output_padding", [0] * (rank - 2)))
    adjustments = (0, *extra) if len(extra) == 1 else tuple(extra)
    convolution = Conv2dInt8(
        kernel, bias, kernel_window, attributes, change, outputs, "transposed", adjustments
    )
    perm = CHANNELS_LAST[rank]
    builder.compute(convolution, [builder.slot_of(op.required(0), perm)], op.output, perm)


RULES: tuple[Rule, ...] = (
    *rules("conv-s8", lower=_conv, check=lambda op, facts: None),
    *rules("deconv-s8", lower=_deconv, check=lambda op, facts: None),
)
