"""Types of the arrays that a run takes and returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

Feeds = Mapping[str, "np.ndarray[Any, Any]"]
Outputs = dict[str, "np.ndarray[Any, Any]"]
