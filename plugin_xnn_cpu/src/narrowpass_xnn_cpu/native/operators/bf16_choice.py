"""Which matmuls and convolutions with weights of bfloat16 our kernels compute; see the table."""

from __future__ import annotations

from narrowpass_xnn_cpu.native import target
from narrowpass_xnn_cpu.native.table.matmul import bf16_passed_over


def is_fast() -> bool:
    """Return whether our kernels are compiled for instructions that this processor has."""
    return target.current().has_bf16


def multiplies_pairs() -> bool:
    """Return whether bfloat16 is multiplied at twice the rate of float32."""
    return target.current().has_bf16_dot


def product_is_ours(rows: int | None) -> bool:
    """Return whether our kernel computes a matmul of so many rows, or of an unknown number."""
    return not bf16_passed_over(rows, target.current())


def convolution_is_ours(*, depthwise: bool) -> bool:
    """Return whether a convolution is computed by our kernel."""
    return multiplies_pairs() and not depthwise
