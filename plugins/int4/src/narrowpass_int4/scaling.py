"""The factors of AWQ for a group of weights, and the constants that divide by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass_int4.data.groups import Group
from narrowpass_int4.data.hessian import Hessian
from narrowpass_int4.methods.absorb import Divisor, find_divisors
from narrowpass_int4.methods.awq import search_factors
from narrowpass_int4.options import Options
from narrowpass_int4.plan import Job
from narrowpass_int4.reporting import Done
from narrowpass_int4.settings import Settings

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Scaling:
    """Factors for the channels of a value.

    Attributes:
        factors: float32 [K], that the weights of its readers are multiplied by.
        divisors: the constants that are divided by them in turn.
    """

    factors: Array
    divisors: tuple[Divisor, ...]


def find_scaling(
    group: Group,
    hessian: Hessian,
    settings: Settings,
    options: Options,
    jobs: Sequence[Job],
    every: Sequence[Done],
) -> Scaling | None:
    """Return the factors with which a group loses least; None without, or where none can divide.

    Args:
        group: of weights that are multiplied with the same value.
        hessian: of that value.
        settings: what each weight is quantized with.
        options: of the pass.
        jobs: all weights that are to be quantized.
        every: those that are quantized already.
    """
    value = group.value
    readers = {node for job in group.jobs for node in job.nodes}
    narrow = all(job.bits == 4 and job.matrices[0].is_matmul for job in group.jobs)
    if value is None or not narrow:
        return None
    channels = group.matrix.inner
    divisors = find_divisors(value, readers, channels)
    ready = all(_is_ready(each, jobs, every) for each in divisors)
    if not divisors or not ready:
        return None
    weights = [job.rows() for job in group.jobs]
    grid, block = settings.grid(group.jobs[0], nbits=False), options.block or channels
    magnitude = hessian.magnitude / hessian.count
    factors = search_factors(weights, hessian.matrix, magnitude, grid, block)
    if factors is None or not _can_divide(divisors, factors, every):
        return None
    return Scaling(factors, tuple(divisors))


def _can_divide(divisors: Sequence[Divisor], factors: Array, every: Sequence[Done]) -> bool:
    """Return whether the stored scales of the weights that are divided represent the result."""
    values = {divisor.value for divisor in divisors}
    packed = [done.packed for done in every if done.job.weight in values]
    return all(each.can_divide(float(factors.min()), float(factors.max())) for each in packed)


def _is_ready(divisor: Divisor, jobs: Sequence[Job], every: Sequence[Done]) -> bool:
    """Return whether a constant is no weight that is still to be quantized."""
    if not divisor.matrix:
        return True
    planned: set[ir.Value] = {job.weight for job in jobs}
    done = {each.job.weight for each in every}
    return divisor.value not in planned or divisor.value in done
