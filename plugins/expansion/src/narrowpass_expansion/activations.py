"""Activations: forms of GELU and SiLU, with a bias before them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from narrowpass_expansion.emitter import Emitter


def gelu(e: Emitter) -> Sequence[ir.Value]:
    """Write x · Φ(x)."""
    return [e.op("Gelu", e.required(0, "X"))]


def bias_gelu(e: Emitter) -> Sequence[ir.Value]:
    """Write GELU of x + bias."""
    return [e.op("Gelu", e.op("Add", e.required(0, "A"), e.required(1, "B")))]


def fast_gelu(e: Emitter) -> Sequence[ir.Value]:
    """Write GELU by tanh, of x + bias where there is one."""
    x, bias = e.required(0, "X"), e.input(1)
    if bias is not None:
        x = e.op("Add", x, bias)
    return [e.op("Gelu", x, approximate="tanh")]


def quick_gelu(e: Emitter) -> Sequence[ir.Value]:
    """Write x · sigmoid(alpha · x), alpha being 1.702 where nothing is said."""
    return [_sigmoid_product(e, float(e.get("alpha", 1.702)))]


def swish(e: Emitter) -> Sequence[ir.Value]:
    """Write x · sigmoid(alpha · x), alpha being 1 where nothing is said."""
    return [_sigmoid_product(e, float(e.get("alpha", 1.0)))]


def _sigmoid_product(e: Emitter, alpha: float) -> ir.Value:
    x = e.required(0, "X")
    scaled = x if alpha == 1 else e.op("Mul", x, number(e, alpha, x))
    return e.op("Mul", x, e.op("Sigmoid", scaled))


def number(e: Emitter, value: float, like: ir.Value) -> ir.Value:
    """Give a constant scalar of the type of an input."""
    return e.const(np.float64(value), e.dtype(like))
