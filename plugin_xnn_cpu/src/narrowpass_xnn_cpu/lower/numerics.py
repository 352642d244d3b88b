"""Which roundings kernels may choose for speed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Numerics:
    """Which roundings kernels may choose for speed.

    Attributes:
        winograd: whether float32 convolutions may be computed by Winograd's algorithm.
        deterministic: whether the bits of a row may not depend on the number of rows: no operands
            that are rounded to bfloat16 for many rows alone, as tiles of AMX multiply them, and no
            float16 arithmetic and no dot products for few.
    """

    winograd: bool = True
    deterministic: bool = False


DEFAULT = Numerics()
