"""One row times matrices of 4 bits beside a loop that only reads: what of the bandwidth is used.

    python benchmarks/kernels/int4_gemv.py [--threads 2] [--rounds 9] [--megabytes 2 76 605]

The matrices have 4096 inputs and as many outputs as fill so many MB, in blocks of 32 with scales of
float16; rows are int8 in blocks. One matrix should be larger than the last cache of the processor.
The loop is numpy multiplying a float32 array of as many bytes, a part for each thread, by a
vector: it reads several rows at once. Both run in turns, by the wall's clock: medians of rounds.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # the threads of `reading` are its own

import functools
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from timing import Array, Run, alone, parser

from narrowpass_planning.weights.weight import Blocks, Weight
from narrowpass_xnn_cpu.native.own import block_quantized
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue
from narrowpass_xnn_cpu.native.problems.matmul import Matmul, PerBlock
from narrowpass_xnn_cpu.native.runtime.pool import ThreadPool, shared

INPUTS, BLOCK = 4096, 32
BITS = 4 + 16 / BLOCK
COLUMNS = 1024
"""Of the array that is read."""


def multiplying(outputs: int, pool: ThreadPool) -> Run:
    """Return a run of the matmul."""
    import ml_dtypes

    rng = np.random.default_rng(0)
    # The same rows again: random numbers for all would take minutes.
    some = rng.integers(0, 16, (512, INPUTS), np.uint8)
    integers = np.tile(some, (outputs // 512, 1)).view(ml_dtypes.uint4)
    scales = np.full((outputs, INPUTS // BLOCK), 0.01, np.float16)
    blocks = Blocks(Weight.of(integers), Weight.of(scales), None, BLOCK, INPUTS, 4, common=8)
    operator = block_quantized.MATMUL.create(Matmul(blocks, None, Epilogue(), operand=PerBlock()))
    params = operator.reshape(1, pool)
    result = np.empty((1, outputs), np.float32)
    return alone(operator, params, rng.standard_normal((1, INPUTS), np.float32), result, pool)


def reading(size: float, pool: ThreadPool) -> Run:
    """Return a run of the loop that reads so many bytes."""
    array = np.ones((int(size) // COLUMNS // 4, COLUMNS), np.float32)
    vector = np.ones(COLUMNS, np.float32)
    parts = np.array_split(array, pool.threads)
    threads = ThreadPoolExecutor(pool.threads)
    results: list[Array] = [np.empty(len(part), np.float32) for part in parts]

    def run() -> None:
        if pool.threads == 1:
            np.dot(parts[0], vector, out=results[0])
        else:
            list(threads.map(functools.partial(np.dot, b=vector), parts))

    return run


def seconds_of(run: Run, repeats: int) -> float:
    """Return the seconds of a run, on average over some."""
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - start) / repeats


def main() -> None:
    """Print a row for each matrix."""
    options = parser(__doc__ or "", 9)
    options.add_argument("--megabytes", type=float, nargs="+", default=[2, 76, 605])
    arguments = options.parse_args()
    pool = shared(arguments.threads)
    print("    MB   outputs       ms    GB/s  reading  share")
    for megabytes in arguments.megabytes:
        outputs = max(1, round(megabytes * 1e6 / (INPUTS * BITS / 8) / 512)) * 512
        size = outputs * INPUTS * BITS / 8
        runs = multiplying(outputs, pool), reading(size, pool)
        repeats = max(1, int(5e7 / size))
        turns = [[seconds_of(run, repeats) for run in runs] for _ in range(arguments.rounds + 1)]
        own, read = (statistics.median(found) for found in zip(*turns[1:], strict=True))
        print(
            f"{size / 1e6:6.1f} {outputs:9} {own * 1e3:8.3f} {size / own / 1e9:7.1f}"
            f" {size / read / 1e9:8.1f} {read / own * 100:5.0f}%",
            flush=True,
        )


if __name__ == "__main__":
    main()
