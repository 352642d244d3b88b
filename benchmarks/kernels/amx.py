"""Times matmuls by tiles of AMX beside the same by VNNI and AVX512-BF16.

Usage: ``python benchmarks/kernels/amx.py [--threads 1] [--rounds 15] [--only int4]``

Needs a processor with AMX. Shapes are those of MiniLM, BERT and a decoder's prompt. Three kinds of
matmuls are run: int8 rows and weights to float32, whose rows are quantized before, which is not
counted; bfloat16; and 4 bits in blocks of 32 with rows quantized to int8 in blocks, which is
counted, or from 32 rows on rounded to bfloat16 by the code for tiles. Both codes are run in turns;
where both have accumulators of integers the results must be the same bits. First come the rates of
the instructions alone, in a loop that reads nothing. Shown are billions of operations a second, a
multiplication and an addition being two, by processor time where there is one thread: medians of
all rounds.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from roofline import LOOPS, loop_of, rate
from timing import Array, Run, alone, in_turns, parser

from narrowpass_planning.weights.weight import Blocks, Quantized, Weight
from narrowpass_xnn_cpu.native import isa, kernels
from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.own import bf16, block_quantized, int8_matmul
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue
from narrowpass_xnn_cpu.native.problems.matmul import Matmul, PerBlock, PerToken
from narrowpass_xnn_cpu.native.runtime.pool import ThreadPool, shared

SIZES = ((384, 1536), (768, 768), (768, 3072), (3072, 768), (2048, 2048))
ROWS = (4, 16, 32, 128, 512)
CODES = {"int8": "avx512vnni", "bfloat16": "avx512bf16", "int4": "avx512vnni"}
"""Kinds, and what their tiles are compared with."""
BLOCK = 32
BF16_ROWS = 32
"""From so many on, rows times 4 bits are bfloat16 in tiles."""


def operator_of(kind: str, inputs: int, outputs: int) -> Any:
    """Create the matmul of a kind with a random matrix, for `kernels.TARGET`."""
    rng = np.random.default_rng(0)
    if kind == "bfloat16":
        matrix = rng.standard_normal((outputs, inputs)).astype(ml_dtypes.bfloat16)
        return bf16.MATMUL.create(Matmul(Weight.of(matrix), None, Epilogue()))
    if kind == "int8":
        integers = rng.integers(-127, 128, (outputs, inputs)).astype(np.int8)
        scales = np.full(outputs, 0.01, np.float32)
        stored = Quantized(Weight.of(integers), Weight.of(scales), None, 0)
        return int8_matmul.PER_TOKEN.create(Matmul(stored, None, operand=PerToken()))
    shape = outputs, inputs // BLOCK
    integers = rng.integers(0, 16, (outputs, inputs)).astype(ml_dtypes.uint4)
    scales = (0.01 + 0.01 * rng.random(shape)).astype(np.float32)
    blocks = Blocks(Weight.of(integers), Weight.of(scales), None, BLOCK, inputs, 4, common=8)
    return block_quantized.MATMUL.create(Matmul(blocks, None, Epilogue(), operand=PerBlock()))


def rows_of(kind: str, rows: int, inputs: int) -> Array:
    """Return random rows as the operator reads them."""
    rng = np.random.default_rng(1)
    if kind != "int8":
        return rng.standard_normal((rows, inputs), np.float32)
    params = int8_matmul.rows_to_int8(rows, inputs)
    quantized = rng.integers(0, 256, (rows, params.row_bytes)).astype(np.uint8)
    quantized[:, -8:-4] = np.full((rows, 1), 0.01, np.float32).view(np.uint8)
    quantized[:, -4:] = np.full((rows, 1), 128, np.int32).view(np.uint8)
    return quantized


def runs_of(kind: str, rows: int, inputs: int, outputs: int, pool: ThreadPool) -> dict[str, Run]:
    """Return the runs of both codes, whose results were compared."""
    runs, results = {}, {}
    for name in (CODES[kind], "avx512amx"):
        kernels.TARGET = name
        operator = operator_of(kind, inputs, outputs)
        params, results[name] = operator.reshape(rows, pool), np.empty((rows, outputs), np.float32)
        runs[name] = alone(operator, params, rows_of(kind, rows, inputs), results[name], pool)
        runs[name]()
    least, most = results.values()
    exact = kind == "int8" or (kind == "int4" and rows < BF16_ROWS)
    if exact and not np.array_equal(least, most):
        raise SystemExit(f"{kind}, {rows} x {inputs} x {outputs}: the results are not the same")
    return runs


def peaks(threads: int) -> str:
    """Return the rates of the instructions alone, in words."""
    texts = []
    with tempfile.TemporaryDirectory() as folder:
        for precision in ("int8", "bfloat16"):
            for index in (0, 1):
                loop, operations = loop_of(precision, Path(folder), index)
                found = statistics.median(rate(loop, operations, threads) for _ in range(15))
                texts.append(f"{LOOPS[precision][index][0]} {2 * found / 1e9:.0f}")
    return ", ".join(texts)


def main() -> None:
    """Print the rates alone, then a row for each size and number of rows."""
    options = parser(__doc__, 15)
    options.add_argument("--only", default="", choices=["", *CODES])
    arguments = options.parse_args()
    if isa.in_use(extension().lib) != "avx512amx":
        raise SystemExit("this processor has no AMX, or NARROWPASS_ISA caps it: nothing to time")
    pool = shared(arguments.threads)
    print(f"instructions alone, billions of operations a second: {peaks(arguments.threads)}")
    print("kind      inputs outputs rows   without    tiles   times")
    for kind in [arguments.only] if arguments.only else CODES:
        for inputs, outputs in SIZES:
            for rows in ROWS:
                runs = runs_of(kind, rows, inputs, outputs, pool)
                work = 2.0 * rows * inputs * outputs
                repeats = max(1, min(100, round(2e8 / work)))
                seconds = in_turns(runs, arguments.rounds, repeats, pool)
                before, now = (statistics.median(times) for times in seconds.values())
                print(
                    f"{kind:9} {inputs:6} {outputs:7} {rows:4} {work / before / 1e9:9.0f} "
                    f"{work / now / 1e9:8.0f} {before / now:7.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
