"""Times products with a constant matrix in float32 and float16 on XNNPACK.

Usage: ``python benchmarks/narrow_products.py [--threads 1] [--rounds 7]``

The rule for float16 in ``narrowpass_xnn_cpu/lower/product.py`` stands on these figures; those for
bfloat16 are in ``bf16_kernels.py``. Both types are run in turns; shown are the time in float32 and
how many times faster float16 is, with the conversions of rows and results counted in, and its error
relative to the largest result.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from narrowpass_xnn_cpu.native.operators import FullyConnected
from narrowpass_xnn_cpu.native.pool import shared
from narrowpass_xnn_cpu.native.tape import Entry, Tape, aligned
from narrowpass_xnn_cpu.weights.weight import Weight

SIZES = ((256, 256), (768, 768), (768, 3072), (2048, 2048), (4096, 4096))
ROWS = (1, 2, 4, 8, 12, 16, 32, 64, 128, 256)
TYPES = (np.float32, np.float16)


def main() -> None:
    """Print a row for each matrix and number of rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    pool = shared(arguments.threads)
    rng = np.random.default_rng(0)
    print("inputs outputs rows   float32   float16 (error)")
    for inputs, outputs in SIZES:
        matrix = (rng.standard_normal((outputs, inputs)) / np.sqrt(inputs)).astype(np.float32)
        for rows in ROWS:
            given = aligned(4 * rows * inputs)[: 4 * rows * inputs].view(np.float32)
            given[...] = rng.standard_normal(given.shape)
            tapes, results, scratch, seconds = [], [], [], [[] for _ in TYPES]
            for dtype in TYPES:
                operator = FullyConnected(Weight.of(matrix.astype(dtype)), None)
                params = operator.reshape(rows, pool)
                entry = Entry(operator.call, (0,), 1, operator, params, True, "product")
                tape, result = Tape([entry], 2), np.empty((rows, outputs), "f4")
                scratch.append(aligned(operator.workspace))
                tape.bind_workspace(scratch[-1], 0)
                tape.bind(0, given)
                tape.bind(1, result)
                tapes.append(tape)
                results.append(result)
            repeats = max(3, min(200, int(2e8 / (rows * inputs * outputs))))
            for _ in range(arguments.rounds):
                for tape, times in zip(tapes, seconds, strict=True):
                    start = time.perf_counter()
                    for _ in range(repeats):
                        tape.run(pool)
                    times.append((time.perf_counter() - start) / repeats)
            wide, *narrow = (statistics.median(times) for times in seconds)
            largest = np.abs(results[0]).max()
            errors = [np.abs(result - results[0]).max() / largest for result in results[1:]]
            texts = [f"x{wide / t:4.2f} ({e:.0e})" for t, e in zip(narrow, errors, strict=True)]
            print(f"{inputs:6} {outputs:7} {rows:4} {wide * 1e6:7.1f} us   {'     '.join(texts)}")


if __name__ == "__main__":
    main()
