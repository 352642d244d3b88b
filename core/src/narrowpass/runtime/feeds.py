"""Checks of what a caller feeds to a method: `narrowpass_ir.data.feeds`."""

from __future__ import annotations

from narrowpass_ir.data.feeds import FeedChecker, FeedSpec

__all__ = ["FeedChecker", "FeedSpec"]
