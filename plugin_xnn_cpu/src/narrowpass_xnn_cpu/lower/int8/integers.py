"""Dynamic quantization: DynamicQuantizeLinear, MatMulInteger and ConvInteger.

A MatMulInteger of two activations, as in attention, is computed as a float32 matmul: both are
dequantized with a scale of 1, and int8 minus its zero point is exact in float32. Accumulators of up
to `EXACT_TERMS` terms are exact too. Longer ones are rounded, which is allowed only where a Cast to
float32 follows.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass.errors import AttributesError, BackendError
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.host.quantization import dequantized
from narrowpass_planning.plan.step import Run, Shape, Sizing, Slot, elements
from narrowpass_planning.weights.weight import Quantized, Weight, digest
from narrowpass_xnn_cpu.lower.builder import Builder, identity
from narrowpass_xnn_cpu.lower.conv.conv2d import (
    CHANNELS_LAST,
    KernelWindow,
    output_shape,
    reshape_packed,
)
from narrowpass_xnn_cpu.lower.conv.convolution import lower_conv
from narrowpass_xnn_cpu.lower.elementwise.typed import Cast, emit_typed
from narrowpass_xnn_cpu.lower.int8.values import INT8_TYPES
from narrowpass_xnn_cpu.lower.matmul import constant as linear
from narrowpass_xnn_cpu.lower.op import Op, check_dtype, check_floats
from narrowpass_xnn_cpu.lower.rule import Rule, rules
from narrowpass_xnn_cpu.lowered.op import Computation, LoweredOp, PackedStep
from narrowpass_xnn_cpu.lowered.record import record
from narrowpass_xnn_cpu.native import kernels
from narrowpass_xnn_cpu.native.problems.convolution import (
    ConvAttributes,
    Convolution,
    DynamicScales,
)
from narrowpass_xnn_cpu.native.problems.matmul import Matmul
from narrowpass_xnn_cpu.native.problems.quantization import MAX_TERMS_WITH_ZERO_POINTS
from narrowpass_xnn_cpu.native.table import (
    AnyConvolution,
    AnyMatmul,
    create_convolution,
    create_matmul,
    select,
)
from narrowpass_xnn_cpu.native.table.row import Selection
from narrowpass_xnn_cpu.native.target import Target
from narrowpass_xnn_cpu.native.weights_cache import Session


@record
class DynamicRange(Computation):
    """Scale and zero point from the range of a tensor: a float32 scale, then an int8 zero point."""

    mnemonic = "dynamic_range"
    kernel = "range"

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        params, workspace = kernels.dynamic_range(elements(shapes[0]), sizing.pool.threads)
        return Run((2,), "NP_DYNAMIC_RANGE", params=params, workspace=workspace)


@record
class ScaleOfRange(Computation):
    """A view of the scale or the zero point of a `DynamicRange`.

    Attributes:
        offset: of the view, in bytes.
    """

    mnemonic = "of_range"
    kernel = "view"
    offset: int

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        return Run((), view=self.offset)


@record
class DynamicQuantize(Computation):
    """float32 to int8 with a scale and a zero point that are the second and third operand."""

    mnemonic = "dynamic_quantize"
    kernel = "quantize"

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        shape = shapes[0]
        params, _ = kernels.dynamic_range(elements(shape), 1)
        return Run(shape, "NP_DYNAMIC_QUANTIZE" if elements(shape) else "", params=params)


@record
class DynamicDequantize(Computation):
    """int8 to float32 with a scale and a zero point that are the second and third operand."""

    mnemonic = "dynamic_dequantize"
    kernel = "dequantize"

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        shape = shapes[0]
        _check_single(shapes[1:])
        params, _ = kernels.dynamic_range(elements(shape), 1)
        return Run(shape, "NP_DYNAMIC_DEQUANTIZE" if elements(shape) else "", params=params)


def _dynamic_quantize(op: Op, builder: Builder) -> None:
    given = op.required(0)
    perm = builder.layout(given)
    slot = builder.slot_of(given, perm)
    both = Slot(f"{slot.name} (range)", np.dtype(np.float32))
    builder.emit(DynamicRange(), [slot], both)
    parts = []
    for value, dtype, offset in ((op.outputs[1], np.float32, 0), (op.outputs[2], np.int8, 4)):
        part = Slot(value.name or "", np.dtype(dtype))
        parts.append(builder.emit(ScaleOfRange(offset), [both], part, value, ()))
    builder.compute(DynamicQuantize(), [slot, *parts], op.output, perm)


@record
class MatMulInteger(Computation):
    """A matmul of int8 rows and a constant int8 matrix, with scales known at run time.

    Operands are the rows, of any number of leading axes, and a scale and a zero point of one
    element each, where they are computed.

    Attributes:
        weight: [O, C], scales of axis 0.
        bias: float32 [O], or None.
        raw: whether the int32 accumulators are the result.
        zero_point: of the rows, as int8, where it is constant and no operand.
    """

    mnemonic = "matmul_integer"
    kernel = "fully connected int8"
    weight: Quantized
    bias: Weight | None
    raw: bool
    zero_point: int

    @functools.cached_property
    def problem(self) -> Matmul:
        """The problem that the kernel table selects a kernel for."""
        dynamic = DynamicScales(raw=self.raw, zero_point=self.zero_point)
        return Matmul(self.weight, self.bias, dynamic)

    def select(self, op: LoweredOp, target: Target) -> Selection:
        """See `Computation.select`."""
        return select(self.problem, target).selection

    def pack(self, op: LoweredOp, session: Session | None) -> AnyMatmul:
        """See `Computation.pack`."""
        return create_matmul(self.problem, session)

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        shape, operator = shapes[0], step.packed
        _check_single(shapes[1:])
        if not shape or shape[-1] != operator.channels:
            raise BackendError(f"rows of {list(shape)} do not fit a matrix for {operator.channels}")
        result = (*shape[:-1], operator.outputs)
        rows = elements(shape[:-1])
        if not rows:
            return Run(result)
        params = operator.reshape(rows, sizing.pool)
        return Run(result, operator.call, operator, params)


@record
class ConvolutionInteger(Computation):
    """A convolution of int8 images, 2-D or 1-D, with scales known at run time; see `MatMulInteger`.

    Attributes:
        weight: [O, KH, KW, C / groups], scales of axis 0.
        bias: float32 [O], or None.
        kernel_window: kernel size, pads, strides and dilations.
        attributes: pads, strides, dilations and groups of the kernel.
        raw: whether the int32 accumulators are the result.
        zero_point: of the images, as int8, where it is constant and no operand.
    """

    mnemonic = "convolution_integer"
    kernel = "convolution int8"
    weight: Quantized
    bias: Weight | None
    kernel_window: KernelWindow
    attributes: ConvAttributes
    raw: bool
    zero_point: int

    @functools.cached_property
    def problem(self) -> Convolution:
        """The problem that the kernel table selects a kernel for."""
        dynamic = DynamicScales(raw=self.raw, zero_point=self.zero_point)
        return Convolution(self.weight, self.bias, self.attributes, dynamic)

    def select(self, op: LoweredOp, target: Target) -> Selection:
        """See `Computation.select`."""
        return select(self.problem, target).selection

    def pack(self, op: LoweredOp, session: Session | None) -> AnyConvolution:
        """See `Computation.pack`."""
        return create_convolution(self.problem, session)

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        operator = step.packed
        _check_single(shapes[1:])
        result, call = output_shape(
            operator, self.kernel_window, operator.outputs, shapes[0], sizing
        )
        reshape_packed(operator, shapes[0], sizing)
        return Run(result, call, operator, operator.params)


def _check_single(shapes: Sequence[Shape]) -> None:
    for shape in shapes:
        if elements(shape) != 1:
            raise BackendError(f"a scale or zero point of {list(shape)} is not one number")


def _check_constant(op: Op, facts: Facts) -> str | None:
    """Return why an operation with a constant weight cannot be lowered; None if it can."""
    reason = check_dtype(op.required(0), facts, *INT8_TYPES)
    weight = op.required(1)
    if reason:
        return reason
    if not facts.is_constant(weight) or facts.dtype(weight) not in INT8_TYPES:
        return "its weight is computed"
    rank, dims = facts.rank(weight), facts.dims(weight) or ()
    if 0 in dims:
        return "its weight is empty"
    if op.kind in ("MatMulInteger", "matmul-integer"):
        if rank != 2 or not facts.rank(op.input(0)):
            return "its operands are no rows and no matrix"
        count, terms = dims[1], dims[0]
    else:
        if rank not in CHANNELS_LAST:
            return f"it has {(rank or 2) - 2} spatial dimensions; the kernel is for one or two"
        count = dims[0]
        terms = math.prod(size for size in dims[1:] if isinstance(size, int))
        try:
            _kernel_window(op, facts, facts.weight(weight).shape)
        except AttributesError as error:
            return str(error)
    if isinstance(terms, int) and terms > MAX_TERMS_WITH_ZERO_POINTS:
        return f"int32 accumulators of {terms} terms may overflow"
    zero = op.input(3)
    if zero is not None and not facts.is_constant(zero):
        return "the zero point of its weight is computed"
    if zero is not None and facts.weight(zero).size not in (1, count):
        return "the zero points of its weight are not of its outputs"
    return _check_row_zero_point(op.input(2), facts)


def _kernel_window(op: Op, facts: Facts, shape: Sequence[int]) -> KernelWindow:
    dims = facts.dims(op.input(0))
    return KernelWindow.of(op, shape[2:], None if dims is None else dims[2:])


def _check_row_zero_point(zero: ir.Value | None, facts: Facts) -> str | None:
    if zero is None or facts.scalar(zero) is not None:
        return None
    if facts.dtype(zero) not in INT8_TYPES or facts.dims(zero) not in ((), (1,)):
        return "the zero point of its rows is not one number"
    return None


def _stored(op: Op, facts: Facts, scale: Weight) -> Quantized:
    """Return the weight as int8, with its zero points where it has them."""
    integers, zero = facts.stored(op.required(1)), op.input(3)
    zeros = None if zero is None else facts.stored(zero)
    if integers.dtype == np.uint8:
        unsigned = Weight.of(np.zeros(1, np.uint8), digest("zero of uint8"))
        integers, zeros = _signed(integers), _signed(unsigned if zeros is None else zeros)
    if zeros is not None:
        zeros = zeros.reshape(zeros.size)
    return Quantized(integers, scale, zeros, 0)


def _signed(x: Weight) -> Weight:
    return x.then("less 128", lambda a: (a ^ np.uint8(128)).view(np.int8), dtype=np.dtype(np.int8))


def _scale(op: Op, facts: Facts) -> Weight:
    value = op.input(5)
    if value is None:
        return Weight.of(np.ones(1, np.float32), digest("one"))
    weight = facts.stored(value)
    return weight.reshape(weight.size)


def _bias(op: Op, facts: Facts, outputs: int) -> Weight | None:
    value = op.input(6)
    if value is None:
        return None
    weight = facts.stored(value)
    flat = weight.reshape(weight.size)
    if flat.size == outputs:
        return flat
    return flat.then(f"repeat {outputs}", lambda x: np.repeat(x, outputs), [outputs])


def _row_quantization(op: Op, builder: Builder) -> tuple[list[Slot], int]:
    """Return slots of the scale and zero point of the rows, and a constant zero point as int8."""
    facts, scale, zero = builder.facts, op.input(4), op.input(2)
    unsigned = facts.dtype(op.required(0)) == ir.DataType.UINT8
    constant = 0.0 if zero is None else facts.scalar(zero)
    if scale is None and constant is not None:
        return [], int(constant) - 128 * unsigned
    one = np.ones(1, np.float32)
    slots = [builder.constant_slot("one", one) if scale is None else builder.slot_of(scale)]
    if constant is None and zero is not None:
        return [*slots, builder.slot_of(zero)], 0
    return slots, int(constant or 0) - 128 * unsigned


def _matmul(op: Op, builder: Builder) -> None:
    """Emit a matmul with a constant int8 matrix and a dynamic quantization of the rows."""
    facts = builder.facts
    scale = _scale(op, facts)
    matrix = _stored(op, facts, scale)
    outputs = matrix.integers.shape[1]
    integers = matrix.integers.transpose(1, 0)
    transposed = Quantized(integers, matrix.scale, matrix.zero, 0)
    slots, zero = _row_quantization(op, builder)
    bias = _bias(op, facts, outputs)
    matmul = MatMulInteger(transposed, bias, op.kind == "MatMulInteger", zero)
    operands = [builder.slot_of(op.required(0)), *slots]
    builder.compute(matmul, operands, op.output, identity(builder.rank(op.output)))


def _depthwise(op: Op, builder: Builder) -> None:
    """Lower a depthwise convolution with a float32 result to a float32 one, which is faster.

    Integers and accumulators of few terms are exact in float32. Scales are applied to the operands,
    not to the accumulators.
    """
    facts, given = builder.facts, op.required(0)
    perm = CHANNELS_LAST[builder.rank(given)]
    slots, zero = _row_quantization(op, builder)
    if len(slots) < 2:
        one = np.ones(1, np.float32)
        slots = [*slots, builder.constant_slot("one", one)][:1]
        slots.append(builder.constant_slot("zero", np.array([zero], np.int8)))
    real = ir.Value(name=f"{given.name} (real)", shape=given.shape, type=_FLOAT)
    builder.compute(DynamicDequantize(), [builder.slot_of(given, perm), *slots], real, perm)
    stored, zeros = facts.stored(op.required(1)), op.input(3)
    zero_weight = None if zeros is None else facts.stored(zeros)
    scale = _scale(op, facts)

    def numbers(array: Any) -> Any:
        taken = None if zero_weight is None else zero_weight.array().reshape(-1)
        return dequantized(array, scale.array(), taken, 0)

    weight = ir.Value(name=f"{op.required(1).name} (real)", type=_FLOAT)
    weight.shape = ir.Shape(stored.shape)
    facts.derive(weight, stored.then("", numbers, dtype=np.dtype(np.float32)))
    inputs: list[ir.Value | None] = [real, weight]
    bias = _bias(op, facts, stored.shape[0])
    if bias is not None:
        added = ir.Value(name=f"{op.output.name} (bias)", shape=ir.Shape(bias.shape), type=_FLOAT)
        facts.derive(added, bias)
        inputs.append(added)
    conv = Op("Conv", inputs, op.outputs, op.attributes, op.version, op.nodes)
    lower_conv(conv, builder)


_FLOAT = ir.TensorType(ir.DataType.FLOAT)


def _convolution(op: Op, builder: Builder) -> None:
    facts = builder.facts
    if (
        op.kind == "conv-integer"
        and op.get("group", 1) > 1
        and facts.weight(op.required(1)).shape[1] == 1
    ):
        _depthwise(op, builder)
        return
    weight = _stored(op, facts, _scale(op, facts))
    shape = weight.integers.shape
    kernel_window = _kernel_window(op, facts, shape)
    outputs, per_group = shape[:2]
    image = weight.integers.reshape(outputs, per_group, *kernel_window.size).transpose(0, 2, 3, 1)
    kernel = Quantized(image, weight.scale, weight.zero, 0)
    slots, zero = _row_quantization(op, builder)
    attributes = ConvAttributes(
        kernel_window.pads, kernel_window.strides, kernel_window.dilations, op.get("group", 1)
    )
    bias = _bias(op, facts, outputs)
    convolution = ConvolutionInteger(
        kernel, bias, kernel_window, attributes, op.kind == "ConvInteger", zero
    )
    perm = CHANNELS_LAST[len(shape)]
    builder.compute(convolution, [builder.slot_of(op.required(0), perm), *slots], op.output, perm)


EXACT_TERMS = (1 << 24) // (255 * 255)
"""Terms of an accumulator up to which float32 is exact: 2^24 / 255^2 = 258."""


def _check_computed(op: Op, facts: Facts) -> str | None:
    if op.kind == "MatMulInteger" and facts.is_constant(op.required(1)):
        return _check_constant(op, facts)
    for index in (0, 1):
        reason = check_dtype(op.required(index), facts, *INT8_TYPES)
        if reason:
            return reason
        zero = op.input(index + 2)
        if zero is None or facts.scalar(zero) is not None:
            continue
        if facts.dtype(zero) not in INT8_TYPES or facts.dims(zero) not in ((), (1,)):
            return "a zero point of its operands is not one number"
    if op.kind == "MatMulInteger":
        terms = (facts.dims(op.input(0)) or (None,))[-1]
        if not isinstance(terms, int) or terms > EXACT_TERMS:
            return (
                f"float32 accumulators are not exact over {terms or 'an unknown number of'} terms"
            )
    return linear.check_matmul(_float_matmul(op, [_real(op, 0), _real(op, 1)], op.output), facts)


def _real(op: Op, index: int) -> ir.Value:
    """Return a new float32 value for a dequantized operand."""
    given = op.required(index)
    name = f"{given.name} (real for {op.output.name}, {index})"
    return ir.Value(name=name, shape=given.shape, type=_FLOAT)


def _float_matmul(op: Op, operands: list[ir.Value], output: ir.Value) -> Op:
    return Op("MatMul", list(operands), [output], {}, op.version, op.nodes)


def _dequantized(op: Op, index: int, builder: Builder) -> ir.Value:
    facts, given, zero = builder.facts, op.required(index), op.input(index + 2)
    perm = builder.layout(given)
    known = 0.0 if zero is None else facts.scalar(zero)
    if known is None and zero is not None:
        away = builder.slot_of(zero)
    else:
        unsigned = facts.dtype(given) == ir.DataType.UINT8
        away = builder.constant_slot("zero", np.array([int(known or 0) - 128 * unsigned], np.int8))
    one = builder.constant_slot("one", np.ones(1, np.float32))
    real = _real(op, index)
    builder.compute(DynamicDequantize(), [builder.slot_of(given, perm), one, away], real, perm)
    return real


def _computed_to_float32(op: Op, builder: Builder) -> None:
    operands = [_dequantized(op, index, builder) for index in (0, 1)]
    linear.lower_matmul(_float_matmul(op, operands, op.output), builder)


def _matmul_to_int32(op: Op, builder: Builder) -> None:
    if builder.facts.is_constant(op.required(1)):
        _matmul(op, builder)
        return
    operands = [_dequantized(op, index, builder) for index in (0, 1)]
    name, shape = f"{op.output.name} (real)", op.output.shape
    exact = ir.Value(name=name, shape=shape, type=_FLOAT)
    linear.lower_matmul(_float_matmul(op, operands, exact), builder)
    perm = builder.layout(exact)
    emit_typed(builder, Cast(), [builder.slot_of(exact, perm)], op.output, perm)


RULES: tuple[Rule, ...] = (
    *rules("DynamicQuantizeLinear", lower=_dynamic_quantize, check=check_floats),
    *rules("matmul-integer", lower=_matmul, check=_check_constant),
    *rules("ConvInteger", "conv-integer", lower=_convolution, check=_check_constant),
    *rules("computed-integers", lower=_computed_to_float32, check=_check_computed),
    *rules("MatMulInteger", lower=_matmul_to_int32, check=_check_computed),
)
