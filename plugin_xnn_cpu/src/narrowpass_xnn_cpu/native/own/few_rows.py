"""Skinny GEMMs: a few rows times a large matrix, where reading the matrix takes all the time.

XNNPACK's kernels for one row read a matrix in one stream of memory, and one core reads eight to
twelve of them in two thirds of the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from narrowpass.errors import BackendError
from narrowpass_planning.weights.entry import Block
from narrowpass_planning.weights.weight import Weight
from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.own.panels import Layout, PanelMatmul, Panels
from narrowpass_xnn_cpu.native.pool import ThreadPool
from narrowpass_xnn_cpu.native.problems.bounds import checked_shape
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue
from narrowpass_xnn_cpu.native.problems.matmul import Matmul
from narrowpass_xnn_cpu.native.weights_cache import Session

MOST_ROWS = 4
"""NP_GEMV_MAX_ROWS. With more rows, the arithmetic takes longer than reading the matrix."""
_PARTS = 4
"""For each thread, at most: one that is late leaves some of them to others."""
_LEAST_PANELS = 8
"""Of a part, if there are more parts than threads: streams enough for threads that share memory."""


def divided(panels: int, threads: int) -> tuple[int, int]:
    """Divide the panels of a matrix; return those of a part, and parts.

    All threads have as many parts, and no more of them than leave streams enough in each.
    """
    many = max(1, min(_PARTS, panels // (threads * _LEAST_PANELS))) if threads > 1 else 1
    each = -(-panels // (many * threads))
    return each, -(-panels // each)


def reads_floats(width: int) -> bool:
    """Return whether the kernel for this processor reads panels of float32 of this width."""
    return bool(extension().lib.np_gemv_reads_width(width))


class FewRows(PanelMatmul):
    """Up to `MOST_ROWS` rows of float32 times a matrix that another operator has packed.

    Args:
        panels: the matrix.
        epilogue: unless `reshape` is given another one.
    """

    call = "NP_GEMV"

    def __init__(self, panels: Panels, epilogue: Epilogue) -> None:
        super().__init__(panels)
        self._epilogue = epilogue

    def for_rows(self, rows: int, epilogue: Epilogue) -> FewRows:
        """Return this operator: it is for few rows only."""
        return self

    def reshape(self, rows: int, pool: ThreadPool, *, epilogue: Epilogue | None = None) -> Any:
        """Reshape for `rows` rows; return the parameters."""
        if rows > MOST_ROWS:
            raise BackendError(f"{rows} rows are not few: {MOST_ROWS} at most")
        common, layout = self._common(rows), self._panels.layout
        each, parts = divided(-(-self.outputs // layout.width), pool.threads)
        fields = {
            **common,
            "parts": parts,
            "part_panels": each,
            "epilogue": (epilogue or self._epilogue).params(),
            "layout": getattr(self._lib, layout.name),
        }
        self.params = self._ffi.new("struct np_gemv_params *", fields)
        return self.params


@dataclass(frozen=True)
class TableKernel:
    """The kernel for few rows and a matrix that is read where the model stores it."""

    name: str = "few rows of a matrix as it is stored"
    call: str = FewRows.call

    def create(self, problem: Matmul, session: Session | None = None) -> FewRows:
        """Return the operator for a matrix float32 [O, C]; nothing is packed."""
        if not isinstance(problem.matrix, Weight):
            raise BackendError(f"a matmul of {problem.dtypes} reads no matrix as it is stored")
        array = problem.matrix.view()
        outputs, channels = checked_shape(array.shape, 2)
        layout = Layout("NP_TABLE_F32", 1, 4, 0)
        block = Block(extension().ffi.from_buffer(array), array.nbytes)
        return FewRows(Panels(block, array, layout, channels, outputs), problem.epilogue)


TABLE = TableKernel()
