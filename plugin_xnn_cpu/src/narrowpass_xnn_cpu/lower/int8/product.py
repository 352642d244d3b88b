"""Products of bytes with a constant matrix of bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from narrowpass.errors import BackendError
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.plan.step import Run, Shape, Sizing, Slot, Step, elements
from narrowpass_xnn_cpu.lower.builder import Builder, identity
from narrowpass_xnn_cpu.lower.int8.constants import bias_in_steps
from narrowpass_xnn_cpu.lower.int8.convolution import requantized, stored
from narrowpass_xnn_cpu.lower.int8.instead import or_floats
from narrowpass_xnn_cpu.lower.linear import as_bias
from narrowpass_xnn_cpu.lower.op import Op, lowers
from narrowpass_xnn_cpu.native.operators import UnfitError
from narrowpass_xnn_cpu.native.operators.int8_choice import (
    AnyFullyConnectedS8,
    AnyFullyConnectedS8F32,
    fully_connected_s8,
    fully_connected_s8_f32,
)

Product = AnyFullyConnectedS8 | AnyFullyConnectedS8F32


class LinearBytes(Step):
    """Rows of bytes, of any number of leading axes, times a constant matrix."""

    def __init__(self, given: Slot, output: Slot, operator: Product) -> None:
        super().__init__([given], output)
        self.kernel = f"{operator.maker}fully connected int8"
        self._operator = operator

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Step.size`."""
        (shape,) = shapes
        operator = self._operator
        if shape[-1] != operator.channels:
            raise BackendError(f"rows of {shape[-1]} do not fit a matrix for {operator.channels}")
        result = (*shape[:-1], operator.outputs)
        rows = elements(shape[:-1])
        if not rows:
            return Run(result)
        operator.reshape(rows, sizing.pool)
        return Run(result, operator.call, operator, operator.params)


def _check(op: Op, facts: Facts) -> str | None:
    if op.attributes["operator"] == "Gemm" and op.get("transA", 0):
        return "its rows are transposed"
    if (facts.rank(op.input(1)) or 0) != 2 or not facts.rank(op.input(0)):
        return "its operands are no rows and no matrix"
    bias = op.input(2)
    if bias is not None and not facts.is_constant(bias):
        return "its bias is computed"
    return None


@lowers("product-s8", check=_check)
@or_floats
def _product(op: Op, builder: Builder) -> None:
    facts = builder.facts
    gemm = op.attributes["operator"] == "Gemm"
    weight = facts.stored(op.required(1))
    if gemm and op.get("transB", 0):
        weight = weight.transpose(1, 0)
    weight = weight.times(np.float32(op.get("alpha", 1.0) if gemm else 1.0))
    inputs, outputs = weight.shape
    beta = np.float32(op.get("beta", 1.0) if gemm else 1.0)
    bias = as_bias(facts, op.input(2), outputs, beta)
    if op.input(2) is not None and bias is None:
        raise UnfitError("its bias is not one number for each output")
    matrix = stored(weight)
    transposed = matrix.integers.moved is None
    if not transposed:
        matrix = matrix.transpose((1, 0))
    (given,), made = op.attributes["given"], op.attributes["made"]
    operator: Product
    if made is None:
        bias_in_steps(None, matrix, given, given, inputs)
        operator = fully_connected_s8_f32(
            matrix, bias, given, op.limits, transposed=transposed, session=builder.session
        )
    else:
        steps = bias_in_steps(bias, matrix, given, made, inputs)
        operator = fully_connected_s8(
            matrix, steps, requantized(op), transposed=transposed, session=builder.session
        )
    rows = op.required(0)
    perm = builder.layout(rows)
    if perm[-1] != len(perm) - 1:
        perm = identity(len(perm))
    step = LinearBytes(builder.at(rows, perm), builder.new(op.output), operator)
    builder.emit(step, op.output, perm)
