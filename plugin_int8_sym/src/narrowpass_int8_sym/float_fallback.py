"""Searches the fewest nodes that must stay float for the outputs to meet a tolerance."""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

from narrowpass_analysis.metrics import Tolerance
from narrowpass_analysis.verification import Verification, judging_backends

if TYPE_CHECKING:
    from narrowpass import Context
    from narrowpass.calibration.samples import Samples

Rewrite = Callable[[ir.Model, Mapping[int, str], "Context"], object]
"""Quantizes a model in place, but for the nodes with these indices."""


def nodes_to_keep_float(
    model: ir.Model,
    numbers: Sequence[int],
    rewrite: Rewrite,
    samples: Samples,
    tolerance: Tolerance,
    ctx: Context,
) -> dict[int, str]:
    """Return the indices of the nodes that must stay float for `tolerance` to be met, and why.

    Args:
        model: the float model; not changed.
        numbers: indices of the nodes that can be quantized.
        rewrite: quantizes a clone of it.
        samples: feeds on which outputs are compared.
        tolerance: the largest difference of the outputs.
        ctx: its target runs both models.

    Raises:
        PassError: it cannot be met.
    """
    original = model.clone()
    # Warnings are for the final rewrite only. A logger of its own, because its level is changed.
    silent = logging.Logger("trial", logging.CRITICAL + 1)  # noqa: LOG001
    # The evaluator has no dynamic per-token quantization: compare on the target.
    verification = Verification(
        original, samples, tolerance, judging_backends(ctx.target)[-1:], ctx.observer.log
    )

    def rewritten(kept_float: frozenset[int]) -> ir.Model:
        clone = original.clone()
        quiet = dataclasses.replace(ctx.observer, log=silent)
        trial = dataclasses.replace(ctx, counters=Counter(), decisions=[], observer=quiet)
        rewrite(clone, dict.fromkeys(kept_float, ""), trial)
        return clone

    if not verification.problem(rewritten(frozenset())):
        return {}
    ratios: dict[int, float] = {}
    for number in numbers:
        ctx.observer.progress("measuring the sensitivity of nodes", len(ratios), len(numbers))
        ctx.observer.log.info(
            "int8-sym: sensitivity of %d of %d nodes is measured", len(ratios), len(numbers)
        )
        ratios[number] = verification.sensitivity(rewritten(frozenset(numbers) - {number}))
    worst = sorted(numbers, key=lambda number: (ratios[number], number))
    return {
        number: f"quantized alone, it leaves {ratios[number]:.1f} dB; out of {tolerance}"
        for number in verification.fewest(rewritten, worst)
    }
