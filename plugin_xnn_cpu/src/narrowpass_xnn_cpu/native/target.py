"""The processor that kernels are selected for: the one in use, or another one by name."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any, Self

from narrowpass_xnn_cpu.native import isa, kernels
from narrowpass_xnn_cpu.native.library import extension


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
    """

    level: str
    fp32_lanes: int
    fp32_packing: int
    int8_is_own: bool
    int8_group: int
    bf16_level: str

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
        )

    @property
    def has_fp32_gemm(self) -> bool:
        """Whether our GEMM and convolutions of float32 are faster than XNNPACK's."""
        return self.fp32_lanes > 0

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


def current() -> Target:
    """Return the target that kernels run on."""
    found = _named(isa.in_use(extension().lib), kernels.TARGET)
    return dataclasses.replace(found, **OVERRIDES) if OVERRIDES else found


_named = functools.cache(Target.named)
