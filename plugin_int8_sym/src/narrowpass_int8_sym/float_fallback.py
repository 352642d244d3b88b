"""The fewest nodes that must stay float for a tolerance to be met."""

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
"""Quantizes a model in place, with the nodes of these numbers kept float."""


def nodes_to_hold(
    model: ir.Model,
    numbers: Sequence[int],
    rewrite: Rewrite,
    samples: Samples,
    tolerance: Tolerance,
    ctx: Context,
) -> dict[int, str]:
    """Return the numbers of the nodes that must stay float for `tolerance` to be met, and why.

    Args:
        model: as it was; not changed.
        numbers: of the nodes that can be quantized.
        rewrite: quantizes it.
        samples: what outputs are compared on.
        tolerance: how far they may be apart.
        ctx: its target judges.

    Raises:
        PassError: it cannot be met.
    """
    original = model.clone()
    # What the rewrite warns of, it says once, when it is not tried any more. A logger that nobody
    # else has, because its level is its own.
    silent = logging.Logger("trial", logging.CRITICAL + 1)  # noqa: LOG001
    # The evaluator does not quantize rows: the target has the last word.
    verification = Verification(
        original, samples, tolerance, judging_backends(ctx.target)[-1:], ctx.observer.log
    )

    def rewritten(held: frozenset[int]) -> ir.Model:
        clone = original.clone()
        quiet = dataclasses.replace(ctx.observer, log=silent)
        trial = dataclasses.replace(ctx, counters=Counter(), decisions=[], observer=quiet)
        rewrite(clone, dict.fromkeys(held, ""), trial)
        return clone

    if not verification.problem(rewritten(frozenset())):
        return {}
    ratios: dict[int, float] = {}
    for number in numbers:
        ctx.observer.progress("measuring the harm of nodes", len(ratios), len(numbers))
        ctx.observer.log.info(
            "int8-sym: harm of %d of %d nodes is known", len(ratios), len(numbers)
        )
        ratios[number] = verification.sensitivity(rewritten(frozenset(numbers) - {number}))
    worst = sorted(numbers, key=lambda number: (ratios[number], number))
    return {
        number: f"quantized alone, it leaves {ratios[number]:.1f} dB; out of {tolerance}"
        for number in verification.fewest(rewritten, worst)
    }
