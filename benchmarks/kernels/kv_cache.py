"""Times what the caches of a decoder cost alone, as plain inputs and outputs of one token.

    python benchmarks/kernels/kv_cache.py [--layers 12] [--heads 12] [--past 128] [--depth 64]
        [--threads 1]
        [--rounds 30]

A model of nothing but attention over past and new rows, whose concatenated KV caches are outputs.
Shown are the medians of the steps that attend and copy, and of numpy's copies of as many bytes
between arrays that are there, with the bytes that are read and written in a second. Other memory is
written in each round, but a run that is not timed comes before the one that is: what surely comes
from memory are caches that the processor's have no room for, such as those of ``--past 1024``.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
from onnx import parser

import narrowpass

OTHERS = 64 << 20


def text(layers: int, heads: int, depth: int) -> str:
    """Return a model of these layers."""
    given, built, body = [], [], []
    for i in range(layers):
        given.append(f"float[1, {heads}, 1, {depth}] q{i}")
        built.append(f"float[1, {heads}, 1, {depth}] y{i}")
        for x in "kv":
            given.append(f"float[1, {heads}, past, {depth}] past_{x}{i}")
            given.append(f"float[1, {heads}, 1, {depth}] new_{x}{i}")
            built.append(f"float[1, {heads}, total, {depth}] {x}{i}")
            body.append(f"{x}{i} = Concat<axis = 2>(past_{x}{i}, new_{x}{i})")
        body.append(f"t{i} = Transpose<perm = [0, 1, 3, 2]>(k{i}) s{i} = MatMul(q{i}, t{i})")
        body.append(f"p{i} = Softmax<axis = -1>(s{i}) y{i} = MatMul(p{i}, v{i})")
    head = '<ir_version: 9, opset_import: ["": 18]> g'
    return f"{head} ({', '.join(given)}) => ({', '.join(built)}) {{ {' '.join(body)} }}"


def main() -> None:
    """Read the command line, measure and print."""
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    for name, default in (("layers", 12), ("heads", 12), ("past", 128), ("depth", 64)):
        options.add_argument(f"--{name}", type=int, default=default)
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--rounds", type=int, default=30)
    o = options.parse_args()
    bundle = narrowpass.build(parser.parse_model(text(o.layers, o.heads, o.depth)), "")
    rng = np.random.default_rng(0)
    feeds = {}
    for i in range(o.layers):
        for name, rows in (("q", 1), ("past_k", o.past), ("past_v", o.past)):
            shape = 1, o.heads, rows, o.depth
            feeds[f"{name}{i}"] = rng.standard_normal(shape).astype(np.float32)
        feeds |= {f"new_{x}{i}": feeds[f"q{i}"] for x in "kv"}
    past = [array for name, array in feeds.items() if name.startswith("past")]
    copies = [np.ones_like(array) for array in past]
    others = np.ones(OTHERS // 4, np.float32)
    steps, plain = [], []
    with narrowpass.load(bundle, "xnn-cpu", threads=o.threads) as program:
        for _ in range(o.rounds):
            others += 1
            steps.append(sum(row.seconds for row in program.profile(feeds, runs=1)))
            others += 1
            start = time.perf_counter()
            for array, copy in zip(past, copies, strict=True):
                np.copyto(copy, array)
            plain.append(time.perf_counter() - start)
    size = 2 * sum(array.nbytes for array in past)
    print(f"{size / 1e6:.1f} MB are read and written")
    for name, seconds in (("attention and caches", steps), ("numpy's copies", plain)):
        median = statistics.median(seconds)
        print(f"{name:22} {median * 1e3:7.3f} ms {size / median / 1e9:6.1f} GB/s")


if __name__ == "__main__":
    main()
