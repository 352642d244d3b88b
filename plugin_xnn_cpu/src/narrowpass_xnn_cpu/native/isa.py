"""The instruction sets in use: those of the processor, or fewer where ``NARROWPASS_ISA`` says so.

XNNPACK reads the processor's features from cpuinfo, once, when its library is loaded. To cap its
kernels too, cpuinfo is loaded before it, and features above the cap are cleared in its table.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
from pathlib import Path
from typing import Any

LEVELS = ("sse4", "plain", "avx2", "avx512", "avx512vnni", "avx512bf16", "avx512amx")
"""In the order of ``NP_TARGET_*``, from ``NP_TARGET_SSE4`` on. Each includes those before it.
``sse4`` and ``plain`` are x86-64-v2, below which XNNPACK calls kernels that it does not have;
``plain`` rounds as FMA does, which takes longer, and is also the level of other processors than
x86-64."""
SAME_BITS = LEVELS[LEVELS.index("plain") :]
"""Levels with which results have the same bits; ``sse4`` has other ones."""
VARIABLE = "NARROWPASS_ISA"
HOW_TO_BUILD = "build it on this processor, or with NARROWPASS_XNN_LEVELS=all"
"""What to do about a level that the build lacks; wheels have all of them."""

_CPUINFO = "libnarrowpass_xnn_threadpool.so"
_ABOVE = "above all levels"
_TABLE_SIZE = 85
_FEATURES = {
    "ssse3": (0x11, "sse4"),
    "sse4_1": (0x12, "sse4"),
    "sse4_2": (0x13, "sse4"),
    "avx": (0x16, "avx2"),
    "avx_vnni": (0x17, _ABOVE),
    "fma": (0x18, "avx2"),
    "fma4": (0x19, _ABOVE),
    "xop": (0x1A, _ABOVE),
    "f16c": (0x1B, "avx2"),
    "avx2": (0x1C, "avx2"),
    "avx512f": (0x1D, "avx512"),
    "avx512cd": (0x20, "avx512"),
    "avx512dq": (0x21, "avx512"),
    "avx512bw": (0x22, "avx512"),
    "avx512vl": (0x23, "avx512"),
    "avx512ifma": (0x24, _ABOVE),
    "avx512vbmi": (0x25, _ABOVE),
    "avx512_vbmi2": (0x26, _ABOVE),
    "avx512_bitalg": (0x27, _ABOVE),
    "avx512_vpopcntdq": (0x28, _ABOVE),
    "avx512_vnni": (0x29, "avx512vnni"),
    "avx512_bf16": (0x2A, "avx512bf16"),
    "avx512_fp16": (0x2B, _ABOVE),
    "gfni": (0x4B, _ABOVE),
}
"""By Linux's names: the index in ``cpuinfo_isa``, an array of bool, and the first level with it."""
_UNCHECKED = range(0x2F, 0x38)
"""Indices of AVX10, AMX and newer VNNI, which XNNPACK uses at no level; Linux may hide these."""
_TILES = frozenset({"amx_tile", "amx_int8", "amx_bf16"})
"""What the level ``avx512amx`` adds, by Linux's names."""


class CapError(ValueError):
    """``NARROWPASS_ISA`` names no level, or XNNPACK cannot be capped; the message says why."""


def cap() -> str:
    """Return the level that ``NARROWPASS_ISA`` names; empty where it is not set.

    Raises:
        CapError: it is none of `LEVELS`.
    """
    name = os.environ.get(VARIABLE, "")
    if name and name not in LEVELS:
        raise CapError(
            f"{VARIABLE}: {name!r} is none of {', '.join(LEVELS)}; name one of them, or unset it"
        )
    return name


def check_built(level: str, lib: Any) -> None:
    """Check that a build has kernels for the level that it is capped at.

    Raises:
        CapError: it has not.
    """
    if level not in built(lib):
        raise CapError(
            f"{VARIABLE}: this build has no kernels for {level}, but for {', '.join(built(lib))}; "
            f"name one of these, or {HOW_TO_BUILD}"
        )


def cap_xnnpack(name: str, folder: Path, present: frozenset[str], flags: int) -> None:
    """Cap the instruction sets of XNNPACK's kernels; must be called before XNNPACK is loaded.

    Args:
        name: one of `LEVELS`.
        folder: the folder of the bundled libraries.
        present: features of the processor, as Linux names them.
        flags: flags of ``dlopen``.

    Raises:
        CapError: cpuinfo's table does not have the known layout.
    """
    if platform.machine() != "x86_64":
        return  # there is one level only
    try:
        library = ctypes.CDLL(str(folder / _CPUINFO), flags)
        library.cpuinfo_initialize.restype = ctypes.c_bool
        ready = library.cpuinfo_initialize()
        table = (ctypes.c_uint8 * _TABLE_SIZE).in_dll(library, "cpuinfo_isa")
    except (OSError, AttributeError, ValueError) as error:
        raise CapError(f"{VARIABLE}: XNNPACK's kernels cannot be capped: {error}") from error
    above = {place for place, first in _FEATURES.values() if _is_above(first, name)}
    # A second call finds the features cleared that the first one cleared.
    wrong = [
        feature
        for feature, (place, _) in _FEATURES.items()
        if table[place] != (feature in present) and not (place in above and table[place] == 0)
    ]
    if wrong or not ready:
        raise CapError(
            f"{VARIABLE}: XNNPACK's kernels cannot be capped: cpuinfo and Linux disagree about "
            f"{', '.join(wrong) or 'this processor'}; unset the variable"
        )
    for place in (*above, *_UNCHECKED):
        table[place] = 0


def _is_above(first: str, name: str) -> bool:
    return first == _ABOVE or LEVELS.index(first) > LEVELS.index(name)


def listed(present: frozenset[str]) -> str:
    """Return the highest level whose features are all present: for plans without the library.

    Args:
        present: features of the processor, as Linux names them.
    """
    found = "plain"
    if platform.machine() != "x86_64":
        return found
    for level in LEVELS[LEVELS.index("avx2") :]:
        wanted = {name for name, (_, first) in _FEATURES.items() if first == level}
        if not (wanted or _TILES) <= present:
            break
        found = level
    capped = cap() or (found if found != "plain" else "sse4")
    return min(found, capped, key=LEVELS.index)


def in_use(lib: Any) -> str:
    """Return the level that kernels use, one of `LEVELS`."""
    return LEVELS[lib.np_isa() - 1]


def detected(lib: Any) -> str:
    """Return the level of the processor, or the highest below it that the build has."""
    return LEVELS[lib.np_isa_detected() - 1]


def of_processor(lib: Any) -> str:
    """Return the level of the processor, one of `LEVELS`, whatever the build has."""
    return LEVELS[lib.np_isa_of_processor() - 1]


def built(lib: Any) -> tuple[str, ...]:
    """Return the levels that the build has kernels for, in the order of `LEVELS`."""
    return tuple(name for level, name in enumerate(LEVELS, 1) if lib.np_isa_is_built(level))


def unused_amx(lib: Any) -> str:
    """Return why AMX, which the processor and the build have, cannot be used; empty otherwise."""
    if lib.np_isa_amx() == lib.NP_AMX_REFUSED:
        return "refused by the operating system (Linux 5.16 or later permits it)"
    return ""


_FLOAT16_ARITHMETIC = {"avx512_fp16", "asimdhp", "fphp"}
"""Flags of processors that have float16 arithmetic, as Linux names them."""
_CAPPED = {"avx512_fp16"}
"""Those that any level of `cap` switches off."""


def is_x86() -> bool:
    """Return whether this is an x86-64 processor."""
    return platform.machine().lower() in ("x86_64", "amd64")


@functools.cache
def flags() -> frozenset[str]:
    """Return the processor's features as Linux names them; none where it does not list them."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(rest.split())
    return frozenset()


def accumulates_float16_in_float32() -> bool:
    """Return whether XNNPACK accumulates float16 matmuls in float32.

    It does where it upcasts operands; with float16 arithmetic it accumulates in float16.
    """
    return flags().isdisjoint(_FLOAT16_ARITHMETIC - _CAPPED if cap() else _FLOAT16_ARITHMETIC)
