"""GEMV and skinny GEMM of up to 4 rows, which are bound by the bandwidth of reading the matrix.

XNNPACK's kernels for one row read the matrix in one stream. One core needs two thirds of that time
where it reads eight to twelve streams at once, as the kernels here do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from narrowpass.errors import BackendError
from narrowpass_planning.weights.entry import Block
from narrowpass_planning.weights.weight import Weight
from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.own.panels import PanelLayout, PanelMatmul, Panels
from narrowpass_xnn_cpu.native.problems.bounds import checked_shape
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue
from narrowpass_xnn_cpu.native.problems.matmul import Matmul
from narrowpass_xnn_cpu.native.runtime.pool import ThreadPool
from narrowpass_xnn_cpu.native.weights_cache import Session

MAX_ROWS = 4
"""NP_GEMV_MAX_ROWS. With more rows, arithmetic takes longer than reading the matrix."""
_PARTS = 4
"""Parts for each thread, at most: others take over those of a slow one."""
_LEAST_PANELS = 8
"""Panels of a part, if there are more parts than threads: streams enough for each of them."""


def divide_panels(panels: int, threads: int) -> tuple[int, int]:
    """Divide the panels of a matrix into equally many parts for each thread.

    Returns:
        The panels of a part, and the number of parts.
    """
    many = max(1, min(_PARTS, panels // (threads * _LEAST_PANELS))) if threads > 1 else 1
    each = -(-panels // (many * threads))
    return each, -(-panels // each)


def reads_panel_width(width: int) -> bool:
    """Return whether the GEMV kernel of this processor reads float32 panels of this width."""
    return bool(extension().lib.np_gemv_reads_width(width))


class Gemv(PanelMatmul):
    """Up to `MAX_ROWS` rows of float32 times a matrix in panels, or as the model stores it.

    Args:
        panels: the matrix.
        epilogue: the fused epilogue, unless `reshape` gets another one.
    """

    call = "NP_GEMV"

    def __init__(self, panels: Panels, epilogue: Epilogue) -> None:
        super().__init__(panels)
        self._epilogue = epilogue

    def for_rows(self, rows: int, epilogue: Epilogue) -> Gemv:
        """Return this operator: it has no other one for more rows."""
        return self

    def reshape(self, rows: int, pool: ThreadPool, *, epilogue: Epilogue | None = None) -> Any:
        """Reshape for `rows` rows; return the parameters."""
        if rows > MAX_ROWS:
            raise BackendError(f"{rows} rows are not few: {MAX_ROWS} at most")
        common, layout = self._common(rows), self._panels.layout
        panels = layout.panels(self.outputs)
        each, parts = divide_panels(panels, pool.threads)
        fields = {
            **common,
            "panels": panels,
            "narrow": layout.narrow,
            "narrow_width": layout.narrow_width,
            "narrow_bytes": layout.narrow_width * layout.column_bytes(self.channels),
            "parts": parts,
            "part_panels": each,
            "epilogue": (epilogue or self._epilogue).params(),
            "layout": getattr(self._lib, layout.name),
        }
        self.params = self._ffi.new("struct np_gemv_params *", fields)
        return self.params


@dataclass(frozen=True)
class UnpackedKernel:
    """GEMV of a matrix that is read where the model stores it, such as a tied embedding."""

    name: str = "GEMV of an unpacked matrix"
    call: str = Gemv.call

    def create(self, problem: Matmul, session: Session | None = None) -> Gemv:
        """Return the operator of a float32 matrix [O, C], which is not packed."""
        if not isinstance(problem.matrix, Weight):
            raise BackendError(f"a GEMV of {problem.dtypes} cannot read an unpacked matrix")
        array = problem.matrix.view()
        outputs, channels = checked_shape(array.shape, 2)
        layout = PanelLayout("NP_TABLE_F32", 1, 4, 0)
        block = Block(extension().ffi.from_buffer(array), array.nbytes)
        return Gemv(Panels(block, array, layout, channels, outputs), problem.epilogue)


UNPACKED = UnpackedKernel()
