"""Types of the arrays that a run takes and returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

Feeds = Mapping[str, Any]
"""Arrays by input name: of numpy, or of any library that `narrowpass_ir.data.arrays` reads."""

Outputs = dict[str, "np.ndarray[Any, Any]"]
