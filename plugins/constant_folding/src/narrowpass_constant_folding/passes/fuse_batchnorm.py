"""The pass ``fuse-batchnorm``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from narrowpass_constant_folding.fusion import absorb
from narrowpass_constant_folding.rewrite import Rewrite

if TYPE_CHECKING:
    from narrowpass_constant_folding.rewrite import Work


@dataclass(frozen=True)
class FuseBatchnorm(Rewrite):
    """Fold BatchNormalization, and scaling by constants, into the weights before it.

    The operator before it is a Conv, ConvTranspose, Gemm or BatchNormalization with constant
    weights that no other node reads. New weights are computed in float64 and rounded once, so
    that results change by rounding. Their names are those of their operands, joined by a
    colon, and so equal in all methods with equal weights.
    """

    name: ClassVar[str] = "fuse-batchnorm"

    def apply(self, work: Work) -> None:
        """Fuse BatchNormalization in inference, Mul and Div by a constant for each channel.

        Counters: ``fused``.
        """
        absorb(work, "BatchNormalization", "Mul", "Div")
