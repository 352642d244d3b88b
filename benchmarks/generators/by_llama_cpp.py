"""Decoders in llama.cpp, timed by its own ``llama-bench``."""

from __future__ import annotations

import argparse
import json
import subprocess
from typing import Any


class LlamaError(Exception):
    """``llama-bench`` failed; the message is its last line."""


def _bench(options: argparse.Namespace, *arguments: str) -> Any:
    if options.llama_bench is None:
        raise LlamaError("pass --llama-bench BIN MODEL.gguf")
    binary, model = options.llama_bench
    command = [binary, "-m", model, "-t", str(options.threads), "-o", "json"]
    command += arguments
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
        raise LlamaError(lines[-1][:120])
    return json.loads(done.stdout)[0]


def token_seconds(options: argparse.Namespace, depth: int) -> float:
    """Return the seconds of a token after so many, the mean of ``--tokens``.

    Its flash attention takes longer for one row, and less time for many: it is off here.
    """
    tokens = str(options.tokens)
    found = _bench(options, "-p", "0", "-n", tokens, "-r", "1", "-d", str(depth), "-fa", "0")
    return float(found["avg_ns"]) / 1e9 / options.tokens


def prompt_seconds(options: argparse.Namespace, length: int, runs: int) -> float:
    """Return the seconds of a prompt, the median of some runs."""
    found = _bench(options, "-p", str(length), "-n", "0", "-r", str(runs))
    return float(sorted(found["samples_ns"])[runs // 2]) / 1e9
