"""The kernel table: which kernel is selected for a problem on a processor, and why.

`select` and `candidates` depend on their arguments only: on a `Target`, the processor's or another
one. They neither pack nor load the native library. `create_convolution` and `create_matmul` pack
for this processor. `describe` prints the table.
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
