"""Reports the decision about each node and value: what was decided, by what, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import onnx_ir as ir

from narrowpass import Decision, Reject
from narrowpass.framework.classify import matching_nodes
from narrowpass.runtime.quantization import Parameters, Violation
from narrowpass_int8_sym.calibration import Range
from narrowpass_int8_sym.embeddings import embedding_decisions
from narrowpass_int8_sym.static.matching import QUANTIZED, MatchedUnits
from narrowpass_int8_sym.static.selection import Selection
from narrowpass_int8_sym.static.units import NodeUnit
from narrowpass_int8_sym.weighted_nodes import weighted_node_of

if TYPE_CHECKING:
    from narrowpass import Context


def label(node: ir.Node) -> str:
    """Return the name of a node for reports; that of its first output if it has none."""
    return node.name or next((value.name for value in node.outputs if value.name), "") or ""


def selected(items: Sequence[str], model: ir.Model) -> dict[str, list[ir.Node]]:
    """Return the nodes that each item of an option selects; see `narrowpass.matching_nodes`."""
    return matching_nodes(items, model.graph.all_nodes(), label)


@dataclass(frozen=True)
class Outcome:
    """The outcome of quantization for the nodes of a model.

    Attributes:
        found: the units that can be quantized.
        choice: the units that are.
        kept_float: units that stay float for the tolerance, and why.
        broken: units that break a limit of the target, or that it rejects.
        red: the nodes that each item of the option ``red`` selects.
        embeddings: Gather nodes whose embedding is stored as int8.
        reasons: nodes that stay float for the tolerance, and why: of units and of embeddings.
    """

    found: MatchedUnits
    choice: Selection
    kept_float: Mapping[NodeUnit, str]
    broken: Mapping[NodeUnit, Violation | Reject]
    red: Mapping[str, Sequence[ir.Node]]
    embeddings: Sequence[ir.Node]
    reasons: Mapping[ir.Node, str]


def report_decisions(model: ir.Model, outcome: Outcome, ctx: Context) -> None:
    """Report on each node of a known operator; warn of each unit that cannot keep a limit.

    Counters: ``nodes`` (that are quantized), ``left``.
    """
    decisions = _decisions(model, outcome)
    for unit in outcome.broken:
        first = decisions[unit.nodes[0]]
        ctx.observer.log.warning(
            "int8-sym: %s %r stays float: %s", first.op_type, first.node, first.reason
        )
    for node in model.graph.all_nodes():
        if node in decisions:
            ctx.decisions.append(decisions[node])
            ctx.counters["nodes" if decisions[node].decision == "int8" else "left"] += 1


def report_values(
    values: Mapping[ir.Value, Parameters],
    ranges: Mapping[str, Range],
    replaced: Mapping[str, Range],
    calibrator: str,
    ctx: Context,
) -> None:
    """Report the histogram of each quantized value that has one, with its clipping range.

    Args:
        values: how they are quantized.
        ranges: of them, by name.
        replaced: the ranges of the calibrator, where matmuls chose another one.
        calibrator: its name.
        ctx: gets the decisions.
    """
    for value, quantized in values.items():
        name = value.name or ""
        histogram = ranges[name].histogram if name in ranges else None
        if histogram is None:
            continue
        low, high = (quantized.scale * (end - quantized.zero_point) for end in (-128, 127))
        # For symmetric ranges magnitudes were counted.
        clipping = (0.0 if histogram.low >= 0 else low), high
        shown = replace(histogram, clipping=clipping)
        by = f"calibrator {calibrator}"
        reason = ""
        if name in replaced:
            own = replaced[name]
            reason = (
                f"matmuls that read it have a smaller error with {ranges[name].low:.4g} to "
                f"{ranges[name].high:.4g} than with {own.low:.4g} to {own.high:.4g}, the range "
                f"with the least error of the value itself"
            )
        ctx.decisions.append(Decision(name, "", "int8", by, reason, histogram=shown))


def _decisions(model: ir.Model, outcome: Outcome) -> dict[ir.Node, Decision]:
    found: dict[ir.Node, Decision] = {}

    def left(node: ir.Node, by: str, reason: str) -> None:
        found[node] = Decision(label(node), node.op_type, "float", by, reason)

    inside = set(model.graph)
    for node in model.graph.all_nodes():
        if node not in inside and weighted_node_of(node) is not None:
            left(node, "rule", "subgraphs are not quantized")
    for item, nodes in outcome.red.items():
        for node in nodes:
            left(node, f"option red={item}", "it is to stay float")
    for node, reason in outcome.found.left.items():
        left(node, "rule", reason)
        if reason == QUANTIZED:
            found[node] = replace(found[node], decision="kept")
    for unit, reason in outcome.choice.left.items():
        for node in unit.nodes:
            left(node, "rule", reason)
    for node, reason in outcome.reasons.items():
        left(node, "verification", reason)
    found |= embedding_decisions(outcome.embeddings)
    for unit, reason in outcome.kept_float.items():
        for node in unit.nodes:
            left(node, "verification", reason)
    for unit, broken in outcome.broken.items():
        for node in unit.nodes:
            left(node, "constraint", f"{broken}, of the target")
            if isinstance(broken, Violation):
                measured, limit = broken.measured, broken.limit
                found[node] = replace(found[node], measured=measured, limit=limit)
            else:
                found[node] = replace(found[node], reason=f"the target: {broken.reason}")
    for unit in outcome.choice.units:
        wide = unit in outcome.choice.float_results
        reason = "its result stays float: nothing int8 reads it" if wide else ""
        for node in unit.nodes:
            by = unit.forced_by or "mode=static"
            found[node] = Decision(label(node), node.op_type, "int8", by, reason)
    return found
