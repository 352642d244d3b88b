"""Compares rows of float32 and of int8 over the weights of a GGUF file: speed and logits.

    python benchmarks/imported/int8_rows.py MODEL.gguf [--threads 1] [--prompt 128] [--tokens 64]
        [--rounds 5] [--contexts 16] [--context 256]

Shown for each pipeline are the milliseconds of a prompt and of a token behind it, medians over
rounds in turns, and over the tokens of `pydoc_data.topics` in contexts of their own: the mean
Kullback-Leibler divergence from the logits of float32 rows in nats, and how often the most probable
token is the same. Needs ``narrowpass-gguf``, ``narrowpass-int4`` and ``tokenizers``.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pydoc_data.topics import topics
from typing import Any

import numpy as np
from tokenizers import Tokenizer

import narrowpass

Array = np.ndarray[Any, Any]
PIPELINES = ("fold,int4", "fold,int4{activations=dynamic}")


def contexts_of(bundle: narrowpass.Bundle, count: int, size: int) -> list[Array]:
    """Return pieces of text of `size` tokens each, int64 [1, size]."""
    tokenizer = Tokenizer.from_str(bundle.assets["tokenizer.json"].decode())
    ids = tokenizer.encode("\n".join(topics.values())[: count * size * 8]).ids
    return [np.array([ids[i * size : (i + 1) * size]]) for i in range(count)]


def log_probabilities(program: narrowpass.Program, ids: Array) -> Array:
    """Return the logarithms of probabilities behind each token of a context."""
    logits = program.session().run({"input_ids": ids}, "decode")["logits"][0].astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    found: Array = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return found


def seconds_of(program: narrowpass.Program, prompt: Array, tokens: int) -> tuple[float, float]:
    """Return the seconds of a prompt, and the median of a token behind it."""
    session = program.session()
    start = time.perf_counter()
    session.run({"input_ids": prompt}, "prefill")
    first = time.perf_counter() - start
    each = []
    for index in range(tokens + 4):
        start = time.perf_counter()
        session.run({"input_ids": prompt[:, index % prompt.shape[1]][None]}, "decode")
        each.append(time.perf_counter() - start)
    return first, statistics.median(each[4:])


def main() -> None:
    """Read the command line, measure and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("model", metavar="MODEL.gguf")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--contexts", type=int, default=16)
    parser.add_argument("--context", type=int, default=256)
    o = parser.parse_args()
    bundles = {text: narrowpass.build(o.model, text, target="xnn-cpu") for text in PIPELINES}
    programs = {
        text: narrowpass.load(bundle, "xnn-cpu", threads=o.threads)
        for text, bundle in bundles.items()
    }
    prompt = np.random.default_rng(0).integers(0, 1000, (1, o.prompt))
    taken: dict[str, list[tuple[float, float]]] = {text: [] for text in PIPELINES}
    for _ in range(o.rounds + 1):
        for text, program in programs.items():
            taken[text].append(seconds_of(program, prompt, o.tokens))
    contexts = contexts_of(bundles[PIPELINES[0]], o.contexts, o.context)
    divergences: dict[str, list[Array]] = {text: [] for text in PIPELINES}
    same: dict[str, list[Array]] = {text: [] for text in PIPELINES}
    for ids in contexts:
        wanted = log_probabilities(programs[PIPELINES[0]], ids)
        for text, program in programs.items():
            found = log_probabilities(program, ids)
            divergences[text].append((np.exp(wanted) * (wanted - found)).sum(-1))
            same[text].append(wanted.argmax(-1) == found.argmax(-1))
    print(f"{'pipeline':32} {'prompt':>8} {'token':>8} {'KL':>9} {'same':>8}")
    for text in PIPELINES:
        first, each = (
            statistics.median(times) * 1e3 for times in zip(*taken[text][1:], strict=True)
        )
        mean, equal = np.mean(divergences[text]), np.mean(same[text])
        print(f"{text:32} {first:8.1f} {each:8.2f} {mean:9.2e} {equal * 100:6.1f} %", flush=True)


if __name__ == "__main__":
    main()
