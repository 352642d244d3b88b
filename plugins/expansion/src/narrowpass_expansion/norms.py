"""Normalizations with what ORT's optimizer puts into them: a residual, a bias."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from narrowpass_expansion.emitter import Emitter, Unsupported


def simplified(e: Emitter) -> Sequence[ir.Value | None]:
    """Write RMSNormalization, under the name that ORT gave it before ONNX had it."""
    if e.wants(1):
        raise Unsupported("its output inv_std_var is used")
    x, scale = e.required(0, "X"), e.required(1, "scale")
    return [
        e.op(
            "RMSNormalization",
            x,
            scale,
            axis=e.get("axis", -1),
            epsilon=e.get("epsilon", 1e-5),
            stash_type=e.get("stash_type", 1),
        )
    ]


def skip(e: Emitter) -> Sequence[ir.Value | None]:
    """Write LayerNormalization of input + skip + bias."""
    total = _sum(e, e.input(4))
    normal = e.op(
        "LayerNormalization",
        total,
        e.required(2, "gamma"),
        e.input(3),
        axis=-1,
        epsilon=e.get("epsilon", 1e-12),
    )
    return [normal, None, None, total]


def skip_simplified(e: Emitter) -> Sequence[ir.Value | None]:
    """Write RMSNormalization of input + skip + bias."""
    total = _sum(e, e.input(3))
    normal = e.op(
        "RMSNormalization",
        total,
        e.required(2, "gamma"),
        axis=-1,
        epsilon=e.get("epsilon", 1e-12),
    )
    return [normal, None, None, total]


def _sum(e: Emitter, bias: ir.Value | None) -> ir.Value:
    """Write what is normalized.

    The bias first: it is mostly that of the product before, which then has it for nothing.
    """
    if e.wants(1) or e.wants(2):
        raise Unsupported("its output mean or inv_std_var is used")
    x = e.required(0, "input")
    if bias is not None:
        x = e.op("Add", x, bias)
    return e.op("Add", x, e.required(1, "skip"))
