"""Matrices that XNNPACK or we have packed in panels, for our kernels that read either layout.

A matrix is packed once, whichever kernel multiplies it. XNNPACK's packed layout is no part of its
interface: it is probed with small matrices, once in a process. Where it is not the expected one,
our kernels are not used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from narrowpass_planning.weights.entry import Block
from narrowpass_planning.weights.weight import Array
from narrowpass_xnn_cpu.native import kernels
from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.operator import Fields, Operator
from narrowpass_xnn_cpu.native.problems.bounds import checked_shape
from narrowpass_xnn_cpu.native.weights_cache import Session, WeightsCache

_ROUNDED = 128
"""Bytes to which XNNPACK rounds the sizes of packed weights."""


@dataclass(frozen=True)
class PanelLayout:
    """The layout of a matrix that our kernels read: panels of columns, or unpacked.

    Attributes:
        name: the C constant of the layout, ``NP_PANELS_...`` or ``NP_TABLE_F32``.
        width: NR, columns of a panel.
        element: bytes of a weight.
        ends: bytes of bias and scale of a column, before and after its weights.
        narrow: how many of the last panels are narrower.
        narrow_width: columns of these.
    """

    name: str
    width: int
    element: int
    ends: int
    narrow: int = 0
    narrow_width: int = 0

    def panels(self, outputs: int) -> int:
        """Return the number of panels of a matrix."""
        return self.narrow - (-(outputs - self.narrow * self.narrow_width) // self.width)

    def column_bytes(self, channels: int) -> int:
        """Return the bytes of a column of a panel."""
        return self.element * channels + self.ends

    def panel_bytes(self, channels: int) -> int:
        """Return the bytes of a panel, of those that are not narrower."""
        return self.width * self.column_bytes(channels)

    def size(self, channels: int, outputs: int) -> int:
        """Return the bytes of a matrix."""
        wide = self.panels(outputs) - self.narrow
        columns = wide * self.width + self.narrow * self.narrow_width
        return columns * self.column_bytes(channels)

    def holds(self, block: Block, channels: int, outputs: int) -> bool:
        """Return whether a block has the size of such a matrix."""
        size = self.size(channels, outputs)
        return size <= block.size < size + _ROUNDED


_KINDS = {
    "float32": ("NP_PANELS_F32", 4, 4),
    "float16": ("NP_PANELS_F16", 2, 2),
    "int8": ("NP_PANELS_INT8", 1, 8),
}
"""By types of matrix and rows: `PanelLayout` without the width."""
_PROBED = 7
"""K of the matrix that is packed as a probe."""


def probe_layout(
    kind: str, outputs: int, pack: Callable[[Array, Array, Array, Session], Block | None]
) -> PanelLayout | None:
    """Return XNNPACK's packed layout, if our kernel for this processor can read it.

    A small known matrix, the probe, is packed by XNNPACK and compared element by element.

    XNNPACK chooses NR by the number of outputs, so that each number is probed.

    Args:
        kind: a key of `_KINDS`.
        outputs: the number of outputs.
        pack: packs an int8 matrix [O, C], with a bias and scales, in a session.
    """
    lib = extension().lib
    name, element, ends = _KINDS[kind]
    width = int(lib.np_gemv_panel_width(getattr(lib, name)))
    if not width:
        return None
    layout = PanelLayout(name, width, element, ends)
    # All columns differ, and so do all rows, so that any other order is found.
    matrix = np.arange(outputs)[:, None] // 5 ** np.arange(_PROBED) % 5 + 5 * np.arange(_PROBED)
    scales = np.exp2(np.arange(outputs) % 3, dtype=np.float32)
    bias = (np.arange(outputs) % 1024 * 4).astype(np.float32)
    with WeightsCache().begin() as session:
        block = pack(matrix.astype(np.int8), bias, scales, session)
        if block is None or not layout.holds(block, _PROBED, outputs):
            return None
        size = layout.size(_PROBED, outputs)
        raw = np.frombuffer(extension().ffi.buffer(block.address, size), np.uint8)
        wanted = {
            "NP_PANELS_F32": [bias, matrix],
            "NP_PANELS_F16": [bias, matrix],
            "NP_PANELS_INT8": [bias / scales, matrix, scales],
        }[name]
        same = all(map(np.array_equal, _unpack_probe(raw, layout, outputs), wanted))
        del raw
    return layout if same else None


def _unpack_probe(raw: Array, layout: PanelLayout, outputs: int) -> list[Array]:
    """Read bias, weights and scales of the packed probe matrix back, assuming `layout`."""
    width = layout.width
    panels = raw.reshape(-1, layout.panel_bytes(_PROBED))
    kind, start = np.dtype(f"f{layout.element}" if layout.element > 1 else "i1"), 0
    ends = [np.dtype(name) for name in ("f4",) * (layout.ends // 4) or ("f2",)]

    def field(dtype: np.dtype[Any], *shape: int) -> Array:
        nonlocal start
        size = width * shape[0] * dtype.itemsize
        piece = np.ascontiguousarray(panels[:, start : start + size]).view(dtype)
        start += size
        return piece.reshape(len(panels), -1, width, shape[-1])

    found = [field(ends[0], 1), field(kind, _PROBED, 1)]
    found += [field(dtype, 1) for dtype in ends[1:]]
    columns = [x.transpose(0, 2, 1, 3).reshape(len(panels) * width, -1)[:outputs] for x in found]
    return [x[:, :_PROBED] if i == 1 else x[:, 0] for i, x in enumerate(columns)]


@dataclass(frozen=True)
class Panels:
    """A packed matrix [O, C].

    Attributes:
        block: its memory.
        owner: the object that keeps the memory.
        layout: its layout.
        channels: C.
        outputs: O.
    """

    block: Block
    owner: object
    layout: PanelLayout
    channels: int
    outputs: int

    @classmethod
    def from_xnnpack(
        cls,
        block: Block | None,
        owner: object,
        layout: PanelLayout | None,
        channels: int,
        outputs: int,
    ) -> Panels | None:
        """Return the matrix in a block of XNNPACK; None if its size is not that of the layout."""
        if block is None or layout is None or not layout.holds(block, channels, outputs):
            return None
        return cls(block, owner, layout, channels, outputs)


class PanelMatmul(Operator):
    """An operator on float32 rows and a matrix that another operator has packed."""

    def __init__(self, panels: Panels) -> None:
        super().__init__()
        self._panels = panels
        self.channels, self.outputs = panels.channels, panels.outputs

    def _common(self, rows: int) -> Fields:
        """Return the fields that these kernels have in common, for so many rows."""
        checked_shape((rows, max(self.channels, self.outputs)))
        layout = self._panels.layout
        return {
            "packed": self._panels.block.address,
            "rows": rows,
            "channels": self.channels,
            "outputs": self.outputs,
            "width": layout.width,
            "panel_bytes": layout.panel_bytes(self.channels),
            "target": kernels.code(),
        }
