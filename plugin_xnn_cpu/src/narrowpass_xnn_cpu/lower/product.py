"""Products with a constant matrix, and the type that they are computed in."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native import cpu
from narrowpass_xnn_cpu.native.epilogue import Epilogue
from narrowpass_xnn_cpu.native.operators import (
    FullyConnected,
    FullyConnectedInt8,
    bf16_choice,
)
from narrowpass_xnn_cpu.native.operators.fp32_choice import (
    AnyFullyConnected,
    fully_connected,
    products_are_ours,
)
from narrowpass_xnn_cpu.native.operators.int8_choice import (
    AnyFullyConnectedInt8,
    fully_connected_int8_rows,
)
from narrowpass_xnn_cpu.native.operators.tiled_bf16 import TiledFullyConnectedBf16
from narrowpass_xnn_cpu.native.operators.tiled_product import TiledFullyConnectedInt8
from narrowpass_xnn_cpu.weights.session import Session
from narrowpass_xnn_cpu.weights.weight import Weight

HALF_ROWS = 8
"""Up to so many rows, a product with a float16 matrix is computed in float16.

Reading the matrix takes longest there, and half as many bytes are read: 1.2 to 2.9 times faster
than float32 for matrices of `HALF_SIZE` and more (`benchmarks/narrow_products.py`). With more rows
the conversions in the kernel cost more than that. For bfloat16 matrices see `bf16_choice`.
"""

HALF_SIZE = 1 << 19
"""Elements of a float16 matrix from which computing in float16 pays at all."""

_WIDE = np.dtype(np.float32)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


_Made = AnyFullyConnected | AnyFullyConnectedInt8 | TiledFullyConnectedBf16


def is_ours(kernel: Weight, rows: int | None) -> bool:
    """Tell whether a product is one of ours, which ends with any epilogue.

    Args:
        kernel: [C, O], of the type that it is stored in.
        rows: how many there are, where that is known.
    """
    if kernel.dtype == BFLOAT16 and bf16_choice.is_fast():
        return bf16_choice.product_is_ours(rows) or products_are_ours()
    return kernel.dtype == _WIDE and kernel.quantized is None and products_are_ours()


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

    Attributes:
        channels: C.
        outputs: O.
        epilogue: what becomes of sums.
        precision: what it is computed in, for people; empty where that is the type of the matrix.
        quantized_rows: whether it takes rows that `QuantizedRows` has made.
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
    ) -> None:
        self.channels, self.outputs = kernel.shape
        self.precision = ""
        self.quantized_rows = False
        self._bias, self.epilogue = bias, epilogue
        # XNNPACK takes a matrix either way round: as it lies, it needs no copy.
        self._transposed = kernel.moved is None
        source = kernel if self._transposed else kernel.transpose(1, 0)
        self._operators: dict[np.dtype[np.generic], _Made] = {}
        self._source: Weight | None = None
        if self._makes_int8(kernel, activations, session):
            return
        right_sums = accumulate != "float32" or cpu.sums_halves_in_float32()
        self._half = kernel.dtype == np.float16 and kernel.size >= HALF_SIZE and right_sums
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
        """Make the operator of a matrix that is stored as int8, if it fits."""
        matrix, reason = kernel.quantized, ""
        if matrix is None:
            if activations == "dynamic":
                self.precision = "float32: its matrix is not int8"
            return False
        limits = self.epilogue.limits
        transposed = matrix.integers.moved is None
        matrix = matrix if transposed else matrix.transpose((1, 0))
        for rows_too in (True, False) if activations == "dynamic" else (False,):
            try:
                make: Callable[..., AnyFullyConnectedInt8] = (
                    fully_connected_int8_rows if rows_too else FullyConnectedInt8
                )
                made = make(matrix, self._bias, limits, transposed=transposed, session=session)
            except BackendError as error:  # unfit constants, or a processor without the kernel
                reason = f": {error}"
                continue
            self._operators[np.dtype(np.int8)] = made
            self._bias = None
            self.quantized_rows = isinstance(made, TiledFullyConnectedInt8)
            self.precision = "int8 (rows too)" if rows_too else f"int8 (weights){reason}"
            return True
        self.precision = f"float32{reason}"
        return False

    def _make_bfloat16(self, source: Weight, rows: int | None, session: Session | None) -> None:
        """Make the operator of a matrix that is stored as bfloat16."""
        if bf16_choice.product_is_ours(rows):
            self._operators[BFLOAT16] = TiledFullyConnectedBf16(
                source, self._bias, self.epilogue, transposed=self._transposed, session=session
            )
            return
        if bf16_choice.is_fast():
            self._make(source, _WIDE, session)
            return
        try:
            self._make(source, BFLOAT16, session)
        except BackendError:
            self._make(source, _WIDE, session)  # XNNPACK has no kernel for it here either

    def _fitting(self, rows: int | None) -> np.dtype[np.generic]:
        half = self._half and rows is not None and rows <= HALF_ROWS
        return np.dtype(np.float16) if half else _WIDE

    def _make(
        self, source: Weight, dtype: np.dtype[np.generic], session: Session | None
    ) -> AnyFullyConnected:
        kernel, transposed = source.cast(dtype), self._transposed
        made: AnyFullyConnected
        if dtype == _WIDE:
            made = fully_connected(
                kernel, self._bias, self.epilogue, transposed=transposed, session=session
            )
        else:
            limits = self.epilogue.limits
            made = FullyConnected(
                kernel, self._bias, limits, transposed=transposed, session=session
            )
        self._operators[dtype] = made
        return made

    @property
    def maker(self) -> str:
        """Of the kernel; see `Operator.maker`."""
        return next(iter(self._operators.values())).maker

    def operator(self, rows: int) -> _Made:
        """Give the operator for so many rows."""
        if self._source is None:
            (only,) = self._operators.values()
            return only
        dtype = self._fitting(rows)
        found = self._operators.get(dtype)
        return self._make(self._source, dtype, None) if found is None else found
