"""Operators of onnxruntime's domain, which importers and exporters write; it judges them alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from narrowpass_testing.random_models._builder import Chain, Recipes, UnfitError
from narrowpass_testing.random_models._elements import TYPES

TABLE = Recipes()
DOMAIN = "com.microsoft"
WIDTHS = (1, 5, 16, 33)


def _add(c: Chain, operator: str, inputs: list[str], **attributes: Any) -> None:
    c.add(operator, inputs, domain=DOMAIN, **attributes)


def _rows(c: Chain, most: int = 3) -> str:
    """Take float32 of two axes or three, whose last one has weights."""
    return c.take(2, most, fits=lambda a: a.dtype == TYPES["float"])


@TABLE.block("contrib", "MatMulNBits")
def _nbits(c: Chain) -> None:
    x = _rows(c)
    k, n, bits, block = c.shape(x)[-1], c.pick(*WIDTHS), c.pick(4, 8), c.pick(16, 32, 64)
    count = -(-k // block)
    packed = c.numbers.integers(0, 256, (n, count, block * bits // 8)).astype(np.uint8)
    scales = c.numbers.uniform(0.01, 0.1, n * count).astype(np.float32)
    inputs = [x, c.constant(packed), c.constant(scales)]
    if c.chance(0.4):
        zeros = c.numbers.integers(0, 256, n * -(-count * bits // 8)).astype(np.uint8)
        inputs.append(c.constant(zeros))
    if c.chance(0.3):
        inputs += [""] * (5 - len(inputs)) + [c.weight((n,))]
    _add(c, "MatMulNBits", inputs, K=k, N=n, bits=bits, block_size=block)


@TABLE.block("contrib", "Gelu")
def _gelu(c: Chain) -> None:
    x = _rows(c)
    operator = c.pick("Gelu", "FastGelu", "QuickGelu", "BiasGelu")
    biased = operator == "BiasGelu" or (operator == "FastGelu" and c.chance(0.5))
    inputs = [x, c.weight(c.shape(x)[-1:])] if biased else [x]
    _add(c, operator, inputs, alpha=1.702 if operator == "QuickGelu" else None)


@TABLE.block("contrib", "FusedMatMul")
def _fused_matmul(c: Chain) -> None:
    x = _rows(c)
    k, n, right = c.shape(x)[-1], c.pick(*WIDTHS), c.pick(0, 1)
    w = c.weight((n, k) if right else (k, n))
    _add(c, "FusedMatMul", [x, w], alpha=c.pick(None, 0.5), transB=right)


@TABLE.block("contrib", "FusedGemm")
def _fused_gemm(c: Chain) -> None:
    x = _rows(c, 2)
    n = c.pick(*WIDTHS)
    inputs = [x, c.weight((c.shape(x)[-1], n)), c.weight((n,))]
    _add(c, "FusedGemm", inputs, activation=c.pick("Relu", "Tanh", "Sigmoid", "LeakyRelu"))


@TABLE.block("contrib", "SkipLayerNormalization")
def _skip(c: Chain) -> None:
    x = _rows(c)
    shape = c.shape(x)
    operator = c.pick("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
    inputs = [x, c.weight(shape, fed=0.6), c.weight(shape[-1:])]
    if operator == "SkipLayerNormalization" and c.chance(0.6):
        inputs.append(c.weight(shape[-1:]))
    c.add(operator, inputs, domain=DOMAIN, epsilon=0.01)


@TABLE.block("contrib", "Attention")
def _attention(c: Chain) -> None:
    x = c.take(3, 3, fits=lambda a: a.dtype == TYPES["float"])
    w, b = c.weight((c.shape(x)[-1], 24)), c.weight((24,))
    _add(c, "Attention", [x, w, b], num_heads=2, unidirectional=c.pick(0, 1))


@TABLE.block("contrib", "MultiHeadAttention")
def _heads(c: Chain) -> None:
    x = c.take(3, 3, fits=lambda a: a.dtype == TYPES["float"] and a.shape[-1] % 2 == 0)
    batch, _, width = c.shape(x)
    keys = c.pick(3, 8)
    k, v = (c.weight((batch, keys, width), fed=0.6) for _ in "kv")
    _add(c, "MultiHeadAttention", [x, k, v], num_heads=2)


@TABLE.block("contrib", "DynamicQuantizeMatMul")
def _quantized_rows(c: Chain) -> None:
    x = c.take(2, 3, fits=lambda a: a.dtype == TYPES["float"], exact=True)
    w = c.constant(c.numbers.integers(-9, 10, (c.shape(x)[-1], c.pick(*WIDTHS))).astype(np.int8))
    _add(c, "DynamicQuantizeMatMul", [x, w, c.constant(np.float32(0.01))])


@TABLE.block("contrib", "FusedConv")
def _fused_conv(c: Chain) -> None:
    x = c.take(4, 4, fits=lambda a: a.dtype == TYPES["float"])
    if not c.shape(x)[1]:
        raise UnfitError
    _add(c, "FusedConv", [x, c.weight((8, c.shape(x)[1], 1, 1))], activation="Relu")
