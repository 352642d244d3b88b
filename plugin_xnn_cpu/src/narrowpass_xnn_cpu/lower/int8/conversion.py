"""Between floats and bytes."""

from __future__ import annotations

from collections.abc import Sequence

from narrowpass_xnn_cpu.lower.builder import Builder
from narrowpass_xnn_cpu.lower.facts import Facts
from narrowpass_xnn_cpu.lower.int8.values import BYTES, quantization_of
from narrowpass_xnn_cpu.lower.op import Op, lowers, needs, needs_floats
from narrowpass_xnn_cpu.native import kernels
from narrowpass_xnn_cpu.native.operators import Quantization
from narrowpass_xnn_cpu.plan.step import Run, Shape, Sizing, Slot, Step, elements


class Quantize(Step):
    """Floats to bytes, as QuantizeLinear says; NaN becomes the least byte."""

    kernel = "quantize"

    def __init__(self, given: Slot, output: Slot, quantization: Quantization) -> None:
        super().__init__([given], output)
        self._quantization = quantization

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Step.size`."""
        (shape,) = shapes
        if not elements(shape):
            return Run(shape)
        scale, zero_point = self._quantization.scale, self._quantization.zero_point
        params = kernels.quantize(elements(shape), scale, zero_point)
        return Run(shape, "NP_QUANTIZE", params=params)


class Dequantize(Step):
    """Bytes to floats, as DequantizeLinear says."""

    kernel = "dequantize"

    def __init__(self, given: Slot, output: Slot, quantization: Quantization) -> None:
        super().__init__([given], output)
        self._quantization = quantization

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Step.size`."""
        (shape,) = shapes
        if not elements(shape):
            return Run(shape)
        scale, zero_point = self._quantization.scale, self._quantization.zero_point
        params = kernels.dequantize(elements(shape), scale, zero_point)
        return Run(shape, "NP_DEQUANTIZE", params=params)


def _check(op: Op, facts: Facts) -> str | None:
    if op.kind == "QuantizeLinear":
        reason = needs_floats(op, facts)
    else:
        reason = needs(op.required(0), facts, *BYTES)
    if reason:
        return reason
    if quantization_of(op.nodes[0], facts) is None:
        return "its scale or zero point is computed, of several channels or blocks, or not float32"
    return None


@lowers("QuantizeLinear", check=_check)
def _quantize(op: Op, builder: Builder) -> None:
    quantization = quantization_of(op.nodes[0], builder.facts)
    if quantization is None:
        raise ValueError("a QuantizeLinear was checked, and has no quantization")
    given = op.required(0)
    perm = builder.layout(given)
    step = Quantize(builder.at(given, perm), builder.new(op.output), quantization)
    builder.emit(step, op.output, perm)


@lowers("DequantizeLinear", check=_check)
def _dequantize_node(op: Op, builder: Builder) -> None:
    quantization = quantization_of(op.nodes[0], builder.facts)
    if quantization is None:
        raise ValueError("a DequantizeLinear was checked, and has no quantization")
    dequantize(op, builder, quantization)


@lowers("dequantize", check=lambda op, facts: None)
def _dequantize(op: Op, builder: Builder) -> None:
    dequantize(op, builder, op.attributes["quantization"])


def dequantize(op: Op, builder: Builder, quantization: Quantization) -> None:
    """Add what makes floats of bytes, in whatever order of axes these have."""
    given = op.required(0)
    perm = builder.layout(given)
    step = Dequantize(builder.at(given, perm), builder.new(op.output), quantization)
    builder.emit(step, op.output, perm)
