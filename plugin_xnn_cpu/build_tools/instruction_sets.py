"""The templates of micro-kernels, and the instruction sets that each is compiled for.

A template is one C file, compiled once for each instruction set: `NP_ISA` names the set and is the
suffix of the symbols that the file defines (`NP_OF_ISA` in ``simd/isa.h``), `LANES` is the float32
elements of a register.
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sysconfig
from collections.abc import Collection
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


VARIABLE = "NARROWPASS_XNN_LEVELS"
"""Variable of the environment that says which levels of x86-64 are built: ``native``, which is the
default, for the processor that builds; ``all``; or levels by name, with commas between them.
``sse4``, which every x86-64 has, is always built."""

LEVELS = ("sse4", "plain", "avx2", "avx512", "avx512vnni", "avx512bf16", "avx512amx")
"""Of x86-64, from the lowest to the highest."""

_USED_BY = {
    "sse4": (),
    "plain": (),
    "avx2": ("avx2",),
    "avx512": ("avx2", "avx512"),
    "avx512vnni": ("avx512", "avx512vnni"),
    "avx512bf16": ("avx512", "avx512vnni", "avx512bf16"),
    "avx512amx": ("avx512", "avx512vnni", "avx512bf16", "avx512amx"),
}
"""The levels whose kernels run on a processor of a level. Without VNNI, int8 takes AVX2's."""

_MACROS = {
    "avx2": ("__AVX2__", "__FMA__", "__F16C__", "__BMI2__"),
    "avx512": ("__AVX512F__", "__AVX512BW__", "__AVX512CD__", "__AVX512DQ__", "__AVX512VL__"),
    "avx512vnni": ("__AVX512VNNI__",),
    "avx512bf16": ("__AVX512BF16__",),
    "avx512amx": ("__AMX_TILE__", "__AMX_INT8__", "__AMX_BF16__"),
}
"""What GCC defines for a processor that has a level, beside those of the levels before."""


def is_x86() -> bool:
    """Return whether this processor is one that levels are for."""
    return platform.machine().lower() in {"x86_64", "amd64"}


def compiler() -> list[str]:
    """Return the command of the C compiler, as setuptools calls it."""
    return shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")


def native_level() -> str:
    """Return the highest level that this processor has, and that the C compiler knows."""
    command = [*compiler(), "-march=native", "-dM", "-E", "-x", "c", "/dev/null"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:  # a compiler that knows no "native"
        return LEVELS[-1]
    defined = {line.split()[1] for line in done.stdout.splitlines()}
    level = "sse4"
    for name, macros in _MACROS.items():
        if not defined.issuperset(macros):
            break
        level = name
    return level


def built_levels() -> frozenset[str]:
    """Return the levels that are to be built, as `VARIABLE` says.

    Exits with a message where it names something else.
    """
    wanted = os.environ.get(VARIABLE) or "native"
    if wanted == "all":
        return frozenset(LEVELS)
    named = [native_level() if word == "native" else word for word in wanted.split(",")]
    for word in named:
        if word not in LEVELS:
            raise SystemExit(
                f"\nnarrowpass-xnn-cpu: {VARIABLE}: {word!r} is none of native, all, "
                f"{', '.join(LEVELS)}"
            )
    return frozenset({"sse4", *named, *(used for word in named for used in _USED_BY[word])})


def variants(file: str, levels: Collection[str] = LEVELS) -> dict[str, list[str]]:
    """Return the instruction sets that `file`, below ``csrc``, is compiled for, with their flags.

    A file that is not a template is compiled once, as the set "" without flags.

    Args:
        file: a path below ``csrc``.
        levels: those of x86-64 that are built.
    """
    names = TEMPLATES.get(file)
    if names is None:
        return {"": []}
    if is_x86():
        # Where a template has no code of its own for SSE4, that of "plain" is SSE4's.
        base = {"plain"} if "sse4" not in names else set()
        names = tuple(name for name in names if name in {*levels, *base})
    else:
        machine = platform.machine().lower()
        sets = _ARM if machine in {"aarch64", "arm64"} else ("plain",)
        names = tuple(name for name in names if name in sets)
    # Beside kernels of a higher level, the base only runs where a build is carried to an older
    # processor. Optimizing it less takes half the time, and computes the same bits.
    is_spare = is_x86() and "plain" not in levels and len(levels) > 1
    found: dict[str, list[str]] = {}
    for name in names:
        chosen = INSTRUCTION_SETS[name]
        found[name] = [f"-DNP_ISA={name}", f"-DLANES={chosen.lanes}", *chosen.flags]
        if is_spare and name in ("sse4", "plain"):
            found[name].append("-O1")
    return found
