"""The processor that kernels are selected for: the one in use, or another one by name."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Self

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native import cpu, isa, kernels
from narrowpass_xnn_cpu.native.library import extension, unavailable
from narrowpass_xnn_cpu.native.xnnpack.probe import has_half_gemm


@dataclass(frozen=True)
class Target:
    """What selection depends on.

    Attributes:
        level: the instruction sets, one of `isa.LEVELS`.
        fp32_lanes: of our GEMM of float32; 0 where XNNPACK's is as fast.
        fp32_packing: lanes that our panels of float32 are packed for: 16 for AVX-512, otherwise 8.
        int8_is_own: whether our kernels of int8 are faster than XNNPACK's.
        int8_group: the K-group of our panels of int8: 4 bytes for VNNI, otherwise 2 of int16.
        bf16_level: the code of our kernels of bfloat16.
        has_half_gemm: whether XNNPACK has a GEMM of float16.
        half_accumulates_wide: whether that accumulates in float32.
        reads_tables: whether few rows are multiplied with a matrix as the model stores it.
    """

    level: str
    fp32_lanes: int
    fp32_packing: int
    int8_is_own: bool
    int8_group: int
    bf16_level: str
    has_half_gemm: bool
    half_accumulates_wide: bool
    reads_tables: bool

    @classmethod
    def named(cls, level: str, code: str = "best") -> Self:
        """Return the target of a level.

        Args:
            level: of the processor, one of `isa.LEVELS`.
            code: of our kernels: the best for it, or at most what is named; see `kernels.TARGET`.
        """
        rank = isa.LEVELS.index
        ours = level if code == "best" or rank(code) > rank(level) else code
        lanes = 16 if rank(level) >= rank("avx512") else 8 if level == "avx2" else 0
        bf16 = code if code == "avx512bf16" else ours
        return cls(
            level,
            lanes,
            max(8, lanes) if code == "best" else 8,
            # Ours have code for AVX2 and for VNNI; XNNPACK's for AVX-512 alone is its own, and
            # that for ARM multiplies int8 as such.
            level in ("avx2", "avx512vnni", "avx512bf16"),
            4 if rank(ours) >= rank("avx512vnni") else 2,
            "avx512" if bf16 == "avx512vnni" else bf16,
            has_half_gemm=lanes > 0,
            half_accumulates_wide=True,
            reads_tables=lanes > 0,
        )

    @property
    def has_fp32_gemm(self) -> bool:
        """Whether our GEMM and convolutions of float32 are faster than XNNPACK's."""
        return self.fp32_lanes > 0

    @property
    def has_int8_recurrence(self) -> bool:
        """Whether our recurrences multiply int8 weights: it takes VNNI."""
        return self.int8_group == 4

    @property
    def has_bf16(self) -> bool:
        """Whether our kernels of bfloat16 are compiled for instructions of this processor."""
        return self.bf16_level != "plain"

    @property
    def has_bf16_dot(self) -> bool:
        """Whether bfloat16 is multiplied at twice the rate of float32 (AVX512-BF16)."""
        return self.bf16_level == "avx512bf16"


OVERRIDES: dict[str, Any] = {}
"""Attributes of `current` that are replaced: for tests of kernels that are not selected here."""


_PLANNED: ContextVar[Target | None] = ContextVar("planned target", default=None)


@contextlib.contextmanager
def planning_for(target: Target) -> Iterator[None]:
    """Select kernels for a target, of which nothing is packed: plans of other processors."""
    token = _PLANNED.set(target)
    try:
        yield
    finally:
        _PLANNED.reset(token)


def current() -> Target:
    """Return the target that kernels are selected for: the processor's, or that of a plan.

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
    found = _detected(level, kernels.TARGET, wide=cpu.sums_halves_in_float32())
    return dataclasses.replace(found, **OVERRIDES) if OVERRIDES else found


def _listed() -> Target:
    """Return the target of the features that Linux lists."""
    try:
        found = Target.named(isa.listed(cpu.flags()), kernels.TARGET)
        return dataclasses.replace(found, half_accumulates_wide=cpu.sums_halves_in_float32())
    except isa.CapError as error:
        raise BackendError(str(error)) from error


@functools.cache
def _detected(level: str, code: str, *, wide: bool) -> Target:
    lib = extension().lib
    return dataclasses.replace(
        Target.named(level, code),
        has_half_gemm=has_half_gemm(),
        half_accumulates_wide=wide,
        reads_tables=bool(lib.np_gemv_panel_width(lib.NP_TABLE_F32)),
    )
