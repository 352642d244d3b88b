"""The kernel table: which kernel computes a problem on a processor, and why.

`select` and `candidates` are pure: they take a `Target`, the processor's or another one, and never
pack nor load the native library. `create_convolution` and `create_matmul` pack for this processor.
`describe` prints the table.
"""

from __future__ import annotations

from narrowpass_xnn_cpu.native.table.describe import describe
from narrowpass_xnn_cpu.native.table.row import Candidate, Row
from narrowpass_xnn_cpu.native.table.selection import (
    AnyConvolution,
    AnyMatmul,
    candidates,
    create_convolution,
    create_matmul,
    select,
)
from narrowpass_xnn_cpu.native.target import Target

__all__ = [
    "AnyConvolution",
    "AnyMatmul",
    "Candidate",
    "Row",
    "Target",
    "candidates",
    "create_convolution",
    "create_matmul",
    "describe",
    "select",
]
