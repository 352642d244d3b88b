"""What tests load in place of all installed plugins."""

from __future__ import annotations

import importlib.metadata

REFERENCE = tuple(importlib.metadata.entry_points(group="narrowpass", name="reference"))
"""The entry point of the reference backend, which models are run and compared on."""

ANALYSIS = tuple(importlib.metadata.entry_points(group="narrowpass", name="analysis"))
"""The entry point of the commands that compare and measure."""
