"""Clipping ranges of operands of matmuls, chosen by the error of the matmuls' results.

The range with the least error of a value itself may be a bad one for the matmuls that read it.
Clipped elements are few, but in transformers they are the same in all rows: outlier channels, and
rows with high attention. Their errors do not average out in a matmul, as rounding errors do. So
ranges from that of the calibrator to that of all elements are compared by the relative error of
each row of the results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from narrowpass.runtime.quantization import Parameters
from narrowpass_analysis.values import run_on_samples, split_groups
from narrowpass_analysis.verification import judging_backends
from narrowpass_int8_sym.calibration import Range
from narrowpass_int8_sym.scales import of_range
from narrowpass_int8_sym.weighted_nodes import WeightedNode
from narrowpass_ir.constants import constant_tensor

if TYPE_CHECKING:
    from narrowpass import Backend, Samples

Array = np.ndarray[Any, Any]

SAMPLES = 8
"""The largest number of samples."""

ROWS = 64
"""The largest number of rows of each sample, evenly spaced."""

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Candidates: the interpolation factors between the calibrator's range and that of all elements."""

_PROJECTIONS = 64
"""Columns of random signs that results are projected on, which preserves their squared norm on
average (Johnson and Lindenstrauss, 1984) and costs less than the whole matmul."""

_COLUMNS = 4096
"""Columns of a weight that are projected at once, so that it is not copied as a whole."""


def best_clipping_ranges(
    model: ir.Model,
    readers: Mapping[ir.Value, Sequence[WeightedNode]],
    narrow: Mapping[str, Range],
    whole: Mapping[str, Range],
    samples: Samples,
    target: Backend | None,
    *,
    symmetric: bool,
    limit: int,
) -> dict[str, Range]:
    """Choose clipping ranges between narrow and whole ones.

    Args:
        model: in float32; not changed.
        readers: the matmuls that read a value, by the value.
        narrow: the calibrator's range of each value, by name.
        whole: the range of all elements.
        samples: feeds for the model.
        target: what runs it; the reference evaluator where it is None or not available.
        symmetric: whether the zero points are 0.
        limit: the largest number of samples.

    Returns:
        The chosen range of each value, by name, where it is not the narrow one.

    Raises:
        BackendError: the model cannot be run.
    """
    names = {
        value.name: weighted_nodes
        for value, weighted_nodes in readers.items()
        if value.name and narrow[value.name] != whole[value.name]
    }
    found: dict[str, Range] = {}
    backend = judging_backends(target)[-1]
    for group in split_groups(list(names)):
        errors = {
            name: _MatmulErrors(
                _candidates_between(narrow[name], whole[name]), names[name], symmetric=symmetric
            )
            for name in group
        }
        for *_, values in run_on_samples(model, group, samples, backend, limit):
            for name, each in errors.items():
                each.add_sample(values[name])
        found |= {name: each.best() for name, each in errors.items()}
    return {name: chosen for name, chosen in found.items() if chosen != narrow[name]}


def _candidates_between(narrow: Range, whole: Range) -> list[Range]:
    """Return the candidates, the narrowest first; each has the histogram of the narrow one."""
    return [
        Range(
            narrow.low + share * (min(whole.low, narrow.low) - narrow.low),
            narrow.high + share * (max(whole.high, narrow.high) - narrow.high),
            narrow.histogram,
        )
        for share in SHARES
    ]


class _MatmulErrors:
    """The relative error of the matmuls' results, for each candidate range, over all rows."""

    def __init__(
        self,
        candidates: Sequence[Range],
        weighted_nodes: Sequence[WeightedNode],
        *,
        symmetric: bool,
    ) -> None:
        self._candidates = candidates
        self._parameters = [
            of_range(each.low, each.high, symmetric=symmetric) for each in candidates
        ]
        matrices = [_random_projection(weighted) for weighted in weighted_nodes]
        self._matrix, self._count = np.concatenate(matrices, axis=1), len(matrices)
        self._totals = np.zeros(len(candidates))

    def add_sample(self, array: Array) -> None:
        """Add the errors of a sample; rows whose results are zero are skipped.

        The relative error of a row counts as at most 1.
        """
        rows = np.asarray(array, np.float32).reshape(-1, array.shape[-1])
        rows = rows[:: max(1, -(-len(rows) // ROWS))]
        errors = [_fake_quantized(rows, parameters) - rows for parameters in self._parameters]
        # One GEMM: many small ones spend more time on waking threads.
        powers = self._powers(np.stack([rows, *errors]))
        power, noises = powers[0], powers[1:]
        heard = power > 0
        for number, noise in enumerate(noises):
            self._totals[number] += np.minimum(noise[heard] / power[heard], 1).sum()

    def _powers(self, rows: Array) -> Array:
        """Return the squared norm of each row of results; float64 [..., matmuls]."""
        results = (rows.reshape(-1, rows.shape[-1]) @ self._matrix).reshape(
            *rows.shape[:-1], self._count, _PROJECTIONS
        )
        power: Array = np.einsum("...s,...s->...", results, results, dtype=np.float64)
        return power

    def best(self) -> Range:
        """Return the candidate with the least error; the narrowest of several."""
        return self._candidates[int(np.argmin(self._totals))]


def _fake_quantized(rows: Array, parameters: Parameters) -> Array:
    """Return rows quantized and dequantized again; float32."""
    zero_point = parameters.zero_point
    whole = np.rint(rows / np.float32(parameters.scale))
    np.clip(whole, -128 - zero_point, 127 - zero_point, out=whole)
    rounded: Array = whole * np.float32(parameters.scale)
    return rounded


def _random_projection(weighted: WeightedNode) -> Array:
    """Return the weight times a matrix of random signs; float32 [C, signs]."""
    tensor = constant_tensor(weighted.weight)
    if tensor is None:
        raise ValueError(f"{weighted.weight.name!r} is no constant")
    weight = tensor.numpy()
    matrix = weight if weighted.axis == 1 else weight.T
    # A fixed seed: results must be reproducible.
    chance = np.random.default_rng(0)
    found = np.zeros((matrix.shape[0], _PROJECTIONS), np.float32)
    for start in range(0, matrix.shape[1], _COLUMNS):
        piece = matrix[:, start : start + _COLUMNS]
        signs = chance.integers(0, 2, (piece.shape[1], _PROJECTIONS)).astype(np.float32) * 2 - 1
        found += piece @ signs
    return found
