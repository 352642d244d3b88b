"""The pass ``equalize``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import onnx_ir as ir

from narrowpass import Decision, Pass, PassResult
from narrowpass_int8_sym.channels.magnitudes import from_data, from_weights
from narrowpass_int8_sym.channels.regions import Region, find_regions
from narrowpass_int8_sym.channels.search import Outcome, divide_best

if TYPE_CHECKING:
    from narrowpass import Context

SAMPLES = 32
"""So many samples are looked at, at most: extremes of channels change little after that."""

GAIN_BY_DATA = 0.02
"""The share of the noise that factors must gain to be taken."""

GAIN_BY_WEIGHTS = 0.75
"""The same without data: what weights say of magnitudes is often wrong by a factor of two, so that
only great differences between channels count."""


@dataclass(frozen=True)
class Equalize(Pass):
    """Divide values between products by a factor for each channel, so that int8 fits all of them.

    What makes a value is divided (weights, biases, factors of a normalization), what reads it is
    multiplied; no node is added, and results change by rounding only. A value is divided where
    all of its makers and readers take the factors, on the way also through Relu, LeakyRelu, PRelu,
    pools, additions and other operators that are homogeneous and compute each channel by itself.
    Constants that may be fed, are outputs, or are weights of several nodes stay as they are.

    With data, magnitudes of channels are those on the data; else they follow from the weights.
    Factors are those with the least estimated noise of the products that read the value, when it
    is rounded with one scale and their weights with a scale for each channel of the result.
    """

    name: ClassVar[str] = "equalize"

    def run(self, model: ir.Model, ctx: Context) -> PassResult:
        """Divide and multiply.

        Counters: ``equalized`` (values that products read), ``kept``.

        Raises:
            DataError: a value is infinite or NaN on the data.
        """
        regions, refused = find_regions(model)
        outcomes = equalized(model, regions, ctx, SAMPLES)
        for outcome in outcomes:
            ctx.counters["equalized" if outcome.changed else "kept"] += 1
            ctx.decisions.append(decision(outcome, "weights" if ctx.samples is None else "data"))
        left = {node.inputs[0]: reason for node, reason in refused.items()}
        for value, reason in left.items():
            ctx.counters["kept"] += 1
            ctx.decisions.append(Decision(_name(value), "", "kept", "rule", reason, open=True))
        return PassResult(model, any(outcome.changed for outcome in outcomes))


def equalized(
    model: ir.Model, regions: Sequence[Region], ctx: Context, limit: int
) -> list[Outcome]:
    """Divide the values of regions, each by the factors that are best for it.

    Args:
        model: in float32; changed.
        regions: of the model.
        ctx: its samples, where there are any, run on its target.
        limit: how many samples are looked at, at most.

    Returns:
        What became of each region, in order.

    Raises:
        DataError: a value is infinite or NaN on the data.
    """
    if ctx.samples is None:
        return divide_best(model, regions, from_weights, GAIN_BY_WEIGHTS)
    look = from_data(model, regions, ctx.samples, ctx.target, limit)
    return divide_best(model, regions, look, GAIN_BY_DATA)


def decision(outcome: Outcome, by: str) -> Decision:
    """Tell of a region: ``equalized``, or ``kept`` and why, of the value that is read first."""
    value = outcome.region.places[0].value
    before, after = decibels(outcome.before), decibels(outcome.after)
    if not outcome.changed:
        reason = f"no factors raise the {before:.1f} dB that are estimated of what reads it"
        return Decision(_name(value), "", "kept", by, reason, open=True)
    factors = outcome.factors
    reason = (
        f"{_list(outcome)}: {after:.1f} dB instead of {before:.1f} are estimated; "
        f"factors from {factors.min():.3g} to {factors.max():.3g}"
    )
    return Decision(_name(value), "", "equalized", by, reason)


def _list(outcome: Outcome) -> str:
    """Name the nodes whose constants took the factors."""
    made = dict.fromkeys(_label(operand.node) for operand in outcome.region.sources)
    read = dict.fromkeys(_label(operand.node) for operand, _ in outcome.region.sinks)
    return f"{', '.join(made)} to {', '.join(read)}"


def _label(node: ir.Node) -> str:
    return node.name or _name(node.outputs[0])


def _name(value: ir.Value | None) -> str:
    return "" if value is None else value.name or ""


def decibels(noise: float) -> float:
    """Return the signal-to-noise ratio of a noise that is a share of the signal."""
    return -10 * math.log10(noise) if noise > 0 else math.inf
