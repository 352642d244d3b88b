"""How much more, or less, noise candidates have in whole models than units alone have together.

Noise of independent roundings adds; that of one candidate in many units is not quite independent,
and data has samples that single units were not run on. So the noise of each candidate has a factor,
of least squared relative error over the runs of whole models, none below 0, with a penalty on what
differs from the mean. Least squares with bounds: Lawson and Hanson, *Solving Least Squares
Problems*, 1974.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

_PENALTY = 0.1
_LEAST = 0.05
"""No factor is below so much of the mean: runs may have been lucky."""


class Sensitivity:
    """Factors of candidates, fitted to runs.

    Args:
        names: of the candidates.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)
        self._noise: list[list[float]] = []
        self._measured: list[float] = []
        self._fitted = dict.fromkeys(names, 1.0)
        self._doubts: dict[str, float] = {}

    @property
    def factors(self) -> dict[str, float]:
        """By the name of each candidate, what the noise of its units alone is multiplied by."""
        return {name: fitted * self._doubts.get(name, 1.0) for name, fitted in self._fitted.items()}

    def doubt(self, name: str, factor: float) -> None:
        """Multiply the noise of a candidate by a factor, whatever its runs showed.

        Args:
            name: of the candidate.
            factor: by which other samples have more noise than those of the runs.
        """
        self._doubts[name] = factor

    def add(self, noise: Mapping[str, float], measured: float) -> None:
        """Note a run, and fit again.

        Args:
            noise: that the units of each candidate alone add to the outputs, by its name.
            measured: of the outputs. Runs without noise are left out.
        """
        row = [noise.get(name, 0.0) for name in self._names]
        if not (np.isfinite(measured) and measured > 0.0 and np.isfinite(row).all() and any(row)):
            return
        self._noise.append(row)
        self._measured.append(measured)
        rows = np.array(self._noise) / np.array(self._measured)[:, None]
        mean = float(np.exp(np.mean(-np.log(rows.sum(axis=1)))))
        count = len(self._names)
        penalty = np.sqrt(_PENALTY) * np.eye(count) / mean
        system = np.vstack([rows, penalty])
        wanted = np.concatenate([np.ones(len(rows)), np.full(count, np.sqrt(_PENALTY))])
        from scipy.optimize import nnls

        fitted, _ = nnls(system, wanted)
        least = _LEAST * mean
        self._fitted = {
            name: max(float(value), least) for name, value in zip(self._names, fitted, strict=True)
        }
