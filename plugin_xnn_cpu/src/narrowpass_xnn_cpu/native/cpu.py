"""What the processor has, where a choice depends on it."""

from __future__ import annotations

import functools
from pathlib import Path

from narrowpass_xnn_cpu.native import isa

_HALF_SUMS = {"avx512_fp16", "asimdhp", "fphp"}
"""Flags of processors that have float16 arithmetic, as Linux names them."""
_CAPPED = {"avx512_fp16"}
"""Those that are not used where `isa.cap` caps instruction sets."""


@functools.cache
def flags() -> frozenset[str]:
    """Return the processor's features as Linux names them; none where it does not say."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(rest.split())
    return frozenset()


def sums_halves_in_float32() -> bool:
    """Return whether XNNPACK accumulates float16 matmuls in float32.

    It does where it upcasts operands; where there is float16 arithmetic it accumulates in float16.
    """
    return flags().isdisjoint(_HALF_SUMS - _CAPPED if isa.cap() else _HALF_SUMS)
