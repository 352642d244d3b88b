"""Signatures of bundles, by sigstore's model-signing: `sign`, `verify_signature`, two commands.

model-signing takes 0.6 s to import: it is imported when a bundle is signed or verified.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from narrowpass import hookimpl
from narrowpass_signing.signatures import SIGNATURE, sign, verify_signature

if TYPE_CHECKING:
    import click

__all__ = ["SIGNATURE", "narrowpass_commands", "sign", "verify_signature"]


@hookimpl
def narrowpass_commands() -> list[click.Command]:
    """Register ``narrowpass sign`` and ``narrowpass verify-signature``."""
    from narrowpass_signing import commands

    return [commands.sign, commands.verify_signature]
