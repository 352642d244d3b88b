"""Checks quantized operators against the quantization spec of a backend."""

from __future__ import annotations

import numpy as np

from narrowpass.runtime.quantization import IntegerRange, Parameters, QuantizationSpec, Violation
from narrowpass_int8_sym.repair.operators import Operator
from narrowpass_int8_sym.repair.quantization import RANGES, Quantization, is_node
from narrowpass_ir.constants import constant_tensor

_ACCUMULATOR = 2.0**31
"""The range of int32 accumulators."""


def problems(operator: Operator, spec: QuantizationSpec) -> list[Violation | str]:
    """Return the limits that an operator breaks; as a text where there is no number to compare."""
    found: list[Violation | str] = []
    fixed = spec.output(operator.op_type)
    for how in operator.operands:
        found += _activation("operand", how, spec.activations)
    for how in operator.results:
        as_fixed = fixed is not None and how.dtype.name.lower() == fixed.dtype
        found += [] if as_fixed else _activation("result", how, spec.activations)
    found += _weight(operator, spec)
    if any(how.axis is not None for how in (*operator.operands, *operator.results)):
        return found
    inputs = [how.parameters for how in operator.operands]
    weights = None if operator.weight is None else operator.weight.scale
    if spec.bound(operator.op_type) is not None and len(inputs) == 2 and operator.computes_both:
        weights = np.asarray(inputs[1].scale, np.float32)
    slope = operator.node.attributes.get_float("alpha", 0.01)
    slope = slope if operator.op_type == "LeakyRelu" else 1.0
    if not operator.results:
        found += spec.violations(operator.op_type, inputs, None, weights, slope)
    for how in operator.results:
        output = how.parameters
        if fixed is not None and how.dtype.name.lower() == fixed.dtype:
            output = Parameters(float(how.scale), int(how.zero_point))
        found += spec.violations(operator.op_type, inputs, output, weights, slope)
    return list(dict.fromkeys(found))


def conversion_problems(
    before: Quantization, after: Quantization, spec: QuantizationSpec
) -> list[Violation | str]:
    """Return the limits that a conversion between two quantizations breaks."""
    found = [
        *_activation("operand", before, spec.activations),
        *_activation("result", after, spec.activations),
    ]
    if before.axis is not None or after.axis is not None:
        return found
    return [*found, *spec.violations("QuantizeLinear", [before.parameters], after.parameters)]


def _activation(which: str, how: Quantization, allowed: IntegerRange) -> list[Violation | str]:
    if how.axis is not None:
        return [f"its {which} has a scale for each channel"]
    if how.dtype.name.lower() != allowed.dtype:
        return [f"its {which} is {how.dtype.name.lower()}, not {allowed.dtype}"]
    low, high = RANGES[how.dtype]
    if low < allowed.low:
        return [Violation(f"least integer of the {which}", low, allowed.low)]
    if high > allowed.high:
        return [Violation(f"largest integer of the {which}", high, allowed.high)]
    return []


def _weight(operator: Operator, spec: QuantizationSpec) -> list[Violation | str]:
    allowed = spec.weights
    how, tensor = operator.weight, constant_tensor(operator.integers)
    if how is None or tensor is None:
        return []
    found: list[Violation | str] = []
    integers = np.asarray(tensor.numpy())
    zeros = np.ravel(how.signed.zero_point)
    worst = int(zeros[np.abs(zeros).argmax()])
    middle = int(np.ravel(how.zero_point - how.signed.zero_point)[0])
    least, largest = (
        int(integers.min(initial=middle)) - middle,
        int(integers.max(initial=middle)) - middle,
    )
    if worst and not spec.weight_zero_points:
        found.append(Violation("zero point of the weight", worst, 0))
    elif least < allowed.low:
        found.append(Violation("integer of the weight", least, allowed.low))
    elif largest > allowed.high:
        found.append(Violation("integer of the weight", largest, allowed.high))
    elif how.dtype.name.lower() != allowed.dtype:
        found.append(f"its weight is {how.dtype.name.lower()}, not {allowed.dtype}")
    right = operator.channel_axis(integers.ndim)
    if how.axis is not None and how.axis != right:
        found.append(Violation("axis of the weight's scales", how.axis, right))
    return [*found, *_headroom(operator, integers.shape, 255 if worst else 127)]


def _headroom(operator: Operator, dims: tuple[int, ...], largest: int) -> list[Violation | str]:
    """Return a violation if accumulators could overflow int32, the largest bias included.

    Args:
        operator: a matmul or convolution.
        dims: the shape of its weight.
        largest: the largest magnitude of an integer of the weight minus its zero point.
    """
    node = operator.node
    bias = 0.0
    value = node.inputs[2] if len(node.inputs) > 2 else None
    producer = None if value is None else value.producer()
    if producer is not None and is_node(producer, "DequantizeLinear"):
        tensor = constant_tensor(producer.inputs[0])
        if tensor is not None:
            bias = float(np.abs(np.asarray(tensor.numpy(), np.float64)).max(initial=0))
    total = bias + operator.reduction_length(dims) * largest * 128
    if total < _ACCUMULATOR:
        return []
    return [Violation("largest accumulator", total, _ACCUMULATOR)]
