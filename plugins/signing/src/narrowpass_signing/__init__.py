"""Signatures of bundles, by sigstore's model-signing: `sign`, `verify_signature`, two commands.

This is the plugin's entry module, and the public one: a name is imported when it is first used.
model-signing takes 0.6 s to import: it is imported when a bundle is signed or verified.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from narrowpass import hookimpl

if TYPE_CHECKING:
    import click

    from narrowpass_signing.signatures import SIGNATURE, sign, verify_signature

__all__ = ["SIGNATURE", "narrowpass_commands", "sign", "verify_signature"]


@hookimpl
def narrowpass_commands() -> list[click.Command]:
    """Register ``narrowpass sign`` and ``narrowpass verify-signature``."""
    from narrowpass_signing import commands

    return [commands.sign, commands.verify_signature]


def __getattr__(name: str) -> object:
    """Import a public name."""
    if name not in ("SIGNATURE", "sign", "verify_signature"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.signatures"), name)
    globals()[name] = value
    return value
