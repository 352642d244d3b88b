"""Computations of matmuls with constant matrices, and what they pack."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from narrowpass.errors import BackendError
from narrowpass_planning.plan.step import Run, Shape, Sizing, elements
from narrowpass_planning.weights.weight import Weight
from narrowpass_xnn_cpu.lower.matmul.choices import (
    HALF_ROWS,
    Choice,
    choices,
    is_gemm,
    shares_quantized_rows,
)
from narrowpass_xnn_cpu.lower.matmul.epilogue import WithEpilogue
from narrowpass_xnn_cpu.lowered.op import Computation, LoweredOp, PackedStep
from narrowpass_xnn_cpu.lowered.record import keyword_record, record
from narrowpass_xnn_cpu.native import target
from narrowpass_xnn_cpu.native.own import fp32
from narrowpass_xnn_cpu.native.own.gemv import Gemv
from narrowpass_xnn_cpu.native.own.int8_matmul import rows_to_int8
from narrowpass_xnn_cpu.native.own.packed import PackedMatmul
from narrowpass_xnn_cpu.native.own.upcast import MIN_ROWS, UpcastMatmul
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue
from narrowpass_xnn_cpu.native.problems.matmul import Matmul
from narrowpass_xnn_cpu.native.problems.quantization import UnfitError
from narrowpass_xnn_cpu.native.table import AnyMatmul, create_matmul, select
from narrowpass_xnn_cpu.native.table.row import Selection
from narrowpass_xnn_cpu.native.target import Target
from narrowpass_xnn_cpu.native.weights_cache import Session
from narrowpass_xnn_cpu.native.xnnpack.matmul import reads_panels


@keyword_record
class ConstantMatMul(WithEpilogue):
    """A matmul of rows, of any number of leading axes, and a constant matrix.

    Operands are the rows, float32 or those of `QuantizeRows`, and the residual.

    Attributes:
        weight: [C, O], in its stored dtype.
        bias: float32 [O], or None.
        rows: their number, if it is known.
        accumulate: the requested dtype of accumulators; empty if the model requests none.
        activations: ``dynamic`` for dynamic per-token quantization; else empty.
        embedding: whether the matrix is a tied embedding, whose stored form is in memory anyway.
        unfit: why rows are not quantized although the model requests it, or a block-quantized
            matrix is upcast; else empty.
        deterministic: see `Numerics`.
    """

    mnemonic = "matmul"
    weight: Weight
    bias: Weight | None = None
    rows: int | None = None
    accumulate: str = ""
    activations: str = ""
    embedding: bool = False
    unfit: str = ""
    deterministic: bool = False

    @property
    def channels(self) -> int:
        """Input channels, the length of a row."""
        return self.weight.shape[0]

    @property
    def quantizes_rows(self) -> bool:
        """Whether the operand is the result of `QuantizeRows`."""
        if self.unfit:
            return False
        return shares_quantized_rows(self.weight, self.activations, target.current())

    @property
    def is_gemm(self) -> bool:
        """Whether the own float32 GEMM computes it for any number of rows."""
        processor = target.current()
        return is_gemm(next(self.choices(processor)), processor)

    def choices(self, processor: Target) -> Iterator[Choice]:
        """Yield the problems that it may be computed as, in order of preference."""
        return choices(
            self.weight,
            self.bias,
            self.epilogue,
            processor,
            rows=self.rows,
            accumulate=self.accumulate,
            activations="" if self.unfit else self.activations,
            embedding=self.embedding,
            blocks_fit=not self.unfit,
            deterministic=self.deterministic,
        )

    def kernel_name(self, op: LoweredOp, packed: PackedConstantMatMul) -> str:
        """See `Computation.kernel_name`."""
        return packed.kernel

    def precision(self, op: LoweredOp, packed: PackedConstantMatMul) -> str:
        """See `Computation.precision`."""
        known = not self.unfit or self.unfit in packed.precision
        return packed.precision if known else f"{packed.precision}: {self.unfit}"

    def select(self, op: LoweredOp, target: Target) -> Selection:
        """See `Computation.select`."""
        return select(next(self.choices(target)).problem, target).selection

    def pack(self, op: LoweredOp, session: Session | None) -> PackedConstantMatMul:
        """See `Computation.pack`."""
        found = self.choices(target.current())
        return PackedConstantMatMul(found, self.epilogue, self.rows, session)

    def row_axes(self, op: LoweredOp) -> int | None:
        """See `Computation.row_axes`."""
        return 1

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        shape, packed = shapes[0], step.packed
        if not self.quantizes_rows and shape[-1] != packed.channels:
            raise BackendError(f"rows of {shape[-1]} do not fit a matrix for {packed.channels}")
        result = (*shape[:-1], packed.outputs)
        epilogue = self.fitting(shapes, result)
        rows = elements(shape[:-1])
        if not rows:
            return Run(result)
        operator = packed.operator(rows)
        if isinstance(operator, PackedMatmul | Gemv):
            params = operator.reshape(rows, sizing.pool, epilogue=epilogue)
        else:
            params = operator.reshape(rows, sizing.pool)
        return Run(result, operator.call, operator, params)


@record
class QuantizeRows(Computation):
    """Dynamic per-token quantization of rows, which matmuls share.

    Attributes:
        channels: length of a row.
    """

    mnemonic = "quantize_rows"
    kernel = "rows to int8"
    channels: int

    def row_axes(self, op: LoweredOp) -> int | None:
        """See `Computation.row_axes`."""
        return 1

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        (shape,) = shapes
        channels = self.channels
        if shape[-1] != channels:
            raise BackendError(f"rows of {shape[-1]} do not fit a matrix for {channels}")
        rows = elements(shape[:-1])
        params = rows_to_int8(max(1, rows), channels)
        result = (*shape[:-1], params.row_bytes)
        return Run(result, "NP_INT8_ROWS", params=params) if rows else Run(result)


class PackedConstantMatMul:
    """A matmul packed by the first choice whose kernel the constants fit.

    Args:
        choices: in order of preference.
        epilogue: of the accumulators.
        rows: their number, if it is known.
        session: of the weights cache. `Choice.few_rows` is packed at run time without it.

    Attributes:
        channels: input channels.
        outputs: output channels.
        precision: of the arithmetic, as reported; empty for that of the matrix.

    Raises:
        UnfitError: rows are quantized by `QuantizeRows`, and the constants do not fit int8.
        BackendError: the constants fit no choice.
    """

    def __init__(
        self,
        choices: Iterable[Choice],
        epilogue: Epilogue,
        rows: int | None,
        session: Session | None,
    ) -> None:
        self._epilogue, self._rows = epilogue, rows
        choice, self._operator, self.precision = _first_fitting(choices, session)
        self.channels, self.outputs = choice.problem.sizes
        # Packed by the first run with few rows: until then its weights are not in memory.
        self._few_rows = choice.few_rows
        self._few: AnyMatmul | None = None

    @property
    def gemm(self) -> PackedMatmul:
        """The own float32 GEMM, if it is the only operator; see `choices.is_gemm`."""
        found = self._operator
        if not isinstance(found, PackedMatmul) or found.kernel is not fp32.MATMUL:
            raise BackendError(f"{self.kernel} is not the float32 GEMM")
        return found

    @property
    def packs_later(self) -> bool:
        """Whether a run with few rows packs weights, which it computes from the model's."""
        return self._few_rows is not None

    def operator(self, rows: int) -> AnyMatmul | UpcastMatmul:
        """Return the operator for a number of rows."""
        return self._by_rows(rows).for_rows(rows, self._epilogue)

    @property
    def kernel(self) -> str:
        """The name of the kernel, as reported."""
        found: AnyMatmul | UpcastMatmul = self._operator
        if self._rows:
            found = self.operator(self._rows)
        elif self._rows is None:
            found = self._operator.for_rows(MIN_ROWS, self._epilogue)
        return "few rows" if isinstance(found, Gemv) else f"{found.prefix}fully connected"

    def _by_rows(self, rows: int) -> AnyMatmul:
        if self._few_rows is None or rows > HALF_ROWS:
            return self._operator
        if self._few is None:
            self._few = create_matmul(self._few_rows, None)
        return self._few


def _first_fitting(
    choices: Iterable[Choice], session: Session | None
) -> tuple[Choice, AnyMatmul, str]:
    """Pack the first choice that constants fit; return it, its operator and the precision."""
    error: BackendError | None = None
    reason = ""
    for choice in choices:
        if choice.reads_panels and not _reads_panels(choice.problem):
            continue
        try:
            operator = create_matmul(choice.problem, session)
        except BackendError as failure:  # constants do not fit, or the processor lacks the kernel
            if choice.is_required:
                raise UnfitError(str(failure)) from failure
            error, reason = failure, f": {failure}" if choice.is_explained else reason
            continue
        return choice, operator, f"{choice.precision}{reason}"
    raise BackendError("there is no kernel for it") if error is None else error


def _reads_panels(problem: Matmul) -> bool:
    return reads_panels("float16", problem.sizes[1])
