"""Times attention of one token over KV caches of each type, in a session.

    python benchmarks/kernels/narrow_caches.py [--heads 24] [--groups 24] [--depth 64]
        [--past 2048 8192 16384] [--rows 1] [--threads 1] [--rounds 15]
        [--dtype float32 float16 bfloat16 int8] [--warm]

A model of nothing but attention over past and new rows. Shown are the medians of its kernels, the
append included, with the bytes of keys, values and scales that are read in a second; beside them,
what a matmul with a vector reads of as many bytes. Types take turns, and other memory is written
before each turn. ``--rows`` is for a prompt: a causal mask, and queries of so many rows. With
``--warm`` no other memory is written: what fits the processor's caches shows the time of computing.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import parser

import narrowpass
from narrowpass_xnn_cpu.native.runtime import tape

OTHERS = 64 << 20
BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}


def text(heads: int, groups: int, depth: int) -> str:
    """Return the model."""
    each = heads // groups
    return f"""
    <ir_version: 9, opset_import: ["": 18]>
    g (float[1, {groups}, {each}, S, {depth}] q, float[1, {groups}, S, {depth}] k,
       float[1, {groups}, S, {depth}] v, float[S, T] mask,
       float[1, {groups}, P, {depth}] past_k, float[1, {groups}, P, {depth}] past_v)
        => (float[1, {groups}, {each}, S, {depth}] y, float[1, {groups}, T, {depth}] all_k,
            float[1, {groups}, T, {depth}] all_v)
        <int64[1] two = {{2}}, float scale = {{{depth**-0.5}}}> {{
        all_k = Concat <axis = 2> (past_k, k) all_v = Concat <axis = 2> (past_v, v)
        ku = Unsqueeze(all_k, two) vu = Unsqueeze(all_v, two)
        t = Transpose <perm = [0, 1, 2, 4, 3]> (ku)
        s0 = MatMul(q, t) s1 = Mul(s0, scale) s2 = Add(s1, mask)
        p = Softmax <axis = -1> (s2) y = MatMul(p, vu)
    }}"""


def reader(size: int, threads: int) -> Callable[[], float]:
    """Return a function that reads `size` bytes, and returns the seconds."""
    array = np.ones((max(1, size // 4096), 1024), np.float32)
    vector = np.ones(1024, np.float32)
    parts = np.array_split(array, threads)

    def read() -> float:
        workers = [threading.Thread(target=np.dot, args=(part, vector)) for part in parts[1:]]
        start = time.perf_counter()
        for worker in workers:
            worker.start()
        np.dot(parts[0], vector)
        for worker in workers:
            worker.join()
        return time.perf_counter() - start

    return read


class Kernels:
    """The seconds of kernels of a session's runs, by a tape whose method is replaced."""

    def __init__(self) -> None:
        self.seconds = 0.0
        run = tape.Tape.run

        def timed(this: Any, *args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            result = run(this, *args, **kwargs)
            self.seconds = time.perf_counter() - start
            return result

        # The tape has no hook: its method is replaced in this process, which does nothing else.
        tape.Tape.run = timed  # type: ignore[method-assign]


def main() -> None:
    """Read the command line, measure and print."""
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    for name, default in (("heads", 24), ("groups", 24), ("depth", 64), ("rows", 1)):
        options.add_argument(f"--{name}", type=int, default=default)
    options.add_argument("--past", type=int, nargs="+", default=[2048, 8192, 16384])
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--rounds", type=int, default=15)
    options.add_argument("--dtype", nargs="+", choices=BYTES, default=list(BYTES))
    options.add_argument("--warm", action="store_true")
    o = options.parse_args()
    bundle = narrowpass.build(parser.parse_model(text(o.heads, o.groups, o.depth)), "")
    kernels, rng = Kernels(), np.random.default_rng(0)
    others = np.ones(0 if o.warm else OTHERS // 4, np.float32)
    row = 1, o.groups, o.rows, o.depth
    feeds = {x: rng.standard_normal(row).astype(np.float32) for x in "kv"}
    queries = 1, o.groups, o.heads // o.groups, o.rows, o.depth
    feeds["q"] = rng.standard_normal(queries).astype(np.float32)
    print(f"{'past':>6} {'type':9} {'MB':>6} {'ms':>8} {'GB/s':>6} {'read, ms':>9} {'GB/s':>6}")
    with narrowpass.load(bundle, "xnn-cpu", threads=o.threads) as program:
        for past in o.past:
            seen = np.arange(past + o.rows)[None] <= past + np.arange(o.rows)[:, None]
            feeds["mask"] = np.where(seen, 0, -1e9).astype(np.float32)
            shape = 1, o.groups, past, o.depth
            caches = {f"past_{x}": rng.standard_normal(shape).astype(np.float32) for x in "kv"}
            sessions, readers, sizes = {}, {}, {}
            for dtype in o.dtype:
                sessions[dtype] = program.session(dtype)
                sessions[dtype].restore(caches)
                scales = 4 / o.depth if dtype == "int8" else 0
                sizes[dtype] = int(2 * o.groups * past * o.depth * (BYTES[dtype] + scales))
                readers[dtype] = reader(sizes[dtype], o.threads)
            taken: dict[str, list[float]] = {dtype: [] for dtype in o.dtype}
            read: dict[str, list[float]] = {dtype: [] for dtype in o.dtype}
            for _ in range(o.rounds + 2):
                for dtype, session in sessions.items():
                    others += 1
                    session.run(feeds)
                    session.rewind(o.rows)
                    taken[dtype].append(kernels.seconds)
                    others += 1
                    read[dtype].append(readers[dtype]())
            for dtype in o.dtype:
                times = [statistics.median(each[dtype][2:]) for each in (taken, read)]
                cells = [f"{t * 1e3:8.2f} {sizes[dtype] / t / 1e9:6.1f}" for t in times]
                print(f"{past:6} {dtype:9} {sizes[dtype] / 1e6:6.1f} {cells[0]} {cells[1]:>16}")


if __name__ == "__main__":
    main()
