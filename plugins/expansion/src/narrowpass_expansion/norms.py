"""LayerNormalization (arXiv:1607.06450) and RMSNorm (arXiv:1910.07467) with residual and bias."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from narrowpass_expansion.emitter import Emitter, Unsupported


def rms_norm(e: Emitter) -> Sequence[ir.Value | None]:
    """Emit RMSNormalization for SimplifiedLayerNormalization, onnxruntime's name of it."""
    if e.is_used(1):
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


def skip_layer_norm(e: Emitter) -> Sequence[ir.Value | None]:
    """Emit LayerNormalization of input + skip + bias."""
    total = _residual_sum(e, e.input(4))
    normal = e.op(
        "LayerNormalization",
        total,
        e.required(2, "gamma"),
        e.input(3),
        axis=-1,
        epsilon=e.get("epsilon", 1e-12),
    )
    return [normal, None, None, total]


def skip_rms_norm(e: Emitter) -> Sequence[ir.Value | None]:
    """Emit RMSNormalization of input + skip + bias."""
    total = _residual_sum(e, e.input(3))
    normal = e.op(
        "RMSNormalization",
        total,
        e.required(2, "gamma"),
        axis=-1,
        epsilon=e.get("epsilon", 1e-12),
    )
    return [normal, None, None, total]


def _residual_sum(e: Emitter, bias: ir.Value | None) -> ir.Value:
    """Emit input + bias + skip.

    The bias is added first: mostly it belongs to the matmul before, which fuses it.
    """
    if e.is_used(1) or e.is_used(2):
        raise Unsupported("its output mean or inv_std_var is used")
    x = e.required(0, "input")
    if bias is not None:
        x = e.op("Add", x, bias)
    return e.op("Add", x, e.required(1, "skip"))
