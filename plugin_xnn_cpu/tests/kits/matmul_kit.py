"""Shared by the tests of matmuls on float32 rows."""

from __future__ import annotations

import math

import numpy as np

from narrowpass_planning.plan.executor import Entry
from narrowpass_xnn_cpu.native.runtime.pool import shared
from narrowpass_xnn_cpu.native.runtime.tape import Tape, aligned


def run(operator, x: np.ndarray, threads: int = 1, residual=None, in_place=False) -> np.ndarray:
    """Run an operator."""
    pool = shared(threads)
    params = operator.reshape(len(x), pool)
    inputs = (0,) if residual is None else (0, 2)
    tape = Tape([Entry(operator.call, inputs, 1, operator, params, True, "node")], 3)
    result = np.full((len(x), operator.outputs), np.nan, np.float32)
    if residual is not None:
        if in_place:
            result[...] = residual
        tape.bind(2, result if in_place else residual)
    workspace = aligned(operator.workspace)
    rows = aligned(x.nbytes)[: x.nbytes].view(np.float32).reshape(x.shape)
    rows[...] = x
    tape.bind(0, rows)
    tape.bind(1, result)
    tape.bind_workspace(workspace, 0)
    tape.run(pool)
    return result


def after(function: str, x: np.ndarray) -> np.ndarray:
    """Apply a function of an epilogue, in float64."""
    if function == "gelu":
        return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2
    if function == "tanh-gelu":
        return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
    if function == "silu":
        return x / (1 + np.exp(-x))
    if function == "hard-swish":
        return x * np.clip(x / 6 + 0.5, 0, 1)
    return np.clip(x, -1, 2)
