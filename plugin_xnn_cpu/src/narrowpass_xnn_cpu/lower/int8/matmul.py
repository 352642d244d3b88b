"""Matmuls of int8 rows with a constant int8 matrix."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from narrowpass.errors import BackendError
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.plan.step import Run, Shape, Sizing, elements
from narrowpass_planning.weights.weight import Quantized, Weight
from narrowpass_xnn_cpu.lower.builder import Builder, identity
from narrowpass_xnn_cpu.lower.int8.constants import quantize_bias, with_float_fallback
from narrowpass_xnn_cpu.lower.int8.convolution import requantized, stored
from narrowpass_xnn_cpu.lower.matmul.constant import as_bias
from narrowpass_xnn_cpu.lower.op import Op
from narrowpass_xnn_cpu.lower.rule import Rule, rules
from narrowpass_xnn_cpu.lowered.op import Computation, LoweredOp, PackedStep
from narrowpass_xnn_cpu.lowered.record import record
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue
from narrowpass_xnn_cpu.native.problems.matmul import Matmul
from narrowpass_xnn_cpu.native.problems.quantization import Quantization, Requantized, UnfitError
from narrowpass_xnn_cpu.native.table import AnyMatmul, create_matmul, select
from narrowpass_xnn_cpu.native.table.row import Selection
from narrowpass_xnn_cpu.native.target import Target
from narrowpass_xnn_cpu.native.weights_cache import Session


@record
class MatMulInt8(Computation):
    """A matmul of int8 rows, of any number of leading axes, and a constant int8 matrix.

    Attributes:
        weight: [O, C], or [C, O] where `transposed`, with scales of the outputs.
        bias: int32 [O], or float32 where the result is float32; None for none.
        source: quantization of the rows.
        requantized: requantization to the result; None for a float32 result.
        limits: the clipping range of a float32 result.
        transposed: whether the matrix has its input channels first.
    """

    mnemonic = "matmul_int8"
    weight: Quantized
    bias: Weight | None
    source: Quantization
    requantized: Requantized | None
    limits: tuple[float, float]
    transposed: bool

    @functools.cached_property
    def problem(self) -> Matmul:
        """The problem that the kernel table selects a kernel for."""
        result = self.requantized or Epilogue(limits=self.limits)
        return Matmul(self.weight, self.bias, result, self.transposed, self.source)

    def kernel_name(self, op: LoweredOp, packed: Any) -> str:
        """See `Computation.kernel_name`."""
        return f"{packed.prefix}fully connected int8"

    def select(self, op: LoweredOp, target: Target) -> Selection:
        """See `Computation.select`."""
        return select(self.problem, target).selection

    def pack(self, op: LoweredOp, session: Session | None) -> AnyMatmul:
        """See `Computation.pack`."""
        return create_matmul(self.problem, session)

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        (shape,) = shapes
        operator = step.packed
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


@with_float_fallback
def _matmul(op: Op, builder: Builder) -> None:
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
    transposed = matrix.integers.permuted_from is None
    if not transposed:
        matrix = matrix.transpose((1, 0))
    (source,), target = op.attributes["input_quantizations"], op.attributes["output_quantization"]
    if target is None:
        quantize_bias(None, matrix, source, source, inputs)
    else:
        bias = quantize_bias(bias, matrix, source, target, inputs)
    change = None if target is None else requantized(op)
    rows = op.required(0)
    perm = builder.layout(rows)
    if perm[-1] != len(perm) - 1:
        perm = identity(len(perm))
    matmul = MatMulInt8(matrix, bias, source, change, op.limits, transposed)
    builder.compute(matmul, [builder.slot_of(rows, perm)], op.output, perm)


RULES: tuple[Rule, ...] = (*rules("matmul-s8", lower=_matmul, check=_check),)
