"""What decoders of all runtimes are fed with."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import decoder
import numpy as np

Array = np.ndarray[Any, Any]

Token = Callable[[int, int], int]
"""Computes the token after another one, from it and the rows before."""

Prompt = Callable[[dict[str, Array]], float]
"""Computes the last logits of a prompt, and caches, from its feeds; returns seconds."""


def timed(run: Callable[[], object]) -> float:
    """Return the seconds of a run."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


Prefill = Callable[[dict[str, Array]], Mapping[str, Array]]
"""Computes the outputs of a prompt, by name, from its feeds."""


def folder_of(options: argparse.Namespace) -> tuple[Path, int | None]:
    """Return the folder of the decoder, and its positions where it needs more than usual."""
    needed = max([*options.depth, *options.prompt]) + options.tokens + 4
    if needed <= decoder.SIZES[options.size].positions:
        return options.folder / options.size, None
    positions = 1 << (needed - 1).bit_length()
    return options.folder / f"{options.size}-{positions}", positions


def feeds_of(token: int, rows: int) -> dict[str, Array]:
    """Return the feeds of one token, without caches."""
    return {
        "ids": np.array([[token]]),
        "positions": np.array([rows]),
        "mask": np.zeros((1, rows + 1), np.float32),
    }


def caches_of(options: argparse.Namespace, depth: int, prefill: Prefill) -> dict[str, Array]:
    """Return caches of so many rows: of a prompt, or random beyond the decoder's positions."""
    if depth == 0 or depth > decoder.SIZES[options.size].positions:
        return random_caches(options.size, depth)
    return next_caches(prefill(decoder.feeds(options.size, depth, None, 0)))


def random_caches(size: str, depth: int) -> dict[str, Array]:
    """Return caches of so many rows, by the names of their inputs."""
    found = decoder.feeds(size, 1, depth)
    return {name: value for name, value in found.items() if name.startswith("past.")}


def next_caches(outputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return the caches of the next run, by the names of their inputs."""
    return {f"past.{n.removesuffix('.out')}": v for n, v in outputs.items() if n != "logits"}
