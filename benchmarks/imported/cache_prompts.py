"""Times a prompt over KV caches of each type, in sessions that have rows before it.

    python benchmarks/imported/cache_prompts.py MODEL.gguf [--past 2048] [--prompt 512]
        [--threads 1] [--rounds 3] [--dtype float32 float16 bfloat16 int8]

Rows of matmuls are int8 (``int4{activations=dynamic}``). Types take turns; shown is the median.
``NARROWPASS_ISA`` caps the instruction set.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

import narrowpass

DTYPES = ("float32", "float16", "bfloat16", "int8")


def main() -> None:
    """Read the command line, measure and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("model", metavar="MODEL.gguf")
    parser.add_argument("--past", type=int, default=2048)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=list(DTYPES))
    o = parser.parse_args()
    bundle = narrowpass.build(o.model, "fold,int4{activations=dynamic}", target="xnn-cpu")
    ids = np.random.default_rng(0).integers(0, 1000, (1, o.past + o.prompt))
    before, prompt = {"input_ids": ids[:, : o.past]}, {"input_ids": ids[:, o.past :]}
    with narrowpass.load(bundle, "xnn-cpu", threads=o.threads) as program:
        sessions = {dtype: program.session(dtype) for dtype in o.dtype}
        for session in sessions.values():
            session.run(before, "decode")
            session.run(prompt, "decode")  # buffers grow, and steps get their sizes
        taken: dict[str, list[float]] = {dtype: [] for dtype in o.dtype}
        for _ in range(o.rounds):
            for dtype, session in sessions.items():
                session.rewind(o.prompt)
                start = time.perf_counter()
                session.run(prompt, "decode")
                taken[dtype].append(time.perf_counter() - start)
    print(f"{'caches':9} {'ms':>8} {'tokens/s':>9}")
    for dtype in o.dtype:
        seconds = statistics.median(taken[dtype])
        print(f"{dtype:9} {seconds * 1e3:8.1f} {o.prompt / seconds:9.0f}")


if __name__ == "__main__":
    main()
