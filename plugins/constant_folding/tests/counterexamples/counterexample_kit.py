"""Counterexamples to naive rewrites; `test_counterexamples.py` runs them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np


class Counterexample(NamedTuple):
    """A model and what to feed it.

    Attributes:
        text: ONNX text of the graph and of functions.
        constants: initializers by name.
        feeds: by name; what is not there is drawn.
        opset: the operator set.
        ir: the IR version.
        more: further operator sets, as text.
        tolerance: relative; 0 for the same bits.
        runs: whether onnxruntime takes the model; it refuses a constant divisor of 0.
        left: operators that must still be there afterwards.
        gone: operators that must not.
    """

    text: str
    constants: Mapping[str, Any] = MappingProxyType({})
    feeds: Mapping[str, Any] = MappingProxyType({})
    opset: int = 17
    ir: int = 8
    more: str = ""
    tolerance: float = 0
    runs: bool = True
    left: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()


F = np.float32
S = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1.5, -2.25, 1e-40], F)
M = np.array([[1, 2, 3], [4, 5, 6]], F)


def i64(*numbers):
    return np.array(numbers, np.int64)


def unary(body, **options):
    """Return a case on eight special floats."""
    options.setdefault("feeds", {"x": S})
    return Counterexample(f"g (float[N] x) => (float[?] y) {{ {body} }}", **options)


def constant(body, kind="float", rank=1, **options):
    """Return a case whose result follows from constants alone."""
    dims = f"[{', '.join('?' * rank)}]" if rank else ""
    options.setdefault("gone", ())
    return Counterexample(
        f"g (float[1] x) => ({kind}{dims} y, float[1] z) {{ z = Abs(x) {body} }}", **options
    )
