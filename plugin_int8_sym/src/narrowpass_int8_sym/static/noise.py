"""Measures the SQNR of each value of a quantized model, on data."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from narrowpass import Decision
from narrowpass_analysis.values import run_on_samples, split_groups
from narrowpass_analysis.verification import judging_backends

if TYPE_CHECKING:
    from narrowpass import Backend, Context, Samples

SAMPLES = 4
"""The largest number of samples."""


def report_noise(before: ir.Model, after: ir.Model, samples: Samples, ctx: Context) -> None:
    """Add the signal-to-quantization-noise ratio of each quantized value to its decision.

    Args:
        before: the float model.
        after: the same, quantized.
        samples: feeds for both.
        ctx: its target runs them; its decisions are updated.
    """
    found = value_sqnr(before, after, samples, ctx.target)
    for index, item in enumerate(ctx.decisions):
        if not item.op_type and item.decision == "int8" and item.node in found:
            ctx.decisions[index] = dataclasses.replace(item, sqnr=found.pop(item.node))
    ctx.decisions.extend(
        Decision(name, "", "int8", "mode=static", sqnr=sqnr) for name, sqnr in found.items()
    )


def value_sqnr(
    before: ir.Model, after: ir.Model, samples: Samples, target: Backend | None
) -> dict[str, float]:
    """Return the signal-to-noise ratio of each quantized value, in dB; infinite if equal.

    The noise is the whole difference of a value: its own rounding error, and that of all nodes that
    it is computed from.

    Args:
        before: the float model.
        after: the same, quantized.
        samples: feeds for both; at most `SAMPLES` are used.
        target: what runs them; the reference evaluator where it is None or not available.
    """
    backend = judging_backends(target)[-1]
    pairs = _pairs(before, after)
    found: dict[str, float] = {}
    for group in split_groups(list(pairs)):
        signal, noise = dict.fromkeys(group, 0.0), dict.fromkeys(group, 0.0)
        right = run_on_samples(before, group, samples, backend, SAMPLES)
        got = run_on_samples(after, [pairs[name] for name in group], samples, backend, SAMPLES)
        for (*_, wanted), (*_, given) in zip(right, got, strict=True):
            for name in group:
                exact = wanted[name].astype(np.float64)
                signal[name] += float(np.sum(exact**2))
                noise[name] += float(np.sum((exact - given[pairs[name]]) ** 2))
        for name in group:
            ratio = signal[name] / noise[name] if noise[name] else math.inf
            found[name] = 10 * math.log10(ratio) if ratio > 0 else -math.inf
    return found


def _pairs(before: ir.Model, after: ir.Model) -> dict[str, str]:
    """Return the names of quantized values: in the float model, and after DequantizeLinear."""
    known = {value.name for value in before.graph.inputs}
    known |= {value.name for node in before.graph for value in node.outputs}
    found: dict[str, str] = {}
    for node in after.graph:
        if node.op_type != "DequantizeLinear" or node.inputs[0] is None:
            continue
        quantize = node.inputs[0].producer()
        if quantize is None or quantize.op_type != "QuantizeLinear":
            continue
        wide = node.outputs[0]
        # A graph output keeps its name; of other values, the quantized one has it.
        was = wide if wide.is_graph_output() else quantize.inputs[0]
        if was is not None and was.name in known:
            found[was.name or ""] = wide.name or ""
    return found
