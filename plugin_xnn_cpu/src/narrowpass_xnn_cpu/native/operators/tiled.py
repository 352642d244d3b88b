"""Operators whose kernels are ours, and what they share.

They take the same arguments as those of XNNPACK. Those of int8 give the same bytes: sums of int32,
times one float32 number for each output, rounded to even and clamped.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native import kernels
from narrowpass_xnn_cpu.native.operators.base import Operator
from narrowpass_xnn_cpu.native.operators.int8 import Requantized, fitting
from narrowpass_xnn_cpu.native.operators.quantized import MOST_CHANNELS, UnfitError
from narrowpass_xnn_cpu.native.tape import aligned
from narrowpass_xnn_cpu.weights.session import Session, pointer
from narrowpass_xnn_cpu.weights.weight import Array, Weight, digest

COLUMNS = 16
"""Of a panel: NP_INT8_COLUMNS, NP_FP32_COLUMNS."""
ROWS = 6
"""Of the largest tile: NP_INT8_ROWS, NP_FP32_ROWS."""
BAND_BYTES = 1 << 17
"""What a thread widens at a time; beside a panel of weights it stays in the second cache."""
_MOST_ELEMENTS = 1 << 31
"""Places in what is read at a time are int32."""


class Tiled(Operator):
    """An operator whose kernel is ours.

    Attributes:
        layout: names the version of how its packed weights lie.
    """

    maker = ""
    layout = "NP_INT8_LAYOUT"

    def __init__(self) -> None:
        super().__init__()
        self.handle = self._ffi.NULL

    def _pack_own(
        self,
        session: Session | None,
        parameters: object,
        kernel: Weight,
        bias: Weight | None,
        scales: Weight | None,
        size: int,
        write: Callable[..., None],
    ) -> None:
        """Pack weights: in a session of the weights cache, if there is one."""
        self._session = session  # what it packed must live as long as the operator
        ffi = self._ffi
        if session is not None:
            layout = getattr(self._lib, self.layout)
            self._packed_weights = session.pack_own(
                self._kind(), parameters, kernel, bias, scales, layout, size, write
            )
            return
        arrays = [None if weight is None else weight.array() for weight in (kernel, bias, scales)]
        self._block = aligned(size)
        self._packed_weights = ffi.from_buffer(self._block)
        write(
            self._packed_weights,
            *(ffi.NULL if array is None else pointer(ffi, array) for array in arrays),
        )
        kernel.drop()


def requantizing(scales: Weight, requantized: Requantized) -> Weight:
    """Give what sums are multiplied by, from the scales of the weights."""
    scales = fitting(scales, requantized)
    given, made = np.float32(requantized.given.scale), np.float32(requantized.made.scale)

    def make() -> Array:
        array: Array = given * scales.array() / made
        return array

    known = scales.identity
    identity = digest("requantizing", known, given, made) if known else ""
    return Weight(scales.shape, scales.dtype, identity, make, scales.drop)


def checked_sums(inputs: int, what: str) -> None:
    """Raise `UnfitError` where sums over `inputs` products may not fit 32 bits."""
    if inputs > MOST_CHANNELS:
        raise UnfitError(f"sums over {inputs} {what} may not fit 32 bits")


def checked_elements(elements: int) -> int:
    """Check that int32 can number the elements of what a thread widens."""
    if elements >= _MOST_ELEMENTS:
        raise BackendError(f"{elements} elements of an image are needed at a time: too many")
    return elements


def line(size: int) -> int:
    """Round bytes up to whole cache lines."""
    return -(-size // 64) * 64


def even_bands(rows: int, most: int) -> tuple[int, int]:
    """Divide rows into bands of at most `most`; give the rows of a band, and how many there are."""
    count = -(-rows // max(1, min(rows, most)))
    band = -(-rows // count)
    return band, -(-rows // band)


def column_parts(outputs: int, tasks: int, threads: int, width: int = COLUMNS) -> tuple[int, int]:
    """Divide columns so that threads have enough to do; give the columns of a part, and parts.

    Args:
        outputs: columns.
        tasks: that there are already.
        threads: that compute.
        width: columns of a panel.
    """
    panels = -(-outputs // width)
    wanted = 1 if threads == 1 or tasks >= 4 * threads else -(-2 * threads // tasks)
    columns = -(-panels // min(panels, wanted)) * width
    return columns, -(-outputs // columns)


def target() -> int:
    """Give the code that runs, as ``NP_TARGET_*``."""
    return kernels.TARGETS.index(kernels.TARGET)


def float32(value: float) -> float:
    """Give a bound as the float32 number that C gets."""
    return math.copysign(math.inf, value) if math.isinf(value) else float(np.float32(value))
