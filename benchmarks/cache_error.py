"""Compares logits of a decoder whose KV caches are narrow with those of float32 caches.

    python benchmarks/cache_error.py FOLDER [--size 100m] [--prompt 512] [--tokens 32]
        [--threads 2] [--dtype float16 bfloat16 int8]

All sessions take the same random tokens, a prompt and then one by one. Shown are, over the latter,
the mean and the largest relative error of logits (norm of the difference over that of float32's),
the largest difference of one logit over the standard deviation of all, how often the largest logit
is another one, and the bytes of a token's rows in the caches. Weights are random, and float32; the
decoder is built in FOLDER/SIZE (see ``decoder.py``).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import decoder
import numpy as np

import narrowpass

Array = np.ndarray[Any, Any]
DTYPES = ("float16", "bfloat16", "int8")


def logits_of(session: narrowpass.Session, ids: Array, prompt: int, prefill: Array) -> Array:
    """Return the logits of the tokens behind a prompt, a row each."""
    mask = np.triu(np.full((prompt, prompt), -1e9, np.float32), 1)
    session.run({"ids": prefill, "positions": np.arange(prompt), "mask": mask}, "prefill")
    rows = []
    for token in ids:
        past = session.length
        feeds = {
            "ids": token.reshape(1, 1),
            "positions": np.array([past]),
            "mask": np.zeros((1, past + 1), np.float32),
        }
        rows.append(session.run(feeds, "decode")["logits"].reshape(-1))
    return np.array(rows, np.float64)


def bytes_of_token(size: str, dtype: str) -> int:
    """Return the bytes of the rows of one token in all caches."""
    shape = decoder.SIZES[size]
    element = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}[dtype]
    scale = 4 if dtype == "int8" else 0
    return 2 * shape.layers * shape.groups * (shape.head * element + scale)


def main() -> None:
    """Read the command line, compare and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", choices=decoder.SIZES, default="100m")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=list(DTYPES))
    o = parser.parse_args()
    prefill, decode = decoder.build(o.folder / o.size, o.size, tied=True)
    bundle = narrowpass.build({"prefill": str(prefill), "decode": str(decode)}, "fold")
    rng = np.random.default_rng(0)
    vocabulary = decoder.SIZES[o.size].vocabulary
    prompt = rng.integers(0, vocabulary, (1, o.prompt))
    ids = rng.integers(0, vocabulary, o.tokens)
    print(f"{'caches':9} {'bytes':>7} {'mean':>9} {'largest':>9} {'one logit':>10} {'other':>6}")
    with narrowpass.load(bundle, "xnn-cpu", threads=o.threads) as program:
        wanted = logits_of(program.session("float32"), ids, o.prompt, prompt)
        print(f"{'float32':9} {bytes_of_token(o.size, 'float32'):7,}")
        for dtype in o.dtype:
            found = logits_of(program.session(dtype), ids, o.prompt, prompt)
            errors = np.linalg.norm(found - wanted, axis=1) / np.linalg.norm(wanted, axis=1)
            one = np.abs(found - wanted).max() / wanted.std()
            other = int((found.argmax(1) != wanted.argmax(1)).sum())
            cells = f"{errors.mean():9.1e} {errors.max():9.1e} {one:10.1e} {other:3}/{len(ids)}"
            print(f"{dtype:9} {bytes_of_token(o.size, dtype):7,} {cells}", flush=True)


if __name__ == "__main__":
    main()
