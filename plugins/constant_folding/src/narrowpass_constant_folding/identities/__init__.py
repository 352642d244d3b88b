"""Which nodes give back what they are given, bit for bit."""

from __future__ import annotations

from narrowpass_constant_folding.identities.rules import identity_source

__all__ = ["identity_source"]
