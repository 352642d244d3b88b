"""The channel axis of a value."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir


@dataclass(frozen=True)
class ChannelAxis:
    """A value with its channel axis.

    Attributes:
        value: the value.
        axis: counted from the end, as broadcasting does: -1 is the last.
    """

    value: ir.Value
    axis: int
