"""GEMV of 4 bits by look-up tables (T-MAC, arXiv:2407.00088) beside that of int8 rows.

    python benchmarks/kernels/lookup_gemv.py [--rounds 15]

Needs an x86-64 processor with AVX2 and a C compiler; of AVX-512 code, one with VNNI and VBMI.
Compiles ``lookup_gemv.c``, whose kernels do the same with the same weights: blocks of 32 with
float32 scales, one row. Beside them the row is int8 in blocks, as in the backend; by tables
each entry is the sum of a subset of 4 or 6 elements, rounded to a byte, as in the paper. Integers
are compared with numpy's, the results within the rounding of float32.

Shown are the bits that a weight takes without its scale, the instructions of the inner loop for 16
columns and a block, with loads that are not operands, for a weight; microseconds and GB/s of one
thread by processor time, medians of rounds in turns; and the relative error of the results, of rows
in float32. The first matrix fits L2, the second is beyond any cache of a core.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from timing import parser

Array = np.ndarray[Any, Any]

BLOCK, COLUMNS, ZERO = 32, 16, 8
SIZES = ((2048, 512), (4096, 16384))
"""Inputs and outputs."""
FLAGS = ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512vnni", "-mavx512vbmi")


class Gemv(ctypes.Structure):
    """What the kernels read; `lookup_gemv.c` has it."""

    _fields_ = (
        ("packed", ctypes.c_void_p),
        ("x", ctypes.c_void_p),
        ("factors", ctypes.c_void_p),
        ("starts", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("panels", ctypes.c_size_t),
        ("blocks", ctypes.c_size_t),
    )


@dataclass(frozen=True)
class Row:
    """A row as a kernel reads it.

    Attributes:
        numbers: bytes, or tables.
        factors: float32 [blocks].
        starts: int32 [blocks].
        integers: what the accumulators of a block must be, for q of [blocks, BLOCK, outputs].
    """

    numbers: Array
    factors: Array
    starts: Array
    integers: Callable[[Array], Array]


def row_of_bytes(x: Array) -> Row:
    """Quantize a row to int8 in blocks."""
    blocks = x.reshape(-1, BLOCK)
    factors = (np.abs(blocks).max(1) / 127).astype(np.float32)
    numbers = np.rint(blocks / factors[:, None]).astype(np.int8)
    wide = numbers.astype(np.int32)
    starts = -ZERO * wide.sum(1, dtype=np.int32)
    return Row(numbers, factors, starts, lambda q: np.einsum("bk,bkn->bn", wide, q - ZERO))


def row_of_tables(x: Array, size: int) -> Row:
    """Return the tables of groups of `size` elements; the last of a block may have fewer."""
    blocks = x.reshape(-1, BLOCK)
    groups = -(-BLOCK // size)
    padded = np.zeros((len(blocks), groups * size), np.float32)
    padded[:, :BLOCK] = blocks
    bits = np.arange(1 << size)[:, None] >> np.arange(size) & 1
    totals = padded.reshape(-1, groups, size) @ bits.T.astype(np.float32)
    factors = (np.abs(totals).max((1, 2)) / 127).astype(np.float32)
    rounded = np.rint(totals / factors[:, None, None]).astype(np.int32)
    whole = np.rint(blocks.sum(1) * -ZERO / factors).astype(np.int32)

    def integers(q: Array) -> Array:
        wide = np.zeros((len(blocks), groups * size, q.shape[2]), np.int32)
        wide[:, :BLOCK] = q
        wide = wide.reshape(len(blocks), groups, size, -1)
        found = np.repeat(whole[:, None], q.shape[2], 1)
        for bit in range(4):
            index = np.einsum("bgkn,k->bgn", wide >> bit & 1, 1 << np.arange(size))
            found += np.take_along_axis(rounded, index, 2).sum(1) << bit
        return found

    starts = whole - 128 * 15 * groups
    return Row((rounded + 128).astype(np.uint8), factors, starts, integers)


def words_of(q: Array) -> Array:
    """Pack [..., BLOCK, COLUMNS]: byte j of each word of 8 weights has those of j and j + 4."""
    k = q.reshape(*q.shape[:-2], BLOCK // 8, 2, 4, COLUMNS)
    return np.moveaxis(k[..., 0, :, :] | k[..., 1, :, :] << 4, -1, -2).astype(np.uint8)


def indices_of(q: Array, size: int) -> Array:
    """Return the indices of groups: [..., groups, COLUMNS, 4], a byte for each bit."""
    groups = -(-BLOCK // size)
    wide = np.zeros((*q.shape[:-2], groups * size, COLUMNS), np.uint8)
    wide[..., :BLOCK, :] = q
    wide = wide.reshape(*q.shape[:-2], groups, size, COLUMNS)
    planes = [
        sum((wide[..., j, :] >> bit & 1) << j for j in range(size)).astype(np.uint8)
        for bit in range(4)
    ]
    return np.stack(planes, -1)


def pairs_of(q: Array) -> Array:
    """Return the indices of groups of 4, two in a byte."""
    found = indices_of(q, 4)
    return found[..., ::2, :, :] | found[..., 1::2, :, :] << 4


@dataclass(frozen=True)
class Kernel:
    """A kernel, and what it reads.

    Attributes:
        name: of the function.
        pack: packs the integers of panels.
        row: what it reads of a row.
        bits: of a weight.
        instructions: of the inner loop, for 16 columns and a block.
    """

    name: str
    pack: Callable[[Array], Array]
    row: Callable[[Array], Row]
    bits: float
    instructions: int


KERNELS = (
    # A row of words: a load, a shift, 2 masks, 2 dot products whose row is an operand.
    Kernel("dot_products_avx512", words_of, row_of_bytes, 4, 4 * 6),
    # A load, a shift, 2 masks, 2 tables, 2 look-ups, 2 dot products.
    Kernel("tables_of_4_avx512", pairs_of, lambda x: row_of_tables(x, 4), 4, 4 * 10),
    # A load, a look-up, a dot product.
    Kernel(
        "tables_of_6_avx512",
        lambda q: indices_of(q, 6),
        lambda x: row_of_tables(x, 6),
        6,
        6 * 3,
    ),
    # For 16 columns twice: a load, a shift, 2 masks, 2 multiplications, 2 additions; 2 of the row.
    Kernel("dot_products_avx2", words_of, row_of_bytes, 4, 4 * (2 * 8 + 2)),
    # The same and 2 look-ups, twice.
    Kernel("tables_of_4_avx2", pairs_of, lambda x: row_of_tables(x, 4), 4, 4 * (2 * 10 + 2)),
)


def library(folder: Path) -> Any:
    """Compile the kernels that this processor has instructions for."""
    known = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    flags = FLAGS if "avx512_vnni" in known and "avx512_vbmi" in known else ()
    target, source = folder / "lookup_gemv.so", Path(__file__).with_name("lookup_gemv.c")
    command = [os.environ.get("CC", "cc"), "-O3", "-mavx2", "-mfma", "-mf16c", *flags, "-shared"]
    subprocess.run([*command, "-fPIC", str(source), "-o", str(target)], check=True)
    return ctypes.CDLL(str(target))


def run_of(built: Any, kernel: Kernel, q: Array, scales: Array, x: Array) -> tuple[Any, Array, int]:
    """Return a run of a kernel, its result, and the bytes of its matrix; the result is checked."""
    inputs, outputs = q.shape
    blocks, panels = inputs // BLOCK, outputs // COLUMNS
    by_panel = np.moveaxis(q.reshape(blocks, BLOCK, panels, COLUMNS), 2, 0)
    parts = [kernel.pack(panel).reshape(blocks, -1) for panel in by_panel]
    numbers = np.moveaxis(scales.reshape(blocks, panels, COLUMNS), 1, 0)
    raw = np.ascontiguousarray(numbers).view(np.uint8).reshape(panels, blocks, -1)
    joined = np.concatenate([raw, np.stack(parts)], -1)
    # Prefetches go beyond the end.
    packed = np.zeros(joined.size + 64, np.uint8)
    start = -packed.ctypes.data % 64
    packed[start : start + joined.size] = joined.reshape(-1)
    row, out = kernel.row(x), np.empty(outputs, np.float32)
    given = Gemv(
        packed.ctypes.data + start,
        row.numbers.ctypes.data,
        row.factors.ctypes.data,
        row.starts.ctypes.data,
        out.ctypes.data,
        panels,
        blocks,
    )
    function = built[kernel.name]
    function(ctypes.byref(given))
    some = slice(0, min(outputs, 512))
    integers = row.integers(q[:, some].reshape(blocks, BLOCK, -1).astype(np.int32))
    right = (integers * scales[:, some].astype(float) * row.factors[:, None]).sum(0)
    most = (np.abs(integers) * scales[:, some].astype(float) * row.factors[:, None]).sum(0)
    if not (np.abs(out[some] - right) <= 2.0**-24 * (blocks + 3) * most).all():
        raise SystemExit(f"{kernel.name}: the results are not numpy's")
    kept = (given, packed, row, out)

    def run(_kept: Any = kept) -> None:
        function(ctypes.byref(given))

    return run, out, joined.size


def main() -> None:
    """Print a row for each kernel and size."""
    arguments = parser(__doc__ or "", 15).parse_args()
    rng = np.random.default_rng(0)
    print("inputs outputs kernel               bits  instr.       us   GB/s   times    error")
    with tempfile.TemporaryDirectory() as folder:
        built = library(Path(folder))
        for inputs, outputs in SIZES:
            q = rng.integers(0, 16, (inputs, outputs), np.uint8)
            scales = rng.uniform(0.01, 0.02, (inputs // BLOCK, outputs)).astype(np.float32)
            x = rng.standard_normal(inputs, np.float32)
            wide = np.repeat(scales[:, :512], BLOCK, 0) * (q[:, :512].astype(np.float32) - ZERO)
            exact = x.astype(float) @ wide
            there = [kernel for kernel in KERNELS if hasattr(built, kernel.name)]
            runs = {kernel.name: run_of(built, kernel, q, scales, x) for kernel in there}
            repeats = max(1, 40_000_000 // (inputs * outputs))
            seconds: dict[str, list[float]] = {name: [] for name in runs}
            for _ in range(arguments.rounds):
                for name, (run, _, _) in runs.items():
                    run()
                    start = time.process_time()
                    for _ in range(repeats):
                        run()
                    seconds[name].append((time.process_time() - start) / repeats)
            for kernel in there:
                _, out, size = runs[kernel.name]
                taken = statistics.median(seconds[kernel.name])
                own = "dot_products_" + kernel.name.rpartition("_")[2]
                error = np.linalg.norm(out[:512] - exact) / np.linalg.norm(exact)
                print(
                    f"{inputs:6} {outputs:7} {kernel.name:20} {kernel.bits:4}"
                    f" {kernel.instructions / (BLOCK * COLUMNS):7.3f} {taken * 1e6:8.1f}"
                    f" {size / taken / 1e9:6.1f} {statistics.median(seconds[own]) / taken:7.2f}"
                    f" {error:8.4f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
