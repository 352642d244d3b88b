"""Activations: GELU (Hendrycks and Gimpel, arXiv:1606.08415), its approximations, and SiLU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from narrowpass_expansion.emitter import Emitter


def gelu(e: Emitter) -> Sequence[ir.Value]:
    """Emit x · Φ(x)."""
    return [e.op("Gelu", e.required(0, "X"))]


def bias_gelu(e: Emitter) -> Sequence[ir.Value]:
    """Emit GELU of x + bias."""
    return [e.op("Gelu", e.op("Add", e.required(0, "A"), e.required(1, "B")))]


def fast_gelu(e: Emitter) -> Sequence[ir.Value]:
    """Emit GELU by tanh, of x + bias where there is one."""
    x, bias = e.required(0, "X"), e.input(1)
    if bias is not None:
        x = e.op("Add", x, bias)
    return [e.op("Gelu", x, approximate="tanh")]


def quick_gelu(e: Emitter) -> Sequence[ir.Value]:
    """Emit x · sigmoid(alpha · x), with alpha 1.702 by default."""
    return [_silu(e, float(e.get("alpha", 1.702)))]


def swish(e: Emitter) -> Sequence[ir.Value]:
    """Emit x · sigmoid(alpha · x), with alpha 1 by default."""
    return [_silu(e, float(e.get("alpha", 1.0)))]


def _silu(e: Emitter, alpha: float) -> ir.Value:
    x = e.required(0, "X")
    scaled = x if alpha == 1 else e.op("Mul", x, scalar_like(e, alpha, x))
    return e.op("Mul", x, e.op("Sigmoid", scaled))


def scalar_like(e: Emitter, value: float, like: ir.Value) -> ir.Value:
    """Return a constant scalar of the element type of `like`."""
    return e.const(np.float64(value), e.dtype(like))
