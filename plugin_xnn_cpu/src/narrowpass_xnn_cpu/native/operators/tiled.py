"""Operators whose kernels are ours, and what they share.

They take the same arguments as those of XNNPACK. Those of int8 give the same bytes: sums of int32,
times one float32 number for each output, rounded to even and clamped.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native import kernels
from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.operators.base import Operator
from narrowpass_xnn_cpu.native.operators.int8 import Requantized, fitting
from narrowpass_xnn_cpu.native.operators.quantized import MOST_CHANNELS, UnfitError
from narrowpass_xnn_cpu.native.tape import aligned
from narrowpass_xnn_cpu.weights.session import Session, pointer
from narrowpass_xnn_cpu.weights.weight import Array, Weight, digest

COLUMNS = 16
"""Of a panel: NP_INT8_NR."""
ROWS = 6
"""Of the largest tile: NP_INT8_ROWS."""
BAND_BYTES = 1 << 17
"""What a thread widens at a time; beside a panel of weights it stays in the second cache."""
_MOST_ELEMENTS = 1 << 31
"""Places in what is read at a time are int32."""


@dataclass(frozen=True)
class Layout:
    """How packed weights of int8 lie, and what is multiplied with them; see ``gemm/int8/panel.h``.

    Attributes:
        name: of the layout.
        element: bytes of what is multiplied.
        group: elements that are multiplied and added at a time.
        rows: of the largest tile.
        columns: of the widest one.
        band_bytes: what a thread brings into this form at a time; beside a panel of weights it
            stays in the second cache.
    """

    name: str
    element: int
    group: int
    rows: int
    columns: int
    band_bytes: int

    def groups(self, elements: int) -> int:
        """Give the groups that so many elements take."""
        return -(-elements // self.group)


PAIRS = Layout("pairs", 2, 2, ROWS, COLUMNS, BAND_BYTES)
"""Of int16, for processors that multiply these and add them by twos."""
QUADS = Layout("quads", 1, 4, 14, 64, 3 << 16)
"""Of bytes, for processors that multiply these and add them by fours."""
LAYOUT: Layout | None = None
"""The layout of operators that are made; None for that of this processor."""


def layout() -> Layout:
    """Give the layout of operators that are made now."""
    if LAYOUT is not None:
        return LAYOUT
    isa = extension().lib.np_isa_for(kernels.code())
    return QUADS if isa >= kernels.TARGETS.index("avx512vnni") else PAIRS


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
        self._block: Array | None = None

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


def packers(layout: Layout) -> tuple[Callable[..., int], Callable[..., None]]:
    """Give the functions of C that tell how large packed weights are, and pack them."""
    lib = extension().lib
    if layout is QUADS:
        return lib.np_int8_vnni_packed_size, lib.np_int8_vnni_pack
    return lib.np_int8_packed_size, lib.np_int8_pack


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


def even_bands(rows: int, most: int, whole: int = 1) -> tuple[int, int]:
    """Divide rows into bands of at most `most`; give the rows of a band, and how many there are.

    Bands have a multiple of `whole` rows, where `most` has one and there are several.
    """
    most = most // whole * whole or most
    count = -(-rows // max(1, min(rows, most)))
    band = -(-rows // count)
    if count > 1 and most % whole == 0:
        band = -(-band // whole) * whole
    return band, -(-rows // band)


def column_parts(outputs: int, tasks: int, threads: int, width: int = COLUMNS) -> tuple[int, int]:
    """Divide columns so that threads have enough to do; give the columns of a part, and parts.

    Args:
        outputs: columns.
        tasks: that there are already.
        threads: that compute.
        width: columns that are not divided.
    """
    panels = -(-outputs // width)
    wanted = 1 if threads == 1 or tasks >= 4 * threads else -(-2 * threads // tasks)
    columns = max(1, panels // wanted) * width
    return columns, -(-outputs // columns)


@functools.lru_cache(maxsize=4096)
def divide(
    rows: int, most: int, whole: int, images: int, panels: int, threads: int
) -> tuple[int, int, int, int]:
    """Divide rows and panels into tasks so that threads end at about the same time.

    Tasks are of a band of rows and some panels. Bands are no higher than by `even_bands`; panels
    are divided where there are few bands, and where that makes threads more even.

    Args:
        rows: of an image of the output.
        most: rows of a band.
        whole: as of `even_bands`.
        images: that are divided alike.
        panels: of columns.
        threads: that compute.

    Returns:
        The rows of a band, how many bands an image has, the panels of a part, and parts.
    """
    least = even_bands(rows, most, whole)
    if threads == 1 or images * least[1] >= 16 * threads:
        return *least, panels, 1
    found: list[tuple[bool, float, tuple[int, int, int, int]]] = []
    for count in range(least[1], min(rows, least[1] + threads) + 1):
        band, bands = least if count == least[1] else even_bands(rows, -(-rows // count), whole)
        for wanted in range(1, min(panels, 2 * threads) + 1):
            part = -(-panels // wanted)
            parts = -(-panels // part)
            tasks = images * bands * parts
            # Several tasks for each thread: a slower one leaves some of its own to the others. Each
            # begins with what is the same for all of its columns.
            time = -(-tasks // threads) * band * part * (1 + tasks / 200)
            found.append((tasks < 2 * threads, time, (band, bands, part, parts)))
    return min(found)[2]


def target() -> int:
    """Give the code that runs, as ``NP_TARGET_*``."""
    return kernels.code()


def float32(value: float) -> float:
    """Give a bound as the float32 number that C gets."""
    return math.copysign(math.inf, value) if math.isinf(value) else float(np.float32(value))
