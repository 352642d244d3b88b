"""Cache blocking and threading: row tiles, column parts, and offsets within scratch memory."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native.operator import Fields
from narrowpass_xnn_cpu.native.problems.convolution import ConvGeometry

NR = 16
"""NR: columns of a panel, which is not split between threads, unless a kernel has its own."""
_MOST_ELEMENTS = 1 << 31
"""Offsets of elements within the image rows of a task are int32."""


def checked_elements(elements: int) -> int:
    """Check that int32 offsets reach all elements of the image rows that a task reads."""
    if elements >= _MOST_ELEMENTS:
        raise BackendError(
            f"a task reads {elements} elements of an image: too many for int32 offsets"
        )
    return elements


def align_to_line(size: int) -> int:
    """Round bytes up to whole cache lines."""
    return -(-size // 64) * 64


def scratch_offsets(start: int, **sizes: int) -> dict[str, int]:
    """Lay out buffers in scratch memory; return the offset of each and ``thread_scratch``, the end.

    Args:
        start: offset of the first buffer.
        sizes: bytes of the buffers, in order, each rounded up to whole cache lines.
    """
    fields = {}
    for name, size in sizes.items():
        fields[f"{name}_offset"] = start
        start += align_to_line(size)
    return {**fields, "thread_scratch": start}


def even_row_tiles(rows: int, most: int, multiple: int = 1) -> tuple[int, int]:
    """Divide rows into tiles of at most `most` rows; return the rows of a tile, and the tiles.

    Where there are several tiles, their rows are a multiple of `multiple`, if `most` allows that.
    """
    most = most // multiple * multiple or most
    count = -(-rows // max(1, min(rows, most)))
    row_tile = -(-rows // count)
    if count > 1 and most % multiple == 0:
        row_tile = -(-row_tile // multiple) * multiple
    return row_tile, -(-rows // row_tile)


def column_parts(outputs: int, tasks: int, threads: int, width: int = NR) -> tuple[int, int]:
    """Divide output columns into parts where there are too few tasks for the threads.

    Args:
        outputs: output columns.
        tasks: tasks that rows have been divided into.
        threads: threads that compute.
        width: columns of a panel; a part is a whole number of panels.

    Returns:
        The columns of a part, and the number of parts.
    """
    panels = -(-outputs // width)
    wanted = 1 if threads == 1 or tasks >= 4 * threads else -(-2 * threads // tasks)
    columns = max(1, panels // wanted) * width
    return columns, -(-outputs // columns)


@functools.lru_cache(maxsize=4096)
def balance_tasks(
    rows: int, most: int, multiple: int, images: int, panels: int, threads: int
) -> tuple[int, int, int, int]:
    """Divide rows and panels into tasks so that threads finish at about the same time.

    A task is a row tile times a part of the panels. Row tiles are no higher than those of
    `even_row_tiles`; panels are divided where there are few row tiles, and where that balances
    threads better.

    Args:
        rows: output rows of an image.
        most: largest row tile.
        multiple: as in `even_row_tiles`.
        images: number of images; all are divided alike.
        panels: number of column panels.
        threads: threads that compute.

    Returns:
        The rows of a row tile, the row tiles of an image, the panels of a part, and the parts.
    """
    least = even_row_tiles(rows, most, multiple)
    if threads == 1 or images * least[1] >= 16 * threads:
        return *least, panels, 1
    found: list[tuple[bool, float, tuple[int, int, int, int]]] = []
    for count in range(least[1], min(rows, least[1] + threads) + 1):
        row_tile, row_tiles = (
            least if count == least[1] else even_row_tiles(rows, -(-rows // count), multiple)
        )
        for wanted in range(1, min(panels, 2 * threads) + 1):
            part = -(-panels // wanted)
            parts = -(-panels // part)
            tasks = images * row_tiles * parts
            # Several tasks for each thread, so that others take over those of a slow one. A task
            # costs something to start: it copies or indexes its image rows.
            time = -(-tasks // threads) * row_tile * part * (1 + tasks / 200)
            found.append((tasks < 2 * threads, time, (row_tile, row_tiles, part, parts)))
    return min(found)[2]


def image_fields(image: Sequence[int], out: tuple[int, int]) -> Fields:
    """Return the fields that all kernels over images have: [N, H, W, C], and the output's size."""
    return {"image": (*image, *out)}


def kernel_fields(geometry: ConvGeometry) -> Fields:
    """Return the fields of kernel size, dilations and pads."""
    attributes = geometry.attributes
    return {
        "kernel": geometry.kernel_size,
        "dilations": tuple(attributes.dilations),
        "pads": tuple(attributes.pads[:2]),
    }


def indirect_convolution(
    geometry: ConvGeometry, image: Fields, copied: int, **fields: Any
) -> dict[str, Any]:
    """Return the fields of an indirect convolution, ``geometry`` and ``thread_scratch``.

    Args:
        geometry: the convolution's.
        image: `image_fields`.
        copied: bytes of the copy of image rows, which scratch memory begins with; there are int32
            offsets of the output pixels and of the contiguous runs of a kernel window behind it.
        fields: of ``np_convolution_geometry``: what differs between kernels.
    """
    runs, run_length = geometry.runs
    count = fields["row_tile"] * image["image"][-1]
    scratch = scratch_offsets(align_to_line(copied), pixels=4 * count, runs=4 * runs)
    size = scratch.pop("thread_scratch")
    common = {
        **image,
        **kernel_fields(geometry),
        **scratch,
        "outputs": geometry.outputs,
        "groups": geometry.attributes.groups,
        "picks": (1, 1),
        "runs": runs,
        "run_length": run_length,
    }
    return {"geometry": common | fields, "thread_scratch": size}
