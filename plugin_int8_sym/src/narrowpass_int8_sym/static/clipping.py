"""Ranges of what only products of matrices read: those with which their results err least.

The window that loses least of a value itself may be a bad one for what reads it. Clipped elements
are few, but in transformers they are the same ones in row after row: channels that are large, and
rows that others attend to. Their errors do not average out in a product, as those of rounding do.
So windows from that of the calibrator to the whole range are compared by the errors of the
products' results, with each row taken relative to what it should be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from narrowpass.ir.constants import constant_tensor
from narrowpass.runtime.quantization import Parameters
from narrowpass_analysis.values import run_on_samples, split_groups
from narrowpass_analysis.verification import judging_backends
from narrowpass_int8_sym.calibration import Range
from narrowpass_int8_sym.scales import of_range
from narrowpass_int8_sym.weighted_nodes import WeightedNode

if TYPE_CHECKING:
    from narrowpass import Backend, Samples

Array = np.ndarray[Any, Any]

SAMPLES = 8
"""So many samples are looked at, at most."""

ROWS = 64
"""So many rows of each sample, at most, at equal distances."""

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""How much of what a window leaves out is let in."""

_SIGNS = 64
"""Results are added up with random signs to so many numbers, whose squares are on average as large
as those of the results (Johnson and Lindenstrauss, 1984): that costs less than the products."""

_COLUMNS = 4096
"""Columns of a matrix that are added up at once, so that no copy of it is made."""


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
    """Choose ranges between narrow and whole ones.

    Args:
        model: in float32; not changed.
        readers: products of matrices with two dimensions, by the value that they read.
        narrow: a range of each value, by name.
        whole: one that holds all elements.
        samples: feeds for the model.
        target: what runs it; the reference evaluator where it is None or not available.
        symmetric: whether the zero points are 0.
        limit: how many samples are looked at, at most.

    Returns:
        The range of each value that has another one than its narrow one, by name.

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
            name: _Errors(_between(narrow[name], whole[name]), names[name], symmetric=symmetric)
            for name in group
        }
        for *_, values in run_on_samples(model, group, samples, backend, limit):
            for name, each in errors.items():
                each.see(values[name])
        found |= {name: each.best() for name, each in errors.items()}
    return {name: chosen for name, chosen in found.items() if chosen != narrow[name]}


def _between(narrow: Range, whole: Range) -> list[Range]:
    """Return the candidates, the narrowest first; each keeps the histogram of the narrow one."""
    return [
        Range(
            narrow.low + share * (min(whole.low, narrow.low) - narrow.low),
            narrow.high + share * (max(whole.high, narrow.high) - narrow.high),
            narrow.histogram,
        )
        for share in SHARES
    ]


class _Errors:
    """What the results of products err by, for each candidate, over the rows that went by."""

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
        matrices = [_depth_sum(weighted) for weighted in weighted_nodes]
        self._matrix, self._count = np.concatenate(matrices, axis=1), len(matrices)
        self._sums = np.zeros(len(candidates))

    def see(self, array: Array) -> None:
        """Add the errors of a sample; rows whose results are zero say nothing.

        A row errs by all of what it is at most: worse is as bad as if it were lost.
        """
        rows = np.asarray(array, np.float32).reshape(-1, array.shape[-1])
        rows = rows[:: max(1, -(-len(rows) // ROWS))]
        errors = [_rounded(rows, parameters) - rows for parameters in self._parameters]
        # One GEMM: many small ones spend more time on waking threads.
        powers = self._powers(np.stack([rows, *errors]))
        power, noises = powers[0], powers[1:]
        heard = power > 0
        for number, noise in enumerate(noises):
            self._sums[number] += np.minimum(noise[heard] / power[heard], 1).sum()

    def _powers(self, rows: Array) -> Array:
        """Return the power of each row's results, for each product; float64 [..., products]."""
        results = (rows.reshape(-1, rows.shape[-1]) @ self._matrix).reshape(
            *rows.shape[:-1], self._count, _SIGNS
        )
        power: Array = np.einsum("...s,...s->...", results, results, dtype=np.float64)
        return power

    def best(self) -> Range:
        """Return the candidate with the least error; the narrowest of several."""
        return self._candidates[int(np.argmin(self._sums))]


def _rounded(rows: Array, parameters: Parameters) -> Array:
    """Return what rows are as bytes, as floats again; float32."""
    zero_point = parameters.zero_point
    whole = np.rint(rows / np.float32(parameters.scale))
    np.clip(whole, -128 - zero_point, 127 - zero_point, out=whole)
    rounded: Array = whole * np.float32(parameters.scale)
    return rounded


def _depth_sum(weighted: WeightedNode) -> Array:
    """Return the columns of a matrix, added up with random signs; float32 [C, signs]."""
    tensor = constant_tensor(weighted.weight)
    if tensor is None:
        raise ValueError(f"{weighted.weight.name!r} is no constant")
    weight = tensor.numpy()
    matrix = weight if weighted.axis == 1 else weight.T
    # The same ones each time: results must not depend on chance.
    chance = np.random.default_rng(0)
    found = np.zeros((matrix.shape[0], _SIGNS), np.float32)
    for start in range(0, matrix.shape[1], _COLUMNS):
        piece = matrix[:, start : start + _COLUMNS]
        signs = chance.integers(0, 2, (piece.shape[1], _SIGNS)).astype(np.float32) * 2 - 1
        found += piece @ signs
    return found
