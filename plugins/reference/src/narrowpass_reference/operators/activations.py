"""The functions that LSTM, GRU and RNN may be given by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Function = Callable[[Array], Array]
"""Takes an array and returns a new one of the same shape and dtype, element by element."""

_DEFAULTS = MappingProxyType(
    {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
)


def sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(-x)), as half of tanh: nothing overflows."""
    result: Array = 0.5 * np.tanh(0.5 * x) + x.dtype.type(0.5)
    return result


def _elu(x: Array, alpha: float) -> Array:
    return np.where(x >= 0, x, alpha * np.expm1(np.minimum(x, 0)))


_PLAIN: Mapping[str, Function] = MappingProxyType(
    {
        "relu": lambda x: np.maximum(x, 0),
        "sigmoid": sigmoid,
        "softplus": lambda x: np.logaddexp(0, x, dtype=x.dtype),
        "softsign": lambda x: x / (1 + np.abs(x)),
        "tanh": np.tanh,
    }
)
_WITH_ALPHA: Mapping[str, tuple[Callable[[Array, float], Array], float]] = MappingProxyType(
    {
        "elu": (_elu, 1.0),
        "leakyrelu": (lambda x, alpha: np.where(x >= 0, x, alpha * x), 0.01),
        "thresholdedrelu": (lambda x, alpha: np.where(x >= alpha, x, 0), 1.0),
    }
)
_WITH_BOTH: Mapping[str, tuple[Callable[[Array, float, float], Array], float, float]] = (
    MappingProxyType(
        {
            "affine": (lambda x, alpha, beta: alpha * x + beta, 1.0, 0.0),
            "hardsigmoid": (lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1), 0.2, 0.5),
            "scaledtanh": (lambda x, alpha, beta: alpha * np.tanh(beta * x), 1.0, 1.0),
        }
    )
)


def activations(
    op_type: str, attributes: Mapping[str, Any], directions: int
) -> list[list[Function]]:
    """Return the functions f, g, h of each direction, as many as the operator has.

    `activation_alpha` and `activation_beta` hold numbers for those functions that take one, in
    order; where the numbers end, functions have the defaults of the operators of the same names.

    Args:
        op_type: LSTM, GRU or RNN.
        attributes: the node's, those that are given. `activations` may hold bytes.
        directions: 1 or 2.

    Raises:
        ValueError: unknown functions, or too few or many.
    """
    usual = _DEFAULTS[op_type]
    given = [_text(name) for name in attributes.get("activations") or ()] or [*usual] * directions
    if op_type == "RNN":
        given = given[:directions]  # its default names two, for one direction as well
    if len(given) != len(usual) * directions:
        raise ValueError(
            f"{op_type} takes {len(usual) * directions} activations, not {len(given)}: "
            + ", ".join(given)
        )
    alphas = iter(_numbers(attributes.get("activation_alpha")))
    betas = iter(_numbers(attributes.get("activation_beta")))
    found = [_function(name, alphas, betas, op_type) for name in given]
    return [found[start : start + len(usual)] for start in range(0, len(found), len(usual))]


def _function(name: str, alphas: Iterator[float], betas: Iterator[float], op_type: str) -> Function:
    key = name.lower()
    if key in _PLAIN:
        return _PLAIN[key]
    if key in _WITH_ALPHA:
        one, default = _WITH_ALPHA[key]
        alpha = next(alphas, default)
        return lambda x: one(x, alpha)
    if key in _WITH_BOTH:
        both, first, second = _WITH_BOTH[key]
        alpha, beta = next(alphas, first), next(betas, second)
        return lambda x: both(x, alpha, beta)
    raise ValueError(f"{op_type} has no activation {name!r}")


def _numbers(values: Sequence[float] | None) -> list[float]:
    return [float(value) for value in values or ()]


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
