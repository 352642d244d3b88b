"""Features of the processor, from ``/proc/cpuinfo``."""

from __future__ import annotations

import functools
import platform
from pathlib import Path

from narrowpass_xnn_cpu.native import isa

_FLOAT16_ARITHMETIC = {"avx512_fp16", "asimdhp", "fphp"}
"""Flags of processors that have float16 arithmetic, as Linux names them."""
_CAPPED = {"avx512_fp16"}
"""Those that any level of `isa.cap` switches off."""


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
    return flags().isdisjoint(_FLOAT16_ARITHMETIC - _CAPPED if isa.cap() else _FLOAT16_ARITHMETIC)
