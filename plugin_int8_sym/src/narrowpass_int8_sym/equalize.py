"""The pass ``equalize``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import onnx_ir as ir

from narrowpass import Decision, Pass, PassResult
from narrowpass_int8_sym.channels.regions import Region, find_regions
from narrowpass_int8_sym.channels.search import Outcome, equalize_regions
from narrowpass_int8_sym.channels.statistics import statistics_from_data, statistics_from_weights

if TYPE_CHECKING:
    from narrowpass import Context

SAMPLES = 32
"""The largest number of samples: extremes of channels change little with more."""

GAIN_BY_DATA = 0.02
"""The share by which factors must lower the estimated noise to be applied."""

GAIN_BY_WEIGHTS = 0.75
"""The same without data: magnitudes estimated from weights are often wrong by a factor of two, so
that only great differences between channels count."""


@dataclass(frozen=True)
class Equalize(Pass):
    """Weight equalization: scale the channels of values between matmuls and convolutions.

    After M. Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction",
    ICCV 2019. Channels of similar magnitude lose least in int8, which has one scale for the tensor.

    The constants that produce a value (weights, biases, scales of a normalization) are divided by a
    factor for each channel, and the weights that consume it are multiplied by it; no node is added,
    and results change by rounding only. A value is divided where all of its producers and consumers
    can be scaled, also through Relu, LeakyRelu, PRelu, pools, additions and other homogeneous
    operators that compute each channel separately. Constants that are also inputs or outputs of the
    model, or weights of several nodes, are not changed.

    With data, magnitudes of channels are measured on it; else they are estimated from the weights.
    The factors minimize the estimated noise of the weighted nodes that read the value, quantized
    with one scale, and their weights with a scale for each output channel.
    """

    name: ClassVar[str] = "equalize"

    def run(self, model: ir.Model, ctx: Context) -> PassResult:
        """Equalize the model.

        Counters: ``equalized`` (values that weighted nodes read), ``kept``.

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
    """Divide the values of each region by the factors with the least estimated noise.

    Args:
        model: in float32; changed.
        regions: of the model.
        ctx: its samples, where there are any, run on its target.
        limit: the largest number of samples.

    Returns:
        The result of each region, in order.

    Raises:
        DataError: a value is infinite or NaN on the data.
    """
    if ctx.samples is None:
        return equalize_regions(model, regions, statistics_from_weights, GAIN_BY_WEIGHTS)
    statistics_of = statistics_from_data(model, regions, ctx.samples, ctx.target, limit)
    return equalize_regions(model, regions, statistics_of, GAIN_BY_DATA)


def decision(outcome: Outcome, by: str) -> Decision:
    """Return the decision about a region, under its first value: ``equalized`` or ``kept``."""
    value = outcome.region.channel_axes[0].value
    before, after = decibels(outcome.before), decibels(outcome.after)
    if not outcome.changed:
        reason = f"no factors raise the estimated SQNR of its consumers, {before:.1f} dB"
        return Decision(_name(value), "", "kept", by, reason, open=True)
    factors = outcome.factors
    reason = (
        f"{_list(outcome)}: estimated SQNR {after:.1f} dB instead of {before:.1f}; "
        f"factors from {factors.min():.3g} to {factors.max():.3g}"
    )
    return Decision(_name(value), "", "equalized", by, reason)


def _list(outcome: Outcome) -> str:
    """Name the nodes whose constants were scaled: producers to consumers."""
    sources = dict.fromkeys(_label(operand.node) for operand in outcome.region.sources)
    sinks = dict.fromkeys(_label(operand.node) for operand, _ in outcome.region.sinks)
    return f"{', '.join(sources)} to {', '.join(sinks)}"


def _label(node: ir.Node) -> str:
    return node.name or _name(node.outputs[0])


def _name(value: ir.Value | None) -> str:
    return "" if value is None else value.name or ""


def decibels(noise: float) -> float:
    """Return the signal-to-noise ratio in dB of noise / signal."""
    return -10 * math.log10(noise) if noise > 0 else math.inf
