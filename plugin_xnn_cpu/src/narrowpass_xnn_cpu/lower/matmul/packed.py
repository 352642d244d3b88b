"""Products with a constant matrix, and the type that they are computed in."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from narrowpass.errors import BackendError
from narrowpass_planning.weights.weight import Blocks, Weight
from narrowpass_xnn_cpu.native import cpu, target
from narrowpass_xnn_cpu.native.own import bf16, blocks, fp32
from narrowpass_xnn_cpu.native.own.few_rows import MOST_ROWS, FewRows, reads_tables, table_rows
from narrowpass_xnn_cpu.native.own.packed import PackedMatmul
from narrowpass_xnn_cpu.native.own.upcast import LEAST_ROWS, UpcastMatmul
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue
from narrowpass_xnn_cpu.native.problems.matmul import Matmul, PerToken
from narrowpass_xnn_cpu.native.problems.quantization import UnfitError
from narrowpass_xnn_cpu.native.table import AnyMatmul, create_matmul
from narrowpass_xnn_cpu.native.table.matmul import bf16_passed_over, quantizes_rows_before
from narrowpass_xnn_cpu.native.weights_cache import Session
from narrowpass_xnn_cpu.native.xnnpack import matmul as xnn_matmul
from narrowpass_xnn_cpu.native.xnnpack.matmul import has_half_matmul, reads_panels

HALF_ROWS = 8
"""Up to so many rows, a product with a float16 matrix is computed in float16.

Reading the matrix takes longest there, and half as many bytes are read: 1.2 to 2.9 times faster
than float32 for matrices of `HALF_SIZE` and more (`benchmarks/narrow_products.py`). With more rows
the conversions in the kernel cost more than that. For bfloat16 matrices see the kernel table.
"""

HALF_SIZE = 1 << 19
"""Elements of a float16 matrix from which computing in float16 pays at all."""

_WIDE = np.dtype(np.float32)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

_Made = AnyMatmul | FewRows


def is_ours(kernel: Weight, rows: int | None) -> bool:
    """Tell whether a product is one of ours, which ends with any epilogue.

    Args:
        kernel: [C, O], of the type that it is stored in.
        rows: how many there are, where that is known.
    """
    if _blocks(kernel) is not None:
        return False
    processor = target.current()
    if kernel.dtype == BFLOAT16 and processor.has_bf16:
        return not bf16_passed_over(rows, processor) or processor.has_fp32_gemm
    return kernel.dtype == _WIDE and kernel.quantized is None and processor.has_fp32_gemm


def _blocks(kernel: Weight) -> Blocks | None:
    """Give what a matrix [C, O] is stored as, if that is blocks along the columns."""
    return None if kernel.moved is None else kernel.transpose(1, 0).blocks


def takes_quantized_rows(kernel: Weight, activations: str) -> bool:
    """Return whether rows are quantized before a matmul, once for all that read them.

    Args:
        kernel: [C, O], of the dtype that it is stored in.
        activations: ``dynamic`` where rows are to be quantized.
    """
    matrix = kernel.quantized
    if activations != "dynamic" or matrix is None or _blocks(kernel) is not None:
        return False
    return quantizes_rows_before(matrix, kernel.shape[1], target.current())


def is_gemm(kernel: Weight, bias: Weight | None, rows: int | None, *, embedding: bool) -> bool:
    """Return whether our float32 GEMM alone computes a matmul, whatever the number of rows.

    Args:
        kernel: [C, O], of the dtype that it is stored in.
        bias: float32 [O], or None.
        rows: how many there are, where that is known.
        embedding: see `Product`.
    """
    if kernel.dtype != _WIDE or kernel.quantized is not None or _blocks(kernel) is not None:
        return False
    if rows is not None and rows <= MOST_ROWS and bias is None:
        half = kernel.narrow is not None and kernel.narrow.dtype == np.float16
        if half and reads_panels("float16", kernel.shape[1]):
            return False
        if embedding and kernel.moved is not None and reads_tables():
            return False
    return target.current().has_fp32_gemm


class Product:
    """Rows times a constant matrix, plus a bias, in a type that follows from the rows.

    Args:
        kernel: [C, O], of the type that it is stored in.
        bias: float32 [O], or None.
        epilogue: what becomes of sums; nothing but a clamp where `is_ours` says no.
        rows: how many there are, where that is known.
        accumulate: what sums are to be kept in; empty where nobody says.
        activations: ``dynamic`` where rows are to be quantized too; empty where nobody says.
        session: of the weights cache. What turns out to be needed later is packed without it.
        in_memory: whether the matrix is in memory as it is stored anyway: others look up its rows.

    Attributes:
        channels: C.
        outputs: O.
        epilogue: what becomes of sums.
        precision: what it is computed in, for people; empty where that is the type of the matrix.
    """

    def __init__(
        self,
        kernel: Weight,
        bias: Weight | None,
        epilogue: Epilogue,
        rows: int | None,
        accumulate: str,
        activations: str,
        session: Session | None,
        *,
        in_memory: bool = False,
    ) -> None:
        self.channels, self.outputs = kernel.shape
        self.precision = ""
        self._bias, self.epilogue = bias, epilogue
        # XNNPACK takes a matrix either way round: as it lies, it needs no copy.
        self._transposed = kernel.moved is None
        source = kernel if self._transposed else kernel.transpose(1, 0)
        self._operators: dict[np.dtype[np.generic], _Made] = {}
        self._source: Weight | None = None
        self._rows = rows
        few = rows is not None and rows <= MOST_ROWS
        stored = _blocks(kernel)
        if stored is not None:
            blocked = blocks.MATMUL.create(
                Matmul(stored, bias, Epilogue(limits=self.epilogue.limits)), session
            )
            self._operators[np.dtype(np.int8)] = blocked
            self._bias = None
            self.precision = f"int{stored.bits} (weights)"
            return
        as_it_lies = kernel.moved is not None and kernel.dtype == _WIDE and bias is None
        if in_memory and few and as_it_lies and not kernel.quantized and reads_tables():
            self._operators[_WIDE] = table_rows(source, epilogue)
            return
        if self._makes_int8(kernel, activations, session):
            return
        if few and bias is None and self._makes_half(kernel, session):
            return
        right_sums = accumulate != "float32" or cpu.sums_halves_in_float32()
        large = kernel.dtype == np.float16 and kernel.size >= HALF_SIZE
        self._half = large and right_sums and has_half_matmul()
        if kernel.dtype == BFLOAT16:
            self._make_bfloat16(source, rows, session)
        else:
            self._make(source, self._fitting(rows), session)
        if kernel.dtype != _WIDE:
            (made,) = self._operators
            self.precision = made.name
            if self._half and rows is None:
                self.precision = f"float16 up to {HALF_ROWS} rows, else float32"
        # What may be needed in the other type later; kept, weights would stay in memory.
        self._source = source if self._half and rows is None else None
        self._bias = bias if self._source is not None else None

    def _makes_int8(self, kernel: Weight, activations: str, session: Session | None) -> bool:
        """Make the operator of a matrix that is stored as int8, if it fits.

        Raises:
            UnfitError: its rows are quantized before, and its constants do not fit that.
        """
        matrix, reason = kernel.quantized, ""
        if matrix is None:
            if activations == "dynamic":
                self.precision = "float32: its matrix is not int8"
            return False
        limits = self.epilogue.limits
        before = takes_quantized_rows(kernel, activations)
        transposed = matrix.integers.moved is None
        matrix = matrix if transposed else matrix.transpose((1, 0))
        for rows_too in (True, False) if activations == "dynamic" else (False,):
            problem = Matmul(
                matrix,
                self._bias,
                Epilogue(limits=limits),
                transposed,
                PerToken() if rows_too else None,
            )
            try:
                made = create_matmul(problem, session)
            except BackendError as error:  # unfit constants, or a processor without the kernel
                if before and rows_too:
                    raise UnfitError(str(error)) from error
                reason = f": {error}"
                continue
            self._operators[np.dtype(np.int8)] = made
            self._bias = None
            self.precision = "int8 (rows too)" if rows_too else f"int8 (weights){reason}"
            return True
        self.precision = f"float32{reason}"
        return False

    def _make_bfloat16(self, source: Weight, rows: int | None, session: Session | None) -> None:
        """Make the operator of a matrix that is stored as bfloat16."""
        if not bf16_passed_over(rows, target.current()):
            self._operators[BFLOAT16] = bf16.MATMUL.create(
                Matmul(source, self._bias, self.epilogue, self._transposed), session
            )
            return
        if target.current().has_bf16:
            self._make(source, _WIDE, session)
            return
        try:
            self._make(source, BFLOAT16, session)
        except BackendError:
            self._make(source, _WIDE, session)  # XNNPACK has no kernel for it here either

    def _makes_half(self, kernel: Weight, session: Session | None) -> bool:
        """Make the operator of a matrix of float32 that is stored as float16: each is exact.

        Only the kernel for few rows multiplies it with rows of float32, in float32.
        """
        narrow = kernel.narrow
        if narrow is None or narrow.dtype != np.float16:
            return False
        if not reads_panels("float16", self.outputs):
            return False
        transposed = narrow.moved is None
        source = narrow if transposed else narrow.transpose(1, 0)
        made = xnn_matmul.create(Matmul(source, None, transposed=transposed), session)
        self._operators[_WIDE] = made
        return True

    def _fitting(self, rows: int | None) -> np.dtype[np.generic]:
        half = self._half and rows is not None and rows <= HALF_ROWS
        return np.dtype(np.float16) if half else _WIDE

    def _make(
        self, source: Weight, dtype: np.dtype[np.generic], session: Session | None
    ) -> AnyMatmul:
        kernel, transposed = source.cast(dtype), self._transposed
        made: AnyMatmul
        if dtype == _WIDE:
            made = create_matmul(Matmul(kernel, self._bias, self.epilogue, transposed), session)
        else:
            limits = self.epilogue.limits
            made = xnn_matmul.create(
                Matmul(kernel, self._bias, Epilogue(limits=limits), transposed), session
            )
        self._operators[dtype] = made
        return made

    @property
    def gemm(self) -> PackedMatmul:
        """Our float32 GEMM, where that is the only operator; see `is_gemm`."""
        (only,) = self._operators.values()
        if not isinstance(only, PackedMatmul) or only.kernel is not fp32.MATMUL:
            raise BackendError(f"{self.kernel} is not the float32 GEMM")
        return only

    def operator(self, rows: int) -> _Made | UpcastMatmul:
        """Give the operator for so many rows."""
        return self._by_type(rows).for_rows(rows, self.epilogue)

    @property
    def kernel(self) -> str:
        """What computes it, for people."""
        first = next(iter(self._operators.values()))
        made: _Made | UpcastMatmul = first
        if self._rows:
            made = self.operator(self._rows)
        elif self._rows is None:
            made = first.for_rows(LEAST_ROWS, self.epilogue)
        return "few rows" if isinstance(made, FewRows) else f"{made.maker}fully connected"

    def _by_type(self, rows: int) -> _Made:
        if self._source is None:
            (only,) = self._operators.values()
            return only
        dtype = self._fitting(rows)
        found = self._operators.get(dtype)
        return self._make(self._source, dtype, None) if found is None else found
