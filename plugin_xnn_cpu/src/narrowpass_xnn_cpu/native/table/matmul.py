"""Rows of the kernel table for matmuls with constant matrices, XNNPACK's kernels and ours.

Float32
-------
On AVX-512 XNNPACK's micro-kernel is 7 x 16, with 8 loads for 7 FMA instructions; ours are 8 x 48
and 6 x 64, with 11 and 10 loads for 24. Billions of multiplications and additions a second on one
core of an Ice Lake server at 2.8 GHz, whose peak is about 167
(`benchmarks/kernels/fp32_kernels.py`):

===========================================  =======  ====
matmul                                       XNNPACK  here
===========================================  =======  ====
128 rows, 768 to 768                              88   135
128 rows, 768 to 3072                             80   138
128 rows, 3072 to 768                             80   133
197 rows, 768 to 768                              94   142
8 rows, 768 to 3072                               20    40
1 row, 768 to 3072 (18 GB/s)                       9     9
===========================================  =======  ====

On AVX2 ours is as fast as XNNPACK's, 0.94 to 1.08 times from 128 rows on, and 1.15 to 2.6 times as
fast with few rows (a Zen 4 whose instruction sets were capped at AVX2). It fuses any epilogue,
where XNNPACK has a clamp only and others read and write the result once more.

Where NARROWPASS_ISA names `plain`, ours multiply without AVX2, too: they round as FMA does.

Bfloat16
--------
AVX512-BF16 multiplies pairs of bfloat16 at twice the rate of float32. Other processors can still
read bfloat16 weights in half the time and upcast them in registers, or upcast them to float32 when
they are packed:

=====================================  ===========================  ==========================
instruction set                        bfloat16 matmuls             bfloat16 convolutions
=====================================  ===========================  ==========================
AVX512-BF16                            all                          all but depthwise ones
AVX-512, AVX2                          up to `BF16_ROWS` rows, and  none: rounding inputs
                                       where rows are not known     would gain no speed
other processors                       none                         none
=====================================  ===========================  ==========================

`benchmarks/kernels/bf16_kernels.py` measures it. With one row, half the bytes are twice the speed;
with many, splitting pairs costs a tenth to a fifth, and float32 need not round the rows. Where the
number of rows is not known, such as in prefill and decode of one model, the same bfloat16 matrix is
used for both: a float32 one would be twice as large.

Int8
----
Accumulators are exact in XNNPACK's kernels and in ours. Billions of operations a second on one
core, and the speedup over XNNPACK (``benchmarks/kernels/int8_kernels.py``), on a Zen 3 and on an
Ice Lake; see `convolution`:

============================================  ====  =====  ====  =====
matmul                                        Zen 3        Ice Lake
============================================  ====  =====  ====  =====
128 rows, 384 to 1536 channels                 149    1.4   546    1.4
1 row, 2048 to 1000 channels                    52    1.0    59    1.0
============================================  ====  =====  ====  =====

When the number of rows is known, up to 4 float32 rows are computed by a GEMV that reads the packed
panels in eight to twelve streams (`own/gemv.py`), and 16 and more with an int8 matrix by a GEMM
that upcasts panels in L2 (`own/upcast.py`).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from narrowpass.errors import BackendError
from narrowpass_planning.weights.weight import Quantized, Weight
from narrowpass_xnn_cpu.native.own import bf16, block_quantized, fp32, int8_convolution, int8_matmul
from narrowpass_xnn_cpu.native.own.gemv import MAX_ROWS, UNPACKED, Gemv
from narrowpass_xnn_cpu.native.own.packed import MatmulKernel, PackedMatmul
from narrowpass_xnn_cpu.native.problems.matmul import Matmul
from narrowpass_xnn_cpu.native.problems.quantization import zero_points
from narrowpass_xnn_cpu.native.table.convolution import xnnpack_is_faster
from narrowpass_xnn_cpu.native.table.row import Row
from narrowpass_xnn_cpu.native.target import Target
from narrowpass_xnn_cpu.native.weights_cache import Session
from narrowpass_xnn_cpu.native.xnnpack import matmul as xnnpack
from narrowpass_xnn_cpu.native.xnnpack.matmul import XnnMatmul

BF16_ROWS = 12
"""MR: up to one micro-kernel tile, splitting pairs costs less than reading half the bytes saves."""


@dataclass(frozen=True)
class _Upcast:
    """The float32 kernel for a bfloat16 matrix, which is upcast when it is packed."""

    kernel: MatmulKernel

    @property
    def name(self) -> str:
        """See `MatmulKernel`."""
        return f"{self.kernel.name} of upcast weights"

    @property
    def call(self) -> str:
        """See `MatmulKernel`."""
        return self.kernel.call

    def create(self, problem: Matmul, session: Session | None = None) -> PackedMatmul:
        """See `MatmulKernel.create`."""
        if not isinstance(problem.matrix, Weight):
            raise BackendError(f"a matmul of {problem.dtypes} is not upcast when it is packed")
        wide = problem.matrix.cast(np.dtype(np.float32))
        return self.kernel.create(dataclasses.replace(problem, matrix=wide), session)


UPCAST = _Upcast(fp32.MATMUL)


def bf16_reject_reason(rows: int | None, target: Target) -> str:
    """Return why our bfloat16 kernel rejects so many rows, None for unknown; empty if not."""
    if target.has_bf16_dot:
        return ""
    if not target.has_bf16:
        return "no AVX2"
    return "" if rows is None or rows <= BF16_ROWS else f"more than {BF16_ROWS} rows"


def quantizes_rows_once(matrix: Quantized, outputs: int, target: Target) -> bool:
    """Return whether a step of its own quantizes rows, once for all matmuls that read them."""
    ours = target.int8_is_own or not target.has_fma
    return ours or zero_points(matrix, outputs) is not None


def _unpacked(problem: Matmul, target: Target) -> str:
    if not problem.in_memory or problem.transposed:
        return "no Gather reads the same matrix"
    if problem.rows is None or problem.rows > MAX_ROWS or problem.bias is not None:
        return f"a bias, or more than {MAX_ROWS} rows"
    return "" if target.reads_unpacked else xnnpack_is_faster(target)


def _float(problem: Matmul, target: Target) -> str:
    return "" if target.fp32_lanes else xnnpack_is_faster(target)


def _bf16(problem: Matmul, target: Target) -> str:
    return bf16_reject_reason(problem.rows, target)


def _int8(problem: Matmul, target: Target) -> str:
    matrix, outputs = problem.matrix, problem.sizes[1]
    if target.int8_is_own or not target.has_fma:
        return ""
    if isinstance(matrix, Quantized) and quantizes_rows_once(matrix, outputs, target):
        return ""
    return f"it is not known to be faster on {target.level}"


_PANELS = "panels of 16 columns by pairs, with VNNI of 64 by K-groups of 4"
_XNNPACK = "XNNPACK's panels"
_WHERE = "x86-64 but for AVX-512 without VNNI; anywhere with zero points of weights"
_FASTER = "1.4 times as fast as XNNPACK from 128 rows on, as fast with one"
_AS_FAST = "for AVX-512 alone ours has the code of AVX2; that for ARM multiplies int8 as such"

MatmulRow = Row[Matmul, PackedMatmul | XnnMatmul | Gemv]

ROWS: tuple[MatmulRow, ...] = (
    Row(
        "matmul",
        "float32 x float32",
        UNPACKED,
        "none: read as the model stores it",
        f"AVX2, AVX-512, plain: up to {MAX_ROWS} rows and a matrix whose rows are looked up too",
        "the matrix is in memory once; as fast as packed panels, which few rows read once",
        _unpacked,
    ),
    Row(
        "matmul",
        "float32 x float32",
        fp32.MATMUL,
        "panels of 16 to 64 columns",
        "AVX2, AVX-512, plain",
        "1.5 to 2 times as fast as XNNPACK on an Ice Lake from 8 rows on; any epilogue",
        _float,
    ),
    Row("matmul", "float32 x float32", xnnpack.F32, _XNNPACK, "elsewhere", "near Neon's limit"),
    Row(
        "matmul",
        "float32 x float16",
        xnnpack.F16,
        _XNNPACK,
        "F16C; up to 8 rows of 2^19 weights and more",
        "half the bytes: 1.2 to 2.9 times as fast as float32",
    ),
    Row(
        "matmul",
        "float32 x bfloat16",
        bf16.MATMUL,
        "panels of 32 columns, by pairs",
        f"AVX512-BF16; AVX2 and AVX-512 up to {BF16_ROWS} rows, or where rows are not known",
        "half the bytes; pairs are multiplied at twice the rate of float32",
        _bf16,
    ),
    Row(
        "matmul",
        "float32 x bfloat16",
        xnnpack.BF16,
        _XNNPACK,
        "elsewhere, where XNNPACK has one; upcast to float32 otherwise",
        "half the bytes",
        lambda problem, target: "upcast to float32 is as fast" if target.has_bf16 else "",
    ),
    Row(
        "matmul",
        "float32 x bfloat16",
        UPCAST,
        "panels of 16 to 64 columns, of float32",
        f"AVX2, AVX-512 with more than {BF16_ROWS} rows; plain",
        "splitting pairs costs a tenth to a fifth; rows are not rounded",
        _float,
    ),
    Row(
        "matmul",
        "float32 x int8",
        xnnpack.INT8,
        _XNNPACK,
        "everywhere",
        "a quarter of the bytes, dequantized in registers",
    ),
    Row(
        "matmul",
        "float32 per token x int8",
        int8_matmul.PER_TOKEN,
        _PANELS,
        _WHERE,
        f"{_FASTER}; rows are quantized once for all matmuls that read them",
        _int8,
    ),
    Row(
        "matmul",
        "float32 per token x int8",
        xnnpack.PER_TOKEN,
        _XNNPACK,
        "elsewhere",
        _AS_FAST,
    ),
    Row("matmul", "int8 x int8 -> int8", int8_convolution.MATMUL, _PANELS, _WHERE, _FASTER, _int8),
    Row("matmul", "int8 x int8 -> int8", xnnpack.S8, _XNNPACK, "elsewhere", _AS_FAST),
    Row("matmul", "int8 x int8 -> float32", int8_matmul.MATMUL, _PANELS, _WHERE, _FASTER, _int8),
    Row("matmul", "int8 x int8 -> float32", xnnpack.S8_F32, _XNNPACK, "elsewhere", _AS_FAST),
    Row(
        "matmul",
        "dynamic int8 x int8",
        int8_matmul.MATMUL,
        _PANELS,
        "everywhere",
        "no other kernel has scales that are computed",
    ),
    Row(
        "matmul",
        "float32 x blocks",
        block_quantized.MATMUL,
        "panels of 32 columns, blocks with their scales",
        "everywhere",
        "an eighth or a quarter of the bytes",
    ),
    Row(
        "matmul",
        "float32 per block x blocks",
        block_quantized.MATMUL,
        "panels of 32 columns, blocks with their scales",
        "everywhere",
        "with VNNI a fifth of the instructions for a weight",
    ),
)
