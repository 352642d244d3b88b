"""Where the channels of a value lie."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir


@dataclass(frozen=True)
class Place:
    """Where the channels of a value lie.

    Attributes:
        value: the value.
        axis: counted from the end, as broadcasting does: -1 is the last.
    """

    value: ir.Value
    axis: int
