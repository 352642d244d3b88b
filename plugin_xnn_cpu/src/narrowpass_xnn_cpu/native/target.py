"""The processor that kernels are selected for: this one, or another one by name."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Self

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native import isa, kernels
from narrowpass_xnn_cpu.native.library import extension, unavailable


@dataclass(frozen=True)
class Target:
    """What selection depends on.

    Attributes:
        level: the instruction sets, one of `isa.LEVELS`.
        fp32_lanes: SIMD lanes of our float32 GEMM; 0 where XNNPACK's is as fast. Where FMA is
            emulated, those that panels are packed for.
        fp32_packing: SIMD lanes that our float32 panels are packed for: 16 for AVX-512, else 8.
        int8_is_own: whether our int8 kernels are faster than XNNPACK's.
        int8_group: the K-group of our int8 panels: 4 bytes for VNNI, otherwise 2 of int16.
        has_amx: whether our kernels of int8 panels by K-groups of 4 multiply tiles of AMX.
        bf16_level: the instruction sets of our bfloat16 kernels.
        has_float16_gemm: whether XNNPACK has a float16 GEMM.
        float16_accumulates_in_float32: whether that GEMM accumulates in float32.
        reads_unpacked: whether there is a GEMV that reads a matrix as the model stores it.
        has_fma: whether there is FMA, which all but x86-64 below AVX2 have: without it XNNPACK's
            results have other bits than those of other instruction sets.
    """

    level: str
    fp32_lanes: int
    fp32_packing: int
    int8_is_own: bool
    int8_group: int
    has_amx: bool
    bf16_level: str
    has_float16_gemm: bool
    float16_accumulates_in_float32: bool
    reads_unpacked: bool
    has_fma: bool

    @classmethod
    def named(cls, level: str, code: str = "best") -> Self:
        """Return the target of a level.

        Args:
            level: instruction sets of the processor, one of `isa.LEVELS`.
            code: highest instruction sets of our kernels; see `kernels.TARGET`.
        """
        rank = isa.LEVELS.index
        ours = level if code == "best" or rank(code) > rank(level) else code
        lanes = (
            16 if rank(level) >= rank("avx512") else 8 if level != "sse4" and isa.is_x86() else 0
        )
        bf16 = code if code == "avx512bf16" else max(ours, "plain", key=rank)
        return cls(
            level,
            lanes,
            max(8, lanes) if code == "best" else 8,
            # Ours have code for AVX2 and VNNI. XNNPACK's is better for AVX-512 without VNNI, and
            # for ARM, where it uses dot products of int8.
            level == "avx2" or rank(level) >= rank("avx512vnni"),
            4 if rank(ours) >= rank("avx512vnni") else 2,
            ours == "avx512amx",
            "avx512" if bf16 == "avx512vnni" else bf16,
            has_float16_gemm=rank(level) >= rank("avx2"),
            float16_accumulates_in_float32=True,
            reads_unpacked=lanes > 0,
            has_fma=rank(level) >= rank("avx2") or not isa.is_x86(),
        )

    @property
    def has_fp32_gemm(self) -> bool:
        """Whether our GEMM and convolutions of float32 are used, not XNNPACK's."""
        return self.fp32_lanes > 0

    @property
    def emulates_fma(self) -> bool:
        """Whether our kernels round as FMA does, and the processor has none, or may not use it."""
        return self.level == "plain" and self.has_fp32_gemm and not self.has_fma

    @property
    def has_bf16(self) -> bool:
        """Whether our bfloat16 kernels have SIMD code for this processor."""
        return self.bf16_level != "plain"

    @property
    def has_bf16_dot(self) -> bool:
        """Whether there are dot products of bfloat16: AVX512-BF16, or tiles of AMX."""
        return self.bf16_level in ("avx512bf16", "avx512amx")


OVERRIDES: dict[str, Any] = {}
"""Attributes that `current` replaces, for tests of kernels that this processor does not select."""


_PLANNED: ContextVar[Target | None] = ContextVar("planned target", default=None)


@contextlib.contextmanager
def planning_for(target: Target) -> Iterator[None]:
    """Select kernels for another processor within this context: for plans, which pack nothing."""
    token = _PLANNED.set(target)
    try:
        yield
    finally:
        _PLANNED.reset(token)


def current() -> Target:
    """Return the target that kernels are selected for: this processor, or `planning_for`'s.

    Without the library, which plans do not need, the processor's features are what Linux lists.

    Raises:
        BackendError: ``NARROWPASS_ISA`` names no level.
    """
    planned = _PLANNED.get()
    if planned is not None:
        return planned
    if unavailable() is not None:
        return _listed()
    level = isa.in_use(extension().lib)
    found = _detected(level, kernels.TARGET, wide=isa.accumulates_float16_in_float32())
    return dataclasses.replace(found, **OVERRIDES) if OVERRIDES else found


def _listed() -> Target:
    """Return the target of the features that Linux lists."""
    try:
        found = Target.named(isa.listed(isa.flags()), kernels.TARGET)
        wide = isa.accumulates_float16_in_float32()
        return dataclasses.replace(found, float16_accumulates_in_float32=wide)
    except isa.CapError as error:
        raise BackendError(str(error)) from error


@functools.cache
def _detected(level: str, code: str, *, wide: bool) -> Target:
    lib = extension().lib
    return dataclasses.replace(
        Target.named(level, code),
        has_float16_gemm=has_float16_gemm(),
        float16_accumulates_in_float32=wide,
        reads_unpacked=bool(lib.np_gemv_panel_width(lib.NP_TABLE_F32)),
    )


@functools.cache
def has_float16_gemm() -> bool:
    """Return whether XNNPACK has a GEMM of float16 here: on x86-64 it needs AVX2 and F16C."""
    ffi, lib = extension().ffi, extension().lib
    handle = ffi.new("xnn_operator_t *")
    kernel, null = ffi.new("uint16_t[1]"), ffi.NULL
    status = lib.xnn_create_fully_connected_nc_f16(
        1, 1, 1, 1, kernel, null, -math.inf, math.inf, 0, null, handle
    )
    if not status:
        lib.xnn_delete_operator(handle[0])
    return bool(status != lib.xnn_status_unsupported_hardware)
