"""Decoders in narrowpass: by sessions, by narrowpass-generate, and with caches as feeds."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any
from unittest import mock

import decoder

import narrowpass
from generators.common import (
    Prompt,
    Token,
    caches_of,
    feeds_of,
    folder_of,
    next_caches,
    random_caches,
    timed,
)

SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "top-p": {"temperature": 0.8, "top_p": 0.9},
}


def bundle_of(options: argparse.Namespace) -> Path:
    """Return the bundle of both phases, built where it is missing."""
    (folder, positions), pipeline = folder_of(options), options.pipeline
    name = "".join(c if c.isalnum() else "-" for c in pipeline)
    path = folder / f"both-{name}.narrow"
    if not path.exists():
        prefill, decode = decoder.build(folder, options.size, tied=True, positions=positions)
        methods = {"prefill": str(prefill), "decode": str(decode)}
        narrowpass.build(methods, pipeline, out=path, target="xnn-cpu")
    return path


def _program(options: argparse.Namespace) -> narrowpass.Program:
    return narrowpass.load(bundle_of(options), "xnn-cpu", threads=options.threads)


def by_session(options: argparse.Namespace, depth: int, kernels: list[float]) -> Token:
    """Return the next token of a session; the seconds of kernels are appended to `kernels`."""
    session = _program(options).session(options.cache)
    if depth > decoder.SIZES[options.size].positions:
        session.restore(random_caches(options.size, depth))
    elif depth:
        session.run(decoder.feeds(options.size, depth, None, 0), "prefill")
    time_kernels(kernels)

    def token(last: int, rows: int) -> int:
        outputs = session.run(feeds_of(last, rows), "decode")
        return int(outputs["logits"].argmax())

    return token


def prompt_of_session(options: argparse.Namespace) -> Prompt:
    """Return the prompt of a session."""
    session = _program(options).session(options.cache)

    def prompt(feeds: dict[str, Any]) -> float:
        session.reset()
        return timed(lambda: session.run(feeds, "prefill"))

    return prompt


def time_kernels(kernels: list[float]) -> None:
    """Append the seconds of each run of kernels to a list."""
    from narrowpass_xnn_cpu.native.runtime import tape

    run = tape.Tape.run

    def timed(self: Any, *args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        result = run(self, *args, **kwargs)
        kernels.append(time.perf_counter() - start)
        return result

    # The tape has no hook: its method is replaced in this process, which does nothing else.
    mock.patch.object(tape.Tape, "run", timed).start()


def by_generate(options: argparse.Namespace, depth: int, kernels: list[float]) -> Token:
    """Return the next token of narrowpass-generate; the last token and the rows are its own."""
    from narrowpass_generate import Sampling, stream

    prompt = decoder.feeds(options.size, max(depth, 1), None, 0)["ids"]
    sampling = Sampling(**SAMPLINGS[options.sampling], seed=0)
    positions = decoder.SIZES[options.size].positions
    pieces = stream(_program(options), prompt, sampling, tokens=positions)
    next(pieces)  # the prompt's
    time_kernels(kernels)
    return lambda last, rows: next(pieces).token


def by_feeds(options: argparse.Namespace, depth: int, _: list[float]) -> Token:
    """Return the next token of a program whose caches are feeds."""
    program = _program(options)
    caches = caches_of(options, depth, lambda feeds: program.run(feeds, "prefill"))

    def token(last: int, rows: int) -> int:
        outputs = program.run({**feeds_of(last, rows), **caches}, "decode")
        caches.update(next_caches(outputs))
        return int(outputs["logits"].argmax())

    return token


def prompt_of_feeds(options: argparse.Namespace) -> Prompt:
    """Return the prompt of a program."""
    program = _program(options)

    return lambda feeds: timed(lambda: program.run(feeds, "prefill"))
