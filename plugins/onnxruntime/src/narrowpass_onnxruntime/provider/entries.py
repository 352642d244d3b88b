"""Entries of a session's configuration that the provider knows."""

from __future__ import annotations

LEFT_ALONE = "narrowpass.left_alone"
"""1: the session stays on the providers that it names, where programs run on this one unasked."""
