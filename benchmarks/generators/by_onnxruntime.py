"""Decoders in onnxruntime, with MatMulNBits of 4 bits and caches as feeds."""

from __future__ import annotations

import argparse
from typing import Any

from generators.common import (
    Array,
    Prompt,
    Token,
    caches_of,
    feeds_of,
    folder_of,
    next_caches,
    timed,
)

SUFFIXES = {"onnxruntime": "4bits-dynamic", "onnxruntime-0": "4bits"}
"""By form: with ``accuracy_level`` 4, rows in int8, and with 0."""


class Decoder:
    """A phase of the decoder.

    Args:
        options: of the command line.
        form: a key of `SUFFIXES`.
        phase: ``prefill`` or ``decode``.
    """

    def __init__(self, options: argparse.Namespace, form: str, phase: str) -> None:
        import onnxruntime

        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = options.threads
        folder, _ = folder_of(options)
        path = folder / f"{phase}-{SUFFIXES[form]}.onnx"
        self._session = onnxruntime.InferenceSession(str(path), settings)
        self._names = [value.name for value in self._session.get_outputs()]

    def run(self, feeds: dict[str, Array]) -> dict[str, Array]:
        """Return the outputs by name."""
        return dict(zip(self._names, self._session.run(self._names, feeds), strict=True))


def token_of(options: argparse.Namespace, depth: int, form: str) -> Token:
    """Return the next token of a form."""
    prefill = Decoder(options, form, "prefill")
    caches: dict[str, Any] = caches_of(options, depth, prefill.run)
    del prefill
    decode = Decoder(options, form, "decode")

    def token(last: int, rows: int) -> int:
        outputs = decode.run({**feeds_of(last, rows), **caches})
        caches.update(next_caches(outputs))
        return int(outputs["logits"].argmax())

    return token


def prompt_of(options: argparse.Namespace, form: str) -> Prompt:
    """Return the prompt of a form."""
    prefill = Decoder(options, form, "prefill")
    return lambda feeds: timed(lambda: prefill.run(feeds))
