"""The templates of micro-kernels, and the instruction sets that each is compiled for.

A template is one C file, compiled once for each instruction set: `NP_ISA` names the set and is the
suffix of the symbols that the file defines (`NP_OF_ISA` in ``simd/isa.h``), `LANES` is the float32
elements of a register.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass


@dataclass(frozen=True)
class InstructionSet:
    """A set of instructions that templates are compiled for.

    Attributes:
        lanes: float32 elements of a vector register.
        flags: what the compiler is passed.
    """

    lanes: int
    flags: tuple[str, ...] = ()


_AVX512 = ("-march=x86-64-v4", "-mprfchw", "-mprefer-vector-width=512")

AMX = ("-mamx-tile", "-mamx-int8", "-mamx-bf16")
"""Flags that GCC knows from 11 on."""

INSTRUCTION_SETS = {
    "sse4": InstructionSet(4, ("-DNP_UNFUSED",)),
    "plain": InstructionSet(4),
    "avx2": InstructionSet(8, ("-march=x86-64-v3",)),
    "avx512": InstructionSet(16, _AVX512),
    "avx512vnni": InstructionSet(16, (*_AVX512, "-mavx512vnni")),
    "neondot": InstructionSet(4, ("-march=armv8.2-a+dotprod",)),
    "avx512bf16": InstructionSet(16, (*_AVX512, "-mavx512bf16")),
    "avx512amx": InstructionSet(16, (*_AVX512, "-mavx512vnni", "-mavx512bf16", *AMX)),
}
"""By name; "plain" is what the processor's baseline has, and "sse4" the same on x86-64, where a
multiplication and an addition are rounded each."""

_VECTORS = ("plain", "avx2", "avx512")
_FROM_SSE4 = ("sse4", *_VECTORS)

_ARM = ("plain", "neondot")
"""For ARM of 64 bits; other processors that are not x86-64 have "plain" alone."""

TEMPLATES = {
    "attention/bf16_amx.c": ("avx512amx",),
    "attention/code.c": _FROM_SSE4,
    "attention/narrow_code.c": _FROM_SSE4,
    "depthwise/fp32_code.c": _VECTORS,
    "depthwise/int8_vnni_avx512.c": ("avx512vnni",),
    "elementwise/activation_code.c": _FROM_SSE4,
    "epilogue/code.c": _FROM_SSE4,
    "gemm/bf16/code.c": (*_VECTORS, "avx512bf16"),
    "gemm/bf16/amx.c": ("avx512amx",),
    "gemm/int8/amx.c": ("avx512amx",),
    "gemm/fp32/code.c": ("avx2", "avx512"),
    "gemm/int8/code.c": ("plain", "avx2"),
    "gemm/int8/vnni_avx512.c": ("avx512vnni",),
    "gemm/int8/vnni_gemv_avx512.c": ("avx512vnni",),
    "gemm/int8/vnni_rows_avx512.c": ("avx512vnni",),
    "gemm/matmul/code.c": _FROM_SSE4,
    "gemv/code.c": ("avx2", "avx512"),
    "gemv/nbits_bf16_amx.c": ("avx512amx",),
    "gemv/nbits_code.c": _VECTORS,
    "gemv/nbits_int8_code.c": (*_VECTORS, "avx512vnni", "avx512amx", "neondot"),
    "norm/layer_norm_code.c": _FROM_SSE4,
    "norm/softmax_code.c": _FROM_SSE4,
    "reduce/floats_code.c": _FROM_SSE4,
    "recurrent/code.c": (*_FROM_SSE4, "avx512vnni"),
    "winograd/fp32_code.c": _VECTORS,
}
"""Paths below ``csrc``. What has no plain variant here has one by hand, in ``plain.c``."""


def variants(file: str) -> dict[str, list[str]]:
    """Return the instruction sets that `file`, below ``csrc``, is compiled for, with their flags.

    A file that is not a template is compiled once, as the set "" without flags.
    """
    names = TEMPLATES.get(file)
    if names is None:
        return {"": []}
    machine = platform.machine().lower()
    if machine in {"x86_64", "amd64"}:
        names = tuple(name for name in names if name != "neondot")
    else:
        sets = _ARM if machine in {"aarch64", "arm64"} else ("plain",)
        names = tuple(name for name in names if name in sets)
    return {
        name: [f"-DNP_ISA={name}", f"-DLANES={found.lanes}", *found.flags]
        for name in names
        for found in (INSTRUCTION_SETS[name],)
    }
