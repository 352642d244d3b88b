"""Factors for channels: which constants take them, and which factors quantize best.

A value can be divided by a positive factor for each of its channels without changing what the
model computes, where all that makes the value and all that reads it can be scaled likewise.
"""

from __future__ import annotations

from narrowpass_int8_sym.channels.axes import Place
from narrowpass_int8_sym.channels.observe import Channels, ChannelStatistics, observe_channels
from narrowpass_int8_sym.channels.regions import Region, find_regions

__all__ = ["ChannelStatistics", "Channels", "Place", "Region", "find_regions", "observe_channels"]
