"""Products of a few rows with a large matrix, where reading the matrix takes all the time.

XNNPACK's kernels for one row read a matrix in one stream of memory, and one core reads eight to
twelve of them in two thirds of the time.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.operators.base import Range, checked_shape
from narrowpass_xnn_cpu.native.operators.panels import Fields, Layout, PanelProduct
from narrowpass_xnn_cpu.native.pool import ThreadPool
from narrowpass_xnn_cpu.weights.entry import Block
from narrowpass_xnn_cpu.weights.weight import Weight

if TYPE_CHECKING:
    from narrowpass_xnn_cpu.native.epilogue import Epilogue

MOST_ROWS = 4
"""NP_GEMV_MAX_ROWS. With more rows, the products take longer than reading the matrix."""
_PARTS = 4
"""For each thread, at most: one that is late leaves some of them to others."""
_LEAST_PANELS = 8
"""Of a part, if there are more parts than threads: streams enough for threads that share memory."""


def divided(panels: int, threads: int) -> tuple[int, int]:
    """Divide the panels of a matrix; give those of a part, and parts.

    All threads have as many parts, and no more of them than leave streams enough in each.
    """
    many = max(1, min(_PARTS, panels // (threads * _LEAST_PANELS))) if threads > 1 else 1
    each = -(-panels // (many * threads))
    return each, -(-panels // each)


def clamping(limits: Range) -> Fields:
    """Give the fields of an epilogue that clamps.

    As `Epilogue.params` does, whose module imports this package.
    """
    return {"function": 0, "residual": 0, "low": limits[0], "high": limits[1]}


def reads_floats(width: int) -> bool:
    """Tell whether the kernel for this processor reads panels of float32 of this width."""
    return bool(extension().lib.np_gemv_reads_width(width))


class FewRows(PanelProduct):
    """Up to `MOST_ROWS` rows of float32 times a matrix that another operator has packed.

    It takes what `PanelProduct` takes, and more.

    Args:
        epilogue: the fields of ``struct np_epilogue``: what becomes of sums.
    """

    call = "NP_GEMV"

    def __init__(
        self,
        block: Block,
        owner: object,
        layout: Layout,
        channels: int,
        outputs: int,
        epilogue: Fields,
    ) -> None:
        super().__init__(block, owner, layout, channels, outputs)
        self._epilogue = epilogue

    @classmethod
    def of(
        cls,
        block: Block | None,
        owner: object,
        layout: Layout | None,
        channels: int,
        outputs: int,
        epilogue: Fields,
    ) -> FewRows | None:
        """Give the operator over a block that XNNPACK packed; None where it cannot be read."""
        if block is None or layout is None or not layout.holds(block, channels, outputs):
            return None
        return cls(block, owner, layout, channels, outputs, epilogue)

    def reshape(self, rows: int, pool: ThreadPool) -> Any:
        """Take `rows` rows; give the parameters of the product."""
        if rows > MOST_ROWS:
            raise BackendError(f"{rows} rows are not few: {MOST_ROWS} at most")
        product = self._product(rows)
        each, parts = divided(-(-self.outputs // self._layout.width), pool.threads)
        fields = {
            **product,
            "parts": parts,
            "part_panels": each,
            "epilogue": self._epilogue,
            "layout": getattr(self._lib, self._layout.name),
        }
        self.params = self._ffi.new("struct np_gemv_params *", fields)
        return self.params

    def end_with(self, epilogue: Epilogue) -> None:
        """Let this become of sums, until the next `reshape`."""
        self.params.epilogue = epilogue.params()


class TableRows(FewRows):
    """Few rows times a matrix that is stored with its outputs first, and read as it lies.

    Args:
        table: float32 [O, C].
        epilogue: the fields of ``struct np_epilogue``: what becomes of sums.
    """

    def __init__(self, table: Weight, epilogue: Fields) -> None:
        array = table.view()
        outputs, channels = checked_shape(array.shape, 2)
        layout = Layout("NP_TABLE_F32", 1, 4, 0)
        block = Block(extension().ffi.from_buffer(array), array.nbytes)
        super().__init__(block, array, layout, channels, outputs, epilogue)


@functools.cache
def reads_tables() -> bool:
    """Tell whether the kernel is fast on this processor."""
    lib = extension().lib
    return bool(lib.np_gemv_panel_width(lib.NP_TABLE_F32))
