"""Nodes that compute the identity, bit for bit."""

from __future__ import annotations

from narrowpass_constant_folding.identities.rules import identity_source

__all__ = ["identity_source"]
