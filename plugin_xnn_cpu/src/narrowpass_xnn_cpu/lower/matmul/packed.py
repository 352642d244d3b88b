"""A packed matmul with a constant matrix: one operator, or two by the number of rows."""

from __future__ import annotations

from collections.abc import Iterable

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.lower.matmul.choices import HALF_ROWS, Choice
from narrowpass_xnn_cpu.native.own import fp32
from narrowpass_xnn_cpu.native.own.gemv import Gemv
from narrowpass_xnn_cpu.native.own.packed import PackedMatmul
from narrowpass_xnn_cpu.native.own.upcast import MIN_ROWS, UpcastMatmul
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue
from narrowpass_xnn_cpu.native.problems.matmul import Matmul
from narrowpass_xnn_cpu.native.problems.quantization import UnfitError
from narrowpass_xnn_cpu.native.table import AnyMatmul, create_matmul
from narrowpass_xnn_cpu.native.weights_cache import Session
from narrowpass_xnn_cpu.native.xnnpack.matmul import reads_panels


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
