"""Which code of the bf16 kernels runs where none is named, against what Linux says there is."""

from __future__ import annotations

import platform

import pytest

from narrowpass_xnn_cpu.native import isa, library, target

V4 = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
"""What AVX-512 has in x86-64-v4, for which the kernels are compiled."""


@pytest.mark.skipif(not isa.flags(), reason="no /proc/cpuinfo here")
def test_the_best_level_is_capped():
    flags = isa.flags()
    expected = "plain"
    rank = isa.LEVELS.index
    cap = rank(isa.cap() or isa.LEVELS[-1])
    if platform.machine() == "x86_64":
        if {"avx2", "fma"} <= flags and cap >= rank("avx2"):
            expected = "avx2"
        if flags >= V4 and cap >= rank("avx512"):
            pairs = "avx512_bf16" in flags and cap >= rank("avx512bf16")
            expected = "avx512bf16" if pairs else "avx512"
            if pairs and cap >= rank("avx512amx") and library.extension().lib.np_isa_amx() == 0:
                expected = "avx512amx"
    assert target.current().bf16_level == expected
