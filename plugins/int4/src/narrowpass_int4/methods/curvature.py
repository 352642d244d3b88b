"""How the error of a layer's outputs grows with that of its weights: the damped Hessian."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from narrowpass_int4.threads import threads_for

Array = np.ndarray[Any, Any]

DAMPING = 0.01
"""The share of the mean of the Hessian's diagonal that is added to it."""

SMALL = 128
"""Rows of a triangular matrix that LAPACK inverts; larger ones are inverted by halves."""


class Curvature:
    """What GPTQ needs of ``X · Xᵀ``, computed once for all weights that are multiplied with X.

    Args:
        hessian: float [K, K], ``X · Xᵀ``.
    """

    def __init__(self, hessian: Array) -> None:
        self._hessian = hessian
        self.diagonal: Array = np.diag(hessian).copy()
        self._mean = float(self.diagonal.mean()) or 1.0

    @property
    def size(self) -> int:
        """K."""
        return len(self._hessian)

    @functools.cached_property
    def damped(self) -> Array:
        """The Hessian with `DAMPING`, float32 [K, K].

        Without it, coordinate descent would fit chance correlations with a channel of large
        activations.
        """
        found: Array = np.array(self._hessian, np.float32)
        place = np.arange(self.size)
        found[place, place] += np.float32(DAMPING * self.diagonal.mean())
        return found

    @functools.cached_property
    def importance(self) -> Array:
        """The mean square of each channel over that of all, float32 [K], above 0."""
        found = self.diagonal.astype(np.float32) / np.float32(max(self.diagonal.mean(), 1e-30))
        positive: Array = np.maximum(found, np.float32(1e-6))
        return positive

    @functools.cached_property
    def order(self) -> Array:
        """The columns, those with the largest diagonal first: int64 [K]."""
        found: Array = np.argsort(-self.diagonal, kind="stable")
        return found

    @functools.cached_property
    def factor(self) -> Array:
        """The upper Cholesky factor of the inverse of the damped Hessian in `order`, float32.

        Raises:
            ValueError: the Hessian cannot be factored.
        """
        place = np.arange(self.size)
        damped = self._hessian.copy()
        damped[place, place] += np.where(self.diagonal == 0, self._mean, 0.0) + DAMPING * self._mean
        damped = damped[np.ix_(self.order, self.order)]
        with threads_for(self.size):
            for _ in range(8):
                try:
                    # With rows and columns reversed, a lower factor becomes an upper one.
                    lower = np.linalg.cholesky(damped[::-1, ::-1])
                except np.linalg.LinAlgError:
                    damped[place, place] += 10 * DAMPING * self._mean
                    continue
                return inverse_of_upper(lower[::-1, ::-1]).astype(np.float32)
        raise ValueError("the Hessian cannot be factored")


def inverse_of_upper(matrix: Array) -> Array:
    """Return the inverse of an upper triangular matrix, of its dtype, by halves.

    ``[[A, B], [0, C]]`` has the inverse ``[[A⁻¹, -A⁻¹ · B · C⁻¹], [0, C⁻¹]]``: a sixth of the
    operations of a general inverse, nearly all of them in matmuls.
    """
    size = len(matrix)
    if size <= SMALL:
        return np.triu(np.linalg.inv(matrix))
    half = size // 2
    found = np.zeros_like(matrix, order="C")
    found[:half, :half] = first = inverse_of_upper(matrix[:half, :half])
    found[half:, half:] = second = inverse_of_upper(matrix[half:, half:])
    found[:half, half:] = -(first @ matrix[:half, half:]) @ second
    return found
