"""Products of a few rows with a large matrix, where reading the matrix takes all the time.

XNNPACK's kernels for one row read a matrix in one stream of memory, and one core reads eight of
them in two thirds of the time. The kernel here reads what XNNPACK has packed: the matrix is in
memory once, for any number of rows. How XNNPACK packs is looked at in small matrices, once in a
process; where it is not as the kernel has it, XNNPACK multiplies.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from narrowpass_xnn_cpu.native import kernels
from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.operators.base import Operator, Range, checked_shape
from narrowpass_xnn_cpu.native.pool import ThreadPool
from narrowpass_xnn_cpu.weights.session import Block, WeightsCache
from narrowpass_xnn_cpu.weights.weight import Array, Weight

if TYPE_CHECKING:
    from collections.abc import Callable

    from narrowpass_xnn_cpu.weights.session import Session

MOST_ROWS = 4
"""NP_FEW_ROWS_MOST. With more rows, the products take longer than reading the matrix."""
_PARTS = 4
"""For each thread: one that is late leaves some of them to others."""
_LEAST_PANELS = 8
"""Of a part: as many streams as are read at once."""
_ROUNDED = 128
"""Bytes to which sizes of blocks are rounded."""


@dataclass(frozen=True)
class Layout:
    """How packed matrices lie that the kernel reads.

    Attributes:
        name: ``NP_PANELS_...`` or ``NP_TABLE_F32``.
        width: columns of a panel.
        element: bytes of a weight.
        ends: bytes of each column before and behind its weights.
        inputs: whose weights lie side by side.
    """

    name: str
    width: int
    element: int
    ends: int
    inputs: int = 1

    def panel_bytes(self, channels: int) -> int:
        """Give the bytes of a panel."""
        filled = -(-channels // self.inputs) * self.inputs
        return self.width * (self.element * filled + self.ends)

    def size(self, channels: int, outputs: int) -> int:
        """Give the bytes of a matrix."""
        return -(-outputs // self.width) * self.panel_bytes(channels)


_KINDS = {
    "float32": ("NP_PANELS_F32", 4, 4, 1),
    "float16": ("NP_PANELS_F16", 2, 2, 1),
    "int8": ("NP_PANELS_INT8", 1, 8, 1),
    "int8 rows": ("NP_PANELS_INT8_BY_4", 1, 12, 4),
}
"""By what is multiplied: the layout, bytes of a weight, bytes of the ends, inputs side by side."""


def layout_of(
    kind: str, pack: Callable[[Array, Array, Array, Session], Block | None]
) -> Layout | None:
    """Give how matrices lie, if the kernel for this processor reads that.

    Args:
        kind: a key of the table above.
        pack: packs a matrix [O, C] of small integers, with a bias and scales, in a session.
    """
    lib = extension().lib
    name, element, ends, inputs = _KINDS[kind]
    width = int(lib.np_few_rows_width(getattr(lib, name)))
    if not width:
        return None
    layout = Layout(name, width, element, ends, inputs)
    for panels, channels in ((1, 19), (2, 8), (3, 1), (4, 5), (6, 6)):
        outputs = panels * width
        matrix = (np.arange(outputs * channels) % 201 - 100).astype(np.int8)
        matrix = matrix.reshape(outputs, channels)
        scales = np.exp2(np.arange(outputs) % 5, dtype=np.float32)
        bias = np.arange(outputs, dtype=np.float32) * 16
        with WeightsCache().begin() as session:
            block = pack(matrix, bias, scales, session)
            if block is None or not _fits(block, layout, channels, outputs):
                return None
            wanted = _packed(layout, matrix, bias, scales)
            if extension().ffi.buffer(block.address, len(wanted))[:] != wanted:
                return None
    return layout


def _packed(layout: Layout, matrix: Array, bias: Array, scales: Array) -> bytes:
    """Give a matrix that fills its panels as the kernel reads it."""
    width = layout.width
    matrix = np.pad(matrix, ((0, 0), (0, -matrix.shape[1] % layout.inputs)))
    found = []
    for start in range(0, len(matrix), width):
        part = slice(start, start + width)
        rows = matrix[part].reshape(width, -1, layout.inputs).transpose(1, 0, 2)
        pieces: list[Array]
        if layout.name == "NP_PANELS_F32":
            pieces = [bias[part], rows.astype(np.float32)]
        elif layout.name == "NP_PANELS_F16":
            pieces = [bias[part].astype(np.float16), rows.astype(np.float16)]
        elif layout.name == "NP_PANELS_INT8":
            pieces = [bias[part] / scales[part], rows, scales[part]]
        else:
            sums = -matrix[part].sum(1, dtype=np.int32)
            pieces = [sums, rows, scales[part], bias[part]]
        found += [piece.tobytes() for piece in pieces]
    return b"".join(found)


def _fits(block: Block, layout: Layout, channels: int, outputs: int) -> bool:
    size = layout.size(channels, outputs)
    return size <= block.size < size + _ROUNDED


class FewRows(Operator):
    """Up to `MOST_ROWS` rows of float32 times a matrix that another operator has packed.

    Args:
        address: where the matrix lies; the caller keeps it there.
        layout: how it lies.
        channels: inputs.
        outputs: outputs.
        limits: what the output is clamped to.
    """

    call = "NP_FEW_ROWS"
    maker = ""

    def __init__(
        self, address: Any, layout: Layout, channels: int, outputs: int, limits: Range
    ) -> None:
        super().__init__()
        self.handle = self._ffi.NULL
        self.channels, self.outputs = channels, outputs
        self._address, self._layout, self._limits = address, layout, limits

    @classmethod
    def of(
        cls,
        block: Block | None,
        layout: Layout | None,
        channels: int,
        outputs: int,
        limits: Range,
    ) -> FewRows | None:
        """Give the operator over a block that XNNPACK packed; None where it cannot be read."""
        if block is None or layout is None or not _fits(block, layout, channels, outputs):
            return None
        return cls(block.address, layout, channels, outputs, limits)

    def reshape(self, rows: int, pool: ThreadPool) -> Any:
        """Take `rows` rows; give the parameters of the product."""
        checked_shape((rows, max(self.channels, self.outputs)))
        if rows > MOST_ROWS:
            raise ValueError(f"{rows} rows are not few")
        layout = self._layout
        panels = -(-self.outputs // layout.width)
        parts = 1 if pool.threads == 1 else _PARTS * pool.threads
        each = max(-(-panels // parts), min(_LEAST_PANELS, -(-panels // pool.threads)))
        low, high = self._limits
        fields = {
            "packed": self._address,
            "rows": rows,
            "channels": self.channels,
            "outputs": self.outputs,
            "width": layout.width,
            "panel_bytes": layout.panel_bytes(self.channels),
            "parts": -(-panels // each),
            "part_panels": each,
            "low": low,
            "high": high,
            "layout": getattr(self._lib, layout.name),
            "target": kernels.target(),
        }
        self.params = self._ffi.new("struct np_few_rows_params *", fields)
        return self.params


class TableRows(FewRows):
    """Few rows times a matrix that is stored with its outputs first, and read as it lies.

    Args:
        table: float32 [O, C].
        limits: what the output is clamped to.
    """

    def __init__(self, table: Weight, limits: Range) -> None:
        self._table = table.array()
        outputs, channels = checked_shape(self._table.shape, 2)
        layout = Layout("NP_TABLE_F32", 1, 4, 0)
        address = extension().ffi.from_buffer(self._table)
        super().__init__(address, layout, channels, outputs, limits)


@functools.cache
def reads_tables() -> bool:
    """Tell whether the kernel is fast on this processor."""
    lib = extension().lib
    return bool(lib.np_few_rows_width(lib.NP_TABLE_F32))
