"""Which products and convolutions with weights of bfloat16 our kernels compute.

Elsewhere such weights are widened when they are packed, and multiplied as float32. What pays
depends on whether the processor multiplies pairs of bfloat16 (AVX512-BF16), at twice the rate of
float32. One that does not can still read the weights in half the time, and widen them in its
registers:

=====================================  ===========================  ==========================
code for                               products                     convolutions
=====================================  ===========================  ==========================
AVX512-BF16                            all                          all but depthwise ones
AVX-512, AVX2                          up to `FEW_ROWS` rows, and   none: inputs would be
                                       where rows are not known     rounded for nothing
other processors                       none                         none
=====================================  ===========================  ==========================

`benchmarks/bf16_kernels.py` gives the figures. With one row, half the bytes are twice the speed;
with many, splitting pairs costs a tenth to a fifth, and float32 does without rounding the rows.
Where their number is not known, such as in a decoder that is given a prompt and then one token at a
time, one matrix of bfloat16 serves both: another one of float32 would be twice as large as that.
Depthwise convolutions wait for their inputs and not for their weights, which are few.
"""

from __future__ import annotations

import functools

from narrowpass_xnn_cpu.native import kernels
from narrowpass_xnn_cpu.native.library import extension

FEW_ROWS = 12
"""Up to so many rows, of a tile, splitting pairs costs less than the reading that is spared."""

_CODES = {"avx512bf16": True, "avx512": False, "avx2": False}
"""The codes that are fast, and whether they have an instruction for pairs."""


def code() -> str:
    """Give the code of ours that runs here, one of `kernels.TARGETS`."""
    return _code(kernels.TARGET)


@functools.cache
def _code(target: str) -> str:
    lib = extension().lib
    return kernels.TARGETS[lib.np_bf16_code_target(kernels.TARGETS.index(target))]


def is_fast() -> bool:
    """Tell whether our kernels are compiled for instructions that this processor has."""
    return code() in _CODES


def multiplies_pairs() -> bool:
    """Tell whether bfloat16 is multiplied at twice the rate of float32."""
    return _CODES.get(code(), False)


def product_is_ours(rows: int | None) -> bool:
    """Tell whether our kernel computes a product of so many rows, or of an unknown number."""
    return multiplies_pairs() or (is_fast() and (rows is None or rows <= FEW_ROWS))


def convolution_is_ours(*, depthwise: bool) -> bool:
    """Tell whether a convolution is computed by our kernel."""
    return multiplies_pairs() and not depthwise
