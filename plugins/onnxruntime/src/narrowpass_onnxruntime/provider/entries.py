"""Entries of a session's configuration that the provider knows."""

from __future__ import annotations

LEFT_ALONE = "narrowpass.left_alone"
"""1: the session stays on the providers that it names, where programs run on this one unasked."""

ADDED = "narrowpass.added_initializer."
"""With the name behind it: `SessionOptions.add_initializer` was called for this initializer."""

SPINNING = "session.intra_op.allow_spinning"
"""onnxruntime's: 0 where its threads do not spin while they wait for work."""
