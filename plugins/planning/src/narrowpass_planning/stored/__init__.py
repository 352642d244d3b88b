"""Compiled methods on disk: what planning decided, so that another process need not plan."""

from narrowpass_planning.stored.storage import NotStorableError, StaleError, StepStorage

__all__ = ["NotStorableError", "StaleError", "StepStorage"]
