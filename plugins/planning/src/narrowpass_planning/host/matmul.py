"""Numpy kernels: Einsum, and MatMul and Gemm of float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from narrowpass_planning.graph.op import Op

Array = np.ndarray[Any, Any]
Kernel = Callable[..., Any]


def einsum(op: Op) -> Kernel:
    """Return Einsum."""
    equation = str(op.attributes["equation"]).replace(" ", "")
    return lambda *given: np.asarray(np.einsum(equation, *given, optimize=True), given[0].dtype)


def matmul(_: Op) -> Kernel:
    """Return MatMul."""
    return np.matmul


def gemm(op: Op) -> Kernel:
    """Return alpha · A · B + beta · C."""
    alpha, beta = op.get("alpha", 1.0), op.get("beta", 1.0)
    turn_a, turn_b = bool(op.get("transA", 0)), bool(op.get("transB", 0))

    def run(a: Array, b: Array, c: Array | None = None) -> Array:
        result = (a.T if turn_a else a) @ (b.T if turn_b else b)
        whole = result * alpha if alpha != 1.0 else result
        return np.asarray(whole if c is None else whole + beta * c, a.dtype)

    return run
