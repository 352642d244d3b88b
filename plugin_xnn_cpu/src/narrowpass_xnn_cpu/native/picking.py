"""Parameters of copies through tables of indices, checked and written for C."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native import calls
from narrowpass_xnn_cpu.native.library import extension


def pick(tables: Sequence[np.ndarray[Any, Any]], strides: Sequence[int], element_size: int) -> Any:
    """Return the parameters of ``NP_INDEXED_COPY``.

    Args:
        tables: for each axis of the output, the indices along that of the input.
        strides: of the input, in elements.
        element_size: in bytes.

    Raises:
        BackendError: no axes or too many, or elements of a size that the kernel has not.
    """
    most = extension().lib.NP_MAX_DIMS
    if not 1 <= len(tables) <= most:
        raise BackendError(f"a kernel takes 1 to {most} dimensions, not {len(tables)}")
    if element_size not in (1, 2, 4, 8):
        raise BackendError(f"a kernel takes elements of 1, 2, 4 or 8 bytes, not {element_size}")
    last = tables[-1]
    # The longest part of a row that lies as it is in the input.
    ends = [0, *(np.flatnonzero(np.diff(last) != 1) + 1).tolist(), last.size]
    plain, first = 0, 0
    if strides[-1] == 1:
        plain, first = max((end - at, at) for at, end in itertools.pairwise(ends))
    sizes = [table.size for table in tables]
    fields = {
        "rank": len(tables),
        "sizes": sizes,
        "in_strides": list(strides),
        "starts": list(itertools.accumulate(sizes[:-1], initial=0)),
        "first": first,
        "plain": plain,
        "element_size": element_size,
        "tables": [index for table in tables for index in table.tolist()],
    }
    return calls.parameters("NP_INDEXED_COPY", fields)
