"""Models that nobody here tuned for: of packages, of architectures, and their quantized forms."""

from __future__ import annotations

from gallery.model import Model, collect

__all__ = ["Model", "collect"]
