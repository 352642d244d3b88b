"""The options of the pass, and what follows for each weight: integers, block and method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass_int4.data.hessian import Hessian
from narrowpass_int4.grid import Grid
from narrowpass_int4.layers import Choose, choice
from narrowpass_int4.methods.gptq import gptq
from narrowpass_int4.plan import Job
from narrowpass_int4.storage.packing import stored_block
from narrowpass_int4.storage.pieces import Layout, Survey, survey


@dataclass(frozen=True)
class Options:
    """How weights are quantized and stored.

    Attributes:
        block: elements along K that share a scale; None for all of them.
        symmetric: whether there are no zero points.
        method: what chooses the integers.
        format: ``qdq`` or ``nbits``.
        scales: ``float16``, or ``weight`` for the dtype of the weight.
        activations: ``float``, or ``dynamic`` for rows that are quantized when the model runs.
        tolerance: the largest relative error of a layer; None for any.
    """

    block: int | None
    symmetric: bool
    method: str
    format: str
    scales: str
    activations: str
    tolerance: float | None


Array = np.ndarray[Any, Any]

LARGEST_OF_FLOAT16 = 2.0**18
"""The largest magnitude of a weight whose scales are stored as float16: they are up to 2^15."""

LEAST_OF_FLOAT16 = 2.0**-9
"""The least largest magnitude of such a weight: its scale is 2^-12, and blocks whose elements are a
thirty times smaller still have scales of 7 bits."""


class Settings:
    """Follows from the options, for each weight, what it is quantized with.

    Args:
        options: of the pass.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._surveys: dict[ir.Value, Survey] = {}

    def survey(self, job: Job) -> Survey:
        """Return the range of a weight, which is read once."""
        if job.weight not in self._surveys:
            self._surveys[job.weight] = survey(job.tensor)
        return self._surveys[job.weight]

    def grid(self, job: Job, *, nbits: bool) -> Grid:
        """Return the integers of a weight.

        Args:
            job: the weight and its nodes.
            nbits: whether it is stored for MatMulNBits or GatherBlockQuantized.
        """
        symmetric = self._options.symmetric or job.bits == 8
        # GatherBlockQuantized has no zero points that are fractions.
        fractions = nbits and self._options.method == "hqq" and not symmetric and not job.gathers
        dtype = job.tensor.dtype.numpy()
        scales = np.dtype(np.float16) if self._has_float16_scales(job) else dtype
        return Grid(job.bits, symmetric, scales, dtype, fractions and job.bits == 4)

    def _has_float16_scales(self, job: Job) -> bool:
        """Return whether scales are stored as float16 and cast: of float32 weights in its range."""
        if self._options.scales == "weight" or job.tensor.dtype != ir.DataType.FLOAT:
            return False
        seen = self.survey(job)
        largest = max(abs(seen.low), abs(seen.high))
        return job.bits == 4 and LEAST_OF_FLOAT16 <= largest <= LARGEST_OF_FLOAT16

    def block(self, job: Job, layout: Layout, *, nbits: bool) -> int:
        """Return how many elements along K share a scale."""
        if job.bits == 8:
            # A row of bytes has one scale; MatMulNBits has blocks in any case.
            return stored_block(layout.inner, layout.inner) if nbits else layout.inner
        return layout.inner if self._options.block is None else self._options.block

    def choice(
        self, job: Job, grid: Grid, block: int, data: Hessian | None, factors: Array | None
    ) -> Choose:
        """Return what quantizes the rows of a weight.

        Args:
            job: the weight and its nodes.
            grid: the integers.
            block: elements along K that share a scale.
            data: of what the weight is multiplied with; None without data.
            factors: float32 [K], that it is multiplied by first; None for ones.
        """
        method = self._options.method
        if job.bits == 8:
            return choice("rtn", grid, block)
        if data is None:
            return choice("mse" if method in ("gptq", "awq") else method, grid, block)
        if method == "gptq":
            return gptq(data.curvature, grid, block)
        importance = data.diagonal
        if factors is not None:
            importance = importance / factors.astype(np.float64) ** 2
        importance = importance / max(float(importance.mean()), 1e-30)
        chosen = "mse" if method == "awq" else method
        return choice(chosen, grid, block, np.maximum(importance, 1e-6).astype(np.float32))
