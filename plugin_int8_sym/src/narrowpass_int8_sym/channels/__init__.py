"""Per-channel scaling of values (weight equalization): where it is possible, and by which factors.

A value can be divided by a positive factor for each of its channels without changing what the
model computes, where its producers can be divided, and its consumers multiplied, by the same
factors.
"""

from __future__ import annotations

from narrowpass_int8_sym.channels.operand import ChannelAxis
from narrowpass_int8_sym.channels.regions import Region, find_regions
from narrowpass_int8_sym.channels.statistics import (
    ChannelStatistics,
    SplitStatistics,
    observe_channels,
)

__all__ = [
    "ChannelAxis",
    "ChannelStatistics",
    "Region",
    "SplitStatistics",
    "find_regions",
    "observe_channels",
]
