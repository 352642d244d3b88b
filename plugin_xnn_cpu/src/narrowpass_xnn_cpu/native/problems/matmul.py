"""Descriptors of matmuls with a constant matrix."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from narrowpass.errors import BackendError
from narrowpass_planning.weights.weight import Blocks, Quantized, Weight
from narrowpass_xnn_cpu.native.problems.bounds import Shape, checked_shape
from narrowpass_xnn_cpu.native.problems.convolution import (
    ConvAttributes,
    ConvGeometry,
    Convolution,
    DynamicScales,
)
from narrowpass_xnn_cpu.native.problems.epilogue import NO_EPILOGUE, Epilogue
from narrowpass_xnn_cpu.native.problems.quantization import Quantization, Requantized


@dataclass(frozen=True)
class PerToken:
    """Dynamic per-token quantization of float32 rows: by each row's range, which includes 0.

    A row with an element that is NaN, infinite, or of 2¹²⁷ and more results in NaN.

    Attributes:
        unsigned: whether XNNPACK quantizes to u8 (qdu8) and not to s8 (qd8); None for the faster
            one on this processor.
    """

    unsigned: bool | None = None


@dataclass(frozen=True)
class PerBlock:
    """Rows of float32 that are quantized in blocks of the size of the matrix's, to ±127 steps.

    A block with an element that is NaN or infinite results in NaN.

    Attributes:
        rounds: whether many rows may be rounded to bfloat16 instead, where tiles multiply these
            faster.
    """

    rounds: bool = True


@dataclass(frozen=True)
class Matmul:
    """Rows times a constant matrix, plus a bias.

    Attributes:
        matrix: [O, C], or [C, O] where `transposed`: of float32, float16 or bfloat16, of int8 with
            scales of the outputs, or of 2, 4 or 8 bits in blocks.
        bias: [O], or None: float32, int32 where the result is requantized.
        result: the epilogue of float32; or the requantization of int32 accumulators.
        transposed: whether the matrix is [C, O].
        operand: static quantization of int8 rows; `PerToken` for float32 rows that are quantized
            dynamically, `PerBlock` for such before a block-quantized matrix;
            None for float32.
        rows: the number of rows; None where it is not known.
        in_memory: whether the unpacked matrix is in memory anyway: a tied embedding.
    """

    matrix: Weight | Quantized | Blocks
    bias: Weight | None = None
    result: Epilogue | Requantized | DynamicScales = NO_EPILOGUE
    transposed: bool = False
    operand: Quantization | PerToken | PerBlock | None = None
    rows: int | None = None
    in_memory: bool = False

    @property
    def shape(self) -> Shape:
        """The matrix's shape as it is stored."""
        matrix = self.matrix
        return matrix.shape if isinstance(matrix, Weight) else matrix.integers.shape

    @property
    def sizes(self) -> tuple[int, int]:
        """Input and output channels, checked."""
        if isinstance(self.matrix, Blocks):
            return self.matrix.columns, checked_shape(self.shape, 2)[0]
        outputs, inputs = checked_shape(self.shape, 2)
        return (outputs, inputs) if self.transposed else (inputs, outputs)

    @functools.cached_property
    def dtypes(self) -> str:
        """The dtypes of rows, matrix and result."""
        if isinstance(self.matrix, Weight):
            return f"float32 x {self.matrix.dtype.name}"
        if isinstance(self.matrix, Blocks):
            per_block = isinstance(self.operand, PerBlock)
            return "float32 per block x blocks" if per_block else "float32 x blocks"
        if isinstance(self.result, DynamicScales):
            return "dynamic int8 x int8"
        if isinstance(self.result, Requantized):
            return "int8 x int8 -> int8"
        if self.operand is None:
            return "float32 x int8"
        per_token = isinstance(self.operand, PerToken)
        return "float32 per token x int8" if per_token else "int8 x int8 -> float32"

    @property
    def geometry(self) -> ConvGeometry:
        """Its geometry as a 1 x 1 convolution of an image with one column."""
        return ConvGeometry(*self.sizes, (1, 1), ConvAttributes())

    @functools.cached_property
    def convolution(self) -> Convolution:
        """The same as a 1 x 1 convolution."""
        matrix = self.matrix
        inputs, outputs = self.sizes
        if isinstance(matrix, Quantized):
            matrix = outputs_first(matrix, self.transposed)
            integers = matrix.integers.reshape(outputs, 1, 1, inputs)
            kernel = Quantized(integers, matrix.scale, matrix.zero, matrix.axis)
            return Convolution(kernel, self.bias, result=self.result)
        if isinstance(matrix, Blocks):
            raise BackendError("a block-quantized matrix is not a convolution's kernel")
        matrix = matrix.transpose(1, 0) if self.transposed else matrix
        return Convolution(matrix.reshape(outputs, 1, 1, inputs), self.bias, result=self.result)

    @property
    def epilogue(self) -> Epilogue:
        """The epilogue of float32."""
        if not isinstance(self.result, Epilogue):
            raise BackendError(f"a matmul of {self.dtypes} has no epilogue of float32")
        return self.result


def outputs_first(matrix: Quantized, transposed: bool) -> Quantized:
    """Return an int8 matrix as [O, C]."""
    checked_shape(matrix.integers.shape, 2)
    if not transposed:
        return matrix
    if matrix.scale.size == 1:
        # A per-tensor scale has no axis.
        return Quantized(matrix.integers.transpose(1, 0), matrix.scale, matrix.zero, 0)
    return matrix.transpose((1, 0))
