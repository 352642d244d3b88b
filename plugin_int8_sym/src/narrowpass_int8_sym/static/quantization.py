"""Calibrates a model once, and rewrites it as often as asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from narrowpass import Reject
from narrowpass.errors import PassError
from narrowpass.ir.inference import inferred
from narrowpass.runtime.quantization import QuantizationSpec, Violation
from narrowpass_int8_sym.bias_correction import take_off
from narrowpass_int8_sym.calibration import CalibrationCache, Range, calibrate
from narrowpass_int8_sym.static.clipping import SAMPLES, best_clipping_ranges
from narrowpass_int8_sym.static.decisions import Outcome, report_decisions, report_values, selected
from narrowpass_int8_sym.static.emission import emit
from narrowpass_int8_sym.static.matching import MatchedUnits, find_units
from narrowpass_int8_sym.static.parameters import (
    Magnitudes,
    QuantizationParameters,
    Scheme,
    proposal,
    quantization_parameters,
)
from narrowpass_int8_sym.static.selection import Choice, choose
from narrowpass_int8_sym.static.units import Role, Unit
from narrowpass_int8_sym.storage import taken_names
from narrowpass_int8_sym.tables import find_tables, store_tables
from narrowpass_int8_sym.underflow_warnings import warn_of_values, warn_of_weights
from narrowpass_int8_sym.weighted_nodes import WeightedNode

if TYPE_CHECKING:
    from narrowpass import Context, Samples

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Calibrated:
    """What was found out about a float model.

    Attributes:
        ranges: of the values that may become int8, by name.
        shifts: what rounding the weights of a product adds to the means of its channels, by the
            name of its bias, which nothing else reads; float64 [channels].
        magnitudes: of weights.
        replaced: ranges of the calibrator, by name, where products have another one.
    """

    ranges: Mapping[str, Range]
    shifts: Mapping[str, Array] = field(default_factory=dict)
    magnitudes: Magnitudes = field(default_factory=Magnitudes)
    replaced: Mapping[str, Range] = field(default_factory=dict)


@dataclass(frozen=True)
class Static:
    """How a model is quantized.

    Attributes:
        scheme: how integers stand for numbers.
        calibrator: what takes ranges from data.
        samples: how many samples are taken, the first ones; None for all.
        red: nodes that stay float: globs of names, ``op:TYPE``.
        green: nodes that are quantized also where a rule would leave them, if they can be.
        cache: keeps ranges for later runs; None for nowhere.
        wide: values that no int8 operator may make, by name, and why.
    """

    scheme: Scheme = field(default_factory=Scheme)
    calibrator: str = "l2"
    samples: int | None = None
    red: tuple[str, ...] = ()
    green: tuple[str, ...] = ()
    cache: CalibrationCache | None = None
    wide: Mapping[str, str] = field(default_factory=dict)

    def calibrate(self, model: ir.Model, samples: Samples, ctx: Context) -> Calibrated:
        """Take the ranges of all values that may become int8.

        Args:
            model: in float32; not changed.
            samples: feeds for it.
            ctx: `Context.target` runs the model.

        Raises:
            DataError: the data does not fit, or a value is NaN or infinite on it.
            BackendError: the model cannot be run.
        """
        for option, items in (("red", self.red), ("green", self.green)):
            for item, chosen in selected(items, model).items():
                if not chosen:
                    ctx.observer.log.warning("int8-sym: %s item %r selects no node", option, item)
        with inferred(model):
            choice = choose(self._found(model, spec_of(ctx)).units, ())
            names = [value.name for value in choice.values() if value.name]
            if not names:
                return Calibrated({})
            ctx.observer.log.info(
                "int8-sym: calibrates %d values on %s, with %s",
                len(names),
                samples.source,
                self.calibrator,
            )
            ranges = self._ranges(model, names, samples, ctx, self.calibrator)
            better: dict[str, Range] = {}
            readers = _matrices(choice)
            if self.calibrator == "l2" and readers:
                ctx.observer.progress("comparing ranges", 0, 0)
                limit = SAMPLES if self.samples is None else min(self.samples, SAMPLES)
                read = [value.name for value in readers if value.name]
                better = best_clipping_ranges(
                    model,
                    readers,
                    ranges,
                    self._ranges(model, read, samples, ctx, "minmax", again=True),
                    samples,
                    ctx.target,
                    symmetric=self.scheme.symmetric,
                    limit=limit,
                )
        return Calibrated(ranges | better, replaced={name: ranges[name] for name in better})

    def _ranges(
        self,
        model: ir.Model,
        names: list[str],
        samples: Samples,
        ctx: Context,
        calibrator: str,
        *,
        again: bool = False,
    ) -> dict[str, Range]:
        def progress(done: int, total: int) -> None:
            ctx.observer.progress("calibrating", done, total)

        return calibrate(
            model,
            names,
            samples,
            ctx.target,
            calibrator,
            symmetric=self.scheme.symmetric,
            # Extremes are soon found again, and what was told of is not to begin anew.
            progress=None if again else progress,
            limit=self.samples,
            cache=self.cache,
        )

    def numbers(self, model: ir.Model, ctx: Context) -> list[int]:
        """Return the numbers of the nodes that can be quantized, one for each unit or table.

        Numbers are places among ``model.graph.all_nodes()``, from 0.
        """
        places = {node: number for number, node in enumerate(model.graph.all_nodes())}
        with inferred(model):
            choice = choose(self._found(model, spec_of(ctx)).units, ())
        weighted_nodes = [unit.weighted for unit in choice.units if unit.weighted is not None]
        tables = find_tables(model.graph, self._red(model), weighted_nodes)
        return sorted(places[node] for node in (*(u.nodes[0] for u in choice.units), *tables))

    def weighted_nodes(self, model: ir.Model, ctx: Context) -> dict[int, WeightedNode]:
        """Return the products that can be quantized, by the numbers of their nodes."""
        places = {node: number for number, node in enumerate(model.graph.all_nodes())}
        with inferred(model):
            choice = choose(self._found(model, spec_of(ctx)).units, ())
        found = [unit.weighted for unit in choice.units if unit.weighted is not None]
        return {places[weighted.node]: weighted for weighted in found}

    def floats(self, model: ir.Model, ctx: Context) -> dict[ir.Value, list[WeightedNode]]:
        """Return the products that can be quantized whose operands are float, by their operands."""
        with inferred(model):
            choice = choose(self._found(model, spec_of(ctx)).units, ())
        narrow = {
            value for unit in choice.units if unit not in choice.wide for value in unit.outputs
        }
        found: dict[ir.Value, list[WeightedNode]] = {}
        for unit in choice.units:
            if unit.weighted is not None and unit.inputs[0] not in narrow:
                found.setdefault(unit.inputs[0], []).append(unit.weighted)
        return found

    def between(self, model: ir.Model, ctx: Context) -> dict[ir.Value, list[WeightedNode]]:
        """Return the results of other int8 operators that only products of matrices read.

        What is asked for by ``green`` is not among them.
        """
        with inferred(model):
            choice = choose(self._found(model, spec_of(ctx)).units, ())
        made = {
            unit.outputs[0]
            for unit in choice.units
            if unit.role in (Role.JOIN, Role.REGION) and not unit.asked
        }
        return {
            value: weighted_nodes
            for value, weighted_nodes in _matrices(choice).items()
            if value in made
            and not value.is_graph_output()
            and {use.node for use in value.uses()} == {weighted.node for weighted in weighted_nodes}
        }

    def rewrite(
        self, model: ir.Model, calibrated: Calibrated, held: Mapping[int, str], ctx: Context
    ) -> bool:
        """Quantize a model in place; return whether anything changed.

        Args:
            model: the one that was calibrated, or a clone of it.
            calibrated: what was found out about it.
            held: the numbers of nodes that stay float with all that is quantized with them, and
                why; see `numbers`.
            ctx: `Context.target` says what scales must keep; decisions and counters are told.

        Raises:
            DataError: a weight or a bias has an element that is infinite or NaN.
        """
        spec = spec_of(ctx)
        reasons = {
            node: held[number]
            for number, node in enumerate(model.graph.all_nodes())
            if number in held
        }
        with inferred(model):
            found = self._found(model, spec)
            kept = {
                unit: next(reasons[node] for node in unit.nodes if node in reasons)
                for unit in found.units
                if any(node in reasons for node in unit.nodes)
            }
            choice, chosen, broken = self._fitting(found, set(kept), calibrated, spec, ctx)
        weighted_nodes = [unit.weighted for unit in choice.units if unit.weighted is not None]
        tables = find_tables(model.graph, self._red(model) | set(reasons), weighted_nodes)
        outcome = Outcome(found, choice, kept, broken, selected(self.red, model), tables, reasons)
        report_decisions(model, outcome, ctx)
        for unit in choice.units:
            if unit.weighted is not None and unit.bias is not None:
                shift = calibrated.shifts.get(unit.bias.name or "")
                if shift is not None:
                    take_off(unit.weighted, unit.bias, shift)
        if self.scheme.floor:
            warn_of_values(chosen.values, calibrated.ranges, ctx.observer.log)
            warn_of_weights(calibrated.magnitudes.by_name(), ctx.observer.log)
        report_values(chosen.values, calibrated.ranges, calibrated.replaced, self.calibrator, ctx)
        ctx.counters["values"] += emit(model, choice, chosen, self.scheme)
        ctx.counters["tables"] += store_tables(model.graph, tables, taken_names(model))
        return bool(choice.units or tables)

    def _fitting(
        self,
        found: MatchedUnits,
        held: set[Unit],
        calibrated: Calibrated,
        spec: QuantizationSpec,
        ctx: Context,
    ) -> tuple[Choice, QuantizationParameters, dict[Unit, Violation | Reject]]:
        """Choose, and choose again without what cannot keep its limits, or the target rejects."""
        broken: dict[Unit, Violation | Reject] = {}
        while True:
            choice = choose(found.units, held | set(broken))
            chosen = quantization_parameters(
                choice, calibrated.ranges, self.scheme, spec, calibrated.magnitudes
            )
            refused = chosen.refused or rejected(choice, chosen, ctx)
            if not refused:
                return choice, chosen, broken
            broken |= refused

    def _red(self, model: ir.Model) -> set[ir.Node]:
        return {node for nodes in selected(self.red, model).values() for node in nodes}

    def _found(self, model: ir.Model, spec: QuantizationSpec) -> MatchedUnits:
        red = self._red(model)
        asked = {
            node: f"option green={item}"
            for item, nodes in selected(self.green, model).items()
            for node in nodes
        }
        found = find_units(model.graph, red, asked)
        other = {
            unit: f"the target has results of {unit.op_type} as {fixed.dtype} alone"
            for unit in found.units
            if (fixed := spec.output(unit.op_type)) and fixed.dtype != spec.activations.dtype
        }
        other |= {
            unit: f"the target has no int8 {missing}"
            for unit in found.units
            if not unit.asked and (missing := _not_in(spec, unit))
        }
        other |= {
            unit: self.wide[value.name]
            for unit in found.units
            for value in unit.outputs
            if value.name and value.name in self.wide
        }
        left = {node: reason for unit, reason in other.items() for node in unit.nodes}
        units = tuple(unit for unit in found.units if unit not in other)
        return MatchedUnits(units, {**found.left, **left})


def rejected(choice: Choice, chosen: QuantizationParameters, ctx: Context) -> dict[Unit, Reject]:
    """Return the units whose proposed Q/DQ the target rejects, with its reasons.

    Regions of several nodes have no operator to ask for, and what ``green`` names is quantized
    whatever the target computes it in.
    """
    if ctx.target is None:
        return {}
    answers = {
        unit: ctx.target.supports_quantized(
            unit.nodes[0], proposal(unit, choice, chosen.values, chosen.weights)
        )
        for unit in choice.units
        if unit.op_type and not unit.asked
    }
    return {unit: answer for unit, answer in answers.items() if isinstance(answer, Reject)}


def _not_in(spec: QuantizationSpec, unit: Unit) -> str:
    """Return the operator of a unit that the target computes in float; empty for none."""
    return next((n.op_type for n in unit.nodes if spec.operator(n.op_type) is None), "")


def _matrices(choice: Choice) -> dict[ir.Value, list[WeightedNode]]:
    """Return the values that, of int8 operators, only products of matrices read, and these."""
    found: dict[ir.Value, list[WeightedNode]] = {}
    others: set[ir.Value] = set()
    for unit in choice.units:
        if unit.weighted is not None and unit.weighted.is_matrix:
            found.setdefault(unit.inputs[0], []).append(unit.weighted)
        else:
            others.update(unit.inputs)
    return {value: weighted_nodes for value, weighted_nodes in found.items() if value not in others}


def spec_of(ctx: Context) -> QuantizationSpec:
    """Return what the target asks of quantized operators.

    Raises:
        PassError: it wants other integers than this pass writes.
    """
    spec = ctx.target.quantization_spec() if ctx.target else QuantizationSpec()
    name = ctx.target.name if ctx.target else ""
    if spec.activations != QuantizationSpec().activations:
        raise PassError(f"{name} has activations of {spec.activations}; int8-sym gives int8")
    if spec.weights.dtype != "int8" or spec.weights.low > -127 or spec.weights.high < 127:
        raise PassError(f"{name} has weights of {spec.weights}; int8-sym gives int8 to 127")
    return spec
