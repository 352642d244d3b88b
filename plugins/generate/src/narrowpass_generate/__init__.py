"""Text generation: programs of decoders, sampled token by token.

This is the plugin's entry module, and the public one. It imports neither onnx nor numpy: a name is
imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from narrowpass import hookimpl

if TYPE_CHECKING:
    import click

    from narrowpass_generate.decoder import Decoder
    from narrowpass_generate.generation import generate, generate_all, stream
    from narrowpass_generate.results import Generation, Piece
    from narrowpass_generate.sampling import Sampling
    from narrowpass_generate.streams import Stream
    from narrowpass_generate.tokenizer import Tokenizer

_HOME = {
    "Decoder": "decoder",
    "Generation": "results",
    "Piece": "results",
    "Sampling": "sampling",
    "Stream": "streams",
    "Tokenizer": "tokenizer",
    "generate": "generation",
    "generate_all": "generation",
    "stream": "generation",
}

__all__ = [
    "Decoder",
    "Generation",
    "Piece",
    "Sampling",
    "Stream",
    "Tokenizer",
    "generate",
    "generate_all",
    "narrowpass_commands",
    "stream",
]


@hookimpl
def narrowpass_commands() -> list[click.Command]:
    """Register ``narrowpass generate`` and ``narrowpass chat``."""
    from narrowpass_generate.commands.chat import chat
    from narrowpass_generate.commands.generate import generate as command

    return [chat, command]


def __getattr__(name: str) -> object:
    """Import a public name."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value
