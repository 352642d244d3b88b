"""The structural verifier of the IR, the signature of a model, and its fingerprint."""

from __future__ import annotations

from narrowpass_ir.verify._fingerprint import fingerprint
from narrowpass_ir.verify._signature import Signature, ValueSpec
from narrowpass_ir.verify._structure import verify

__all__ = ["Signature", "ValueSpec", "fingerprint", "verify"]
