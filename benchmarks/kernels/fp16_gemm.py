"""Times matmuls with a constant matrix in float32 and float16 on XNNPACK.

Usage: ``python benchmarks/kernels/fp16_gemm.py [--threads 1] [--rounds 7]``

The rule for float16 in ``narrowpass_xnn_cpu/lower/matmul/choices.py`` follows these figures; those
for bfloat16 are in ``bf16_kernels.py``. Both types are run in turns. Shown are the time in float32,
how many times faster float16 is with the conversions of rows and results counted in, and its error
relative to the largest result.
"""

from __future__ import annotations

import statistics

import numpy as np
from timing import alone, in_turns, parser

from narrowpass_planning.weights.weight import Weight
from narrowpass_xnn_cpu.native.problems.matmul import Matmul
from narrowpass_xnn_cpu.native.runtime.pool import shared
from narrowpass_xnn_cpu.native.xnnpack import matmul as xnn_matmul

SIZES = ((256, 256), (768, 768), (768, 3072), (2048, 2048), (4096, 4096))
ROWS = (1, 2, 4, 8, 12, 16, 32, 64, 128, 256)
TYPES = (np.float32, np.float16)


def main() -> None:
    """Print a row for each matrix and number of rows."""
    arguments = parser(__doc__, 7).parse_args()
    pool = shared(arguments.threads)
    rng = np.random.default_rng(0)
    print("inputs outputs rows   float32   float16 (error)")
    for inputs, outputs in SIZES:
        matrix = (rng.standard_normal((outputs, inputs)) / np.sqrt(inputs)).astype(np.float32)
        for rows in ROWS:
            given, runs, results = rng.standard_normal((rows, inputs)).astype(np.float32), {}, []
            for dtype in TYPES:
                operator = xnn_matmul.create(Matmul(Weight.of(matrix.astype(dtype)), None))
                params = operator.reshape(rows, pool)
                results.append(np.empty((rows, outputs), np.float32))
                runs[dtype.__name__] = alone(operator, params, given, results[-1], pool)
            repeats = max(3, min(200, int(2e8 / (rows * inputs * outputs))))
            seconds = in_turns(runs, arguments.rounds, repeats, pool)
            wide, *narrow = (statistics.median(times) for times in seconds.values())
            largest = np.abs(results[0]).max()
            errors = [np.abs(result - results[0]).max() / largest for result in results[1:]]
            texts = [f"x{wide / t:4.2f} ({e:.0e})" for t, e in zip(narrow, errors, strict=True)]
            print(f"{inputs:6} {outputs:7} {rows:4} {wide * 1e6:7.1f} us   {'     '.join(texts)}")


if __name__ == "__main__":
    main()
