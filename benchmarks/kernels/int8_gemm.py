"""Times matmuls with a constant matrix in float32 and int8 on XNNPACK.

Usage: ``python benchmarks/kernels/int8_gemm.py [--threads 1] [--rounds 7]``

Shapes are those of MiniLM and BERT, and of a decoder with rows of 2048. Three operators are run in
turns: float32; int8 weights; int8 weights and rows, with the quantization of the rows counted in.
Shown are the time in float32 and, for the other two, how many times faster they are, and their
error relative to the largest result of the matrix in float32, rounding of the weights included.
The last columns are the bytes that are packed.
"""

from __future__ import annotations

import statistics

import numpy as np
from timing import alone, in_turns, parser

from narrowpass_planning.weights.weight import Quantized, Weight
from narrowpass_xnn_cpu.native.problems.matmul import Matmul, PerToken
from narrowpass_xnn_cpu.native.runtime.pool import shared
from narrowpass_xnn_cpu.native.weights_cache import WeightsCache
from narrowpass_xnn_cpu.native.xnnpack import matmul as xnn_matmul
from narrowpass_xnn_cpu.native.xnnpack.matmul import XnnMatmul

SIZES = (
    ("MiniLM", 384, 384),
    ("MiniLM", 384, 1536),
    ("MiniLM", 1536, 384),
    ("BERT", 768, 768),
    ("BERT", 768, 3072),
    ("BERT", 3072, 768),
    ("decoder", 2048, 2048),
    ("decoder", 2048, 8192),
    ("decoder", 8192, 2048),
)
ROWS = (1, 8, 128)
KINDS = ("float32", "weights", "rows")


def operators(matrix: np.ndarray) -> list[tuple[XnnMatmul, int]]:
    """Return the three operators for a float32 matrix [O, C], with the bytes that each packed."""
    scale = np.abs(matrix).max(axis=1) / np.float32(127)
    integers = np.rint(matrix / scale[:, None]).astype(np.int8)
    stored = Quantized(Weight.of(integers), Weight.of(scale), None, 0)
    built = []
    for kind in KINDS:
        with WeightsCache().begin() as session:
            if kind == "float32":
                operator = xnn_matmul.create(Matmul(Weight.of(matrix), None), session)
            else:
                operator = xnn_matmul.create(
                    Matmul(stored, None, operand=PerToken() if kind == "rows" else None), session
                )
        built.append((operator, sum(entry.size for entry in session.entries())))
    return built


def main() -> None:
    """Print a row for each matrix and number of rows."""
    arguments = parser(__doc__, 7).parse_args()
    pool = shared(arguments.threads)
    rng = np.random.default_rng(0)
    print("model   inputs outputs rows     float32   int8 weights   rows too         MB packed")
    for name, inputs, outputs in SIZES:
        matrix = (rng.standard_normal((outputs, inputs)) / np.sqrt(inputs)).astype(np.float32)
        built = operators(matrix)
        packed = "  ".join(f"{size / 1e6:4.1f}" for _, size in built)
        for rows in ROWS:
            given, runs, results = rng.standard_normal((rows, inputs)).astype(np.float32), {}, []
            for kind, (operator, _) in zip(KINDS, built, strict=True):
                results.append(np.empty((rows, outputs), np.float32))
                params = operator.reshape(rows, pool)
                runs[kind] = alone(operator, params, given, results[-1], pool)
            repeats = max(3, min(200, int(2e8 / (rows * inputs * outputs))))
            seconds = in_turns(runs, arguments.rounds, repeats, pool)
            wide, *narrow = (statistics.median(times) for times in seconds.values())
            largest = np.abs(results[0]).max()
            errors = [np.abs(result - results[0]).max() / largest for result in results[1:]]
            texts = [f"x{wide / t:4.2f} ({e:.0e})" for t, e in zip(narrow, errors, strict=True)]
            print(
                f"{name:8}{inputs:6} {outputs:7} {rows:4} {wide * 1e6:8.1f} us  "
                f"{'  '.join(texts)}   {packed}"
            )


if __name__ == "__main__":
    main()
