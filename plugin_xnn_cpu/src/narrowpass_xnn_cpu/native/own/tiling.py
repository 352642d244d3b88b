"""How work is divided into row tiles and column parts, for caches and threads."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native.operator import Fields
from narrowpass_xnn_cpu.native.problems.convolution import Windows

COLUMNS = 16
"""Columns of a panel that are not divided, where no other number is given."""
_MOST_ELEMENTS = 1 << 31
"""Offsets in what is read at a time are int32."""


def checked_elements(elements: int) -> int:
    """Check that int32 can number the elements of what a thread copies."""
    if elements >= _MOST_ELEMENTS:
        raise BackendError(f"{elements} elements of an image are needed at a time: too many")
    return elements


def line(size: int) -> int:
    """Round bytes up to whole cache lines."""
    return -(-size // 64) * 64


def offsets(start: int, **sizes: int) -> dict[str, int]:
    """Return the offset of each piece of scratch memory, and ``thread_scratch`` behind the last.

    Args:
        start: of the first piece.
        sizes: bytes of the pieces, in order, each rounded up to cache lines.
    """
    found = {}
    for name, size in sizes.items():
        found[f"{name}_offset"] = start
        start += line(size)
    return {**found, "thread_scratch": start}


def even_bands(rows: int, most: int, whole: int = 1) -> tuple[int, int]:
    """Divide rows into bands of at most `most`; return the rows of a band, and how many there are.

    Bands have a multiple of `whole` rows, where `most` has one and there are several.
    """
    most = most // whole * whole or most
    count = -(-rows // max(1, min(rows, most)))
    band = -(-rows // count)
    if count > 1 and most % whole == 0:
        band = -(-band // whole) * whole
    return band, -(-rows // band)


def column_parts(outputs: int, tasks: int, threads: int, width: int = COLUMNS) -> tuple[int, int]:
    """Divide columns so that threads have enough to do; return the columns of a part, and parts.

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
    are divided where there are few bands, and where that balances threads better.

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


def image_fields(image: Sequence[int], out: tuple[int, int]) -> Fields:
    """Return the fields of all kernels of images: sizes of [N, H, W, C] and of the output."""
    return {"image": (*image, *out)}


def window_fields(windows: Windows) -> Fields:
    """Return the fields of a kernel window and how it moves."""
    movement = windows.movement
    return {
        "kernel": windows.size,
        "dilations": tuple(movement.dilations),
        "pads": tuple(movement.pads[:2]),
    }


def run_fields(windows: Windows) -> Fields:
    """Return the fields of a kernel that reads a kernel window as runs of dense elements."""
    runs, run_length = windows.runs
    return {
        **window_fields(windows),
        "outputs": windows.outputs,
        "groups": windows.movement.groups,
        "runs": runs,
        "run_length": run_length,
    }


def run_scratch(windows: Windows, copied: int, count: int) -> dict[str, int]:
    """Return a thread's scratch memory: a copy of so many bytes, then offsets of its elements.

    These are of `count` output pixels, and of the runs in one kernel window.
    """
    return offsets(line(copied), pixels=4 * count, runs=4 * windows.runs[0])
