"""What the tests of the bf16 kernels share: an emulator for the code that few processors run."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from narrowpass_xnn_cpu.native import isa, kernels

EPSILON = 2.0**-8
"""The most that rounding to bfloat16 changes a number by, relative to it."""
UNIT = 2.0**-24
"""The same of float32."""
WITHOUT_AVX512 = {"avx512f", "avx512bw", "avx512vl"} - isa.flags()


@functools.cache
def emulator() -> ctypes.CDLL:
    """Return the library that executes AVX512-BF16 where the processor does not.

    Skips the test where there is no compiler for it, or nothing that it could stand on.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        pytest.skip("the emulator is for Linux on x86-64")
    if WITHOUT_AVX512:
        pytest.skip(f"this processor has no {', '.join(sorted(WITHOUT_AVX512))}")
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("there is no C compiler to build the emulator with")
    source = Path(__file__).parents[1] / "gemm" / "bf16_emulator.c"
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder, "emulator.so")
        subprocess.run([compiler, *flags, str(source), "-lm", "-o", str(built)], check=True)
        library = ctypes.CDLL(str(built))
    library.count.restype = ctypes.c_uint64
    return library


def executed() -> list[int]:
    """Return how often the emulator ran VDPBF16PS, VCVTNEPS2BF16 and VCVTNE2PS2BF16."""
    return [emulator().count(what) for what in range(3)]


@contextlib.contextmanager
def executing() -> Iterator[None]:
    """Assert that what runs within is the code that was asked for, where that can be seen."""
    seen = kernels.TARGET == "avx512bf16" and "avx512_bf16" not in isa.flags()
    before = executed() if seen else []
    yield
    assert not seen or executed() != before, "nothing was emulated"


@np.errstate(all="ignore")
def bfloat16(x: np.ndarray) -> np.ndarray:
    """Round float32 to bfloat16 by arithmetic of integers; return these numbers as float32."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32)
    quieted = np.where(np.isnan(x), np.float32(np.nan), rounded.view(np.float32))
    return np.where(np.abs(x) < 2.0**-126, np.float32(0), quieted)
