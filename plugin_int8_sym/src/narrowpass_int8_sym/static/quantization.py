"""Static quantization of a model: calibration once, and any number of rewrites after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from narrowpass import Reject
from narrowpass.errors import PassError
from narrowpass.runtime.quantization import QuantizationSpec, Violation
from narrowpass_int8_sym.bias_correction import subtract_from_bias
from narrowpass_int8_sym.calibration import CalibrationCache, Range, calibrate
from narrowpass_int8_sym.embeddings import find_embeddings, quantize_embeddings
from narrowpass_int8_sym.static.clipping import SAMPLES, best_clipping_ranges
from narrowpass_int8_sym.static.decisions import Outcome, report_decisions, report_values, selected
from narrowpass_int8_sym.static.emission import emit
from narrowpass_int8_sym.static.matching import MatchedUnits, find_units
from narrowpass_int8_sym.static.parameters import (
    Magnitudes,
    QuantizationParameters,
    Scheme,
    proposed_quantization,
    quantization_parameters,
)
from narrowpass_int8_sym.static.selection import Selection, select_units
from narrowpass_int8_sym.static.units import NodeUnit, Role
from narrowpass_int8_sym.underflow_warnings import warn_of_values, warn_of_weights
from narrowpass_int8_sym.weighted_nodes import WeightedNode
from narrowpass_int8_sym.weights import taken_names
from narrowpass_ir.inference import inferred

if TYPE_CHECKING:
    from narrowpass import Context, Samples

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class CalibrationResult:
    """The result of calibrating a float model.

    Attributes:
        ranges: of the values that may become int8, by name.
        shifts: bias corrections, by the name of the bias: the mean error of each output channel
            from rounding the weight; float64 [channels].
        magnitudes: of weights.
        replaced: ranges of the calibrator, by name, where matmuls chose another one.
    """

    ranges: Mapping[str, Range]
    shifts: Mapping[str, Array] = field(default_factory=dict)
    magnitudes: Magnitudes = field(default_factory=Magnitudes)
    replaced: Mapping[str, Range] = field(default_factory=dict)


@dataclass(frozen=True)
class StaticQuantizer:
    """Quantizes a model with calibration data.

    Attributes:
        scheme: of the integers.
        calibrator: its name.
        samples: the number of samples, the first ones; None for all.
        red: nodes that stay float: globs of names, ``op:TYPE``.
        green: nodes that are quantized even where a rule would keep them in float, if possible.
        cache: keeps ranges for later runs; None for no cache.
        float_values: values whose producers must stay float, by name, and why.
    """

    scheme: Scheme = field(default_factory=Scheme)
    calibrator: str = "l2"
    samples: int | None = None
    red: tuple[str, ...] = ()
    green: tuple[str, ...] = ()
    cache: CalibrationCache | None = None
    float_values: Mapping[str, str] = field(default_factory=dict)

    def calibrate(self, model: ir.Model, samples: Samples, ctx: Context) -> CalibrationResult:
        """Return the clipping ranges of all values that may become int8.

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
            choice = select_units(self._match(model, spec_of(ctx)).units, ())
            names = [value.name for value in choice.values() if value.name]
            if not names:
                return CalibrationResult({})
            ctx.observer.log.info(
                "int8-sym: calibrates %d values on %s, with %s",
                len(names),
                samples.source,
                self.calibrator,
            )
            ranges = self._ranges(model, names, samples, ctx, self.calibrator)
            better: dict[str, Range] = {}
            readers = _matmul_operands(choice)
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
        return CalibrationResult(ranges | better, replaced={name: ranges[name] for name in better})

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
            # Extremes take little time, and the reported progress must not start again.
            progress=None if again else progress,
            limit=self.samples,
            cache=self.cache,
        )

    def quantizable_nodes(self, model: ir.Model, ctx: Context) -> list[int]:
        """Return the indices of the nodes that can be quantized, one for each unit or embedding.

        They are indices in ``model.graph.all_nodes()``.
        """
        places = {node: number for number, node in enumerate(model.graph.all_nodes())}
        with inferred(model):
            choice = select_units(self._match(model, spec_of(ctx)).units, ())
        weighted_nodes = [unit.weighted for unit in choice.units if unit.weighted is not None]
        embeddings = find_embeddings(model.graph, self._red(model), weighted_nodes)
        return sorted(places[node] for node in (*(u.nodes[0] for u in choice.units), *embeddings))

    def weighted_nodes(self, model: ir.Model, ctx: Context) -> dict[int, WeightedNode]:
        """Return the weighted nodes that can be quantized, by index of the node."""
        places = {node: number for number, node in enumerate(model.graph.all_nodes())}
        with inferred(model):
            choice = select_units(self._match(model, spec_of(ctx)).units, ())
        found = [unit.weighted for unit in choice.units if unit.weighted is not None]
        return {places[weighted.node]: weighted for weighted in found}

    def float_operands(self, model: ir.Model, ctx: Context) -> dict[ir.Value, list[WeightedNode]]:
        """Return the weighted nodes that can be quantized and read float values, by the value."""
        with inferred(model):
            choice = select_units(self._match(model, spec_of(ctx)).units, ())
        narrow = {
            value
            for unit in choice.units
            if unit not in choice.float_results
            for value in unit.outputs
        }
        found: dict[ir.Value, list[WeightedNode]] = {}
        for unit in choice.units:
            if unit.weighted is not None and unit.inputs[0] not in narrow:
                found.setdefault(unit.inputs[0], []).append(unit.weighted)
        return found

    def int8_operands(self, model: ir.Model, ctx: Context) -> dict[ir.Value, list[WeightedNode]]:
        """Return the matmuls that read results of binary or pointwise int8 units, by the result.

        Only results that nothing else reads, and not of units that ``green`` names.
        """
        with inferred(model):
            choice = select_units(self._match(model, spec_of(ctx)).units, ())
        computed = {
            unit.outputs[0]
            for unit in choice.units
            if unit.role in (Role.BINARY, Role.POINTWISE) and not unit.forced_by
        }
        return {
            value: weighted_nodes
            for value, weighted_nodes in _matmul_operands(choice).items()
            if value in computed
            and not value.is_graph_output()
            and {use.node for use in value.uses()} == {weighted.node for weighted in weighted_nodes}
        }

    def rewrite(
        self,
        model: ir.Model,
        calibrated: CalibrationResult,
        kept_float: Mapping[int, str],
        ctx: Context,
    ) -> bool:
        """Quantize a model in place; return whether anything changed.

        Args:
            model: the one that was calibrated, or a clone of it.
            calibrated: what was found out about it.
            kept_float: the indices of nodes that stay float, with the other nodes of their unit,
                and why; see `quantizable_nodes`.
            ctx: `Context.target` has the limits of scales; gets decisions and counters.

        Raises:
            DataError: a weight or a bias has an element that is infinite or NaN.
        """
        spec = spec_of(ctx)
        reasons = {
            node: kept_float[number]
            for number, node in enumerate(model.graph.all_nodes())
            if number in kept_float
        }
        with inferred(model):
            found = self._match(model, spec)
            kept = {
                unit: next(reasons[node] for node in unit.nodes if node in reasons)
                for unit in found.units
                if any(node in reasons for node in unit.nodes)
            }
            choice, chosen, broken = self._select_within_limits(
                found, set(kept), calibrated, spec, ctx
            )
        weighted_nodes = [unit.weighted for unit in choice.units if unit.weighted is not None]
        embeddings = find_embeddings(model.graph, self._red(model) | set(reasons), weighted_nodes)
        outcome = Outcome(
            found, choice, kept, broken, selected(self.red, model), embeddings, reasons
        )
        report_decisions(model, outcome, ctx)
        for unit in choice.units:
            if unit.weighted is not None and unit.bias is not None:
                shift = calibrated.shifts.get(unit.bias.name or "")
                if shift is not None:
                    subtract_from_bias(unit.weighted, unit.bias, shift)
        if self.scheme.floor:
            warn_of_values(chosen.values, calibrated.ranges, ctx.observer.log)
            warn_of_weights(calibrated.magnitudes.by_name(), ctx.observer.log)
        report_values(chosen.values, calibrated.ranges, calibrated.replaced, self.calibrator, ctx)
        ctx.counters["values"] += emit(model, choice, chosen, self.scheme)
        ctx.counters["embeddings"] += quantize_embeddings(
            model.graph, embeddings, taken_names(model)
        )
        return bool(choice.units or embeddings)

    def _select_within_limits(
        self,
        found: MatchedUnits,
        kept_float: set[NodeUnit],
        calibrated: CalibrationResult,
        spec: QuantizationSpec,
        ctx: Context,
    ) -> tuple[Selection, QuantizationParameters, dict[NodeUnit, Violation | Reject]]:
        """Select units, repeatedly without those that break limits or that the target rejects."""
        broken: dict[NodeUnit, Violation | Reject] = {}
        while True:
            choice = select_units(found.units, kept_float | set(broken))
            chosen = quantization_parameters(
                choice, calibrated.ranges, self.scheme, spec, calibrated.magnitudes
            )
            refused = chosen.refused or rejected(choice, chosen, ctx)
            if not refused:
                return choice, chosen, broken
            broken |= refused

    def _red(self, model: ir.Model) -> set[ir.Node]:
        return {node for nodes in selected(self.red, model).values() for node in nodes}

    def _match(self, model: ir.Model, spec: QuantizationSpec) -> MatchedUnits:
        red = self._red(model)
        forced = {
            node: f"option green={item}"
            for item, nodes in selected(self.green, model).items()
            for node in nodes
        }
        found = find_units(model.graph, red, forced)
        other = {
            unit: f"the target supports only {fixed.dtype} as result of {unit.op_type}"
            for unit in found.units
            if (fixed := spec.output(unit.op_type)) and fixed.dtype != spec.activations.dtype
        }
        other |= {
            unit: f"the target has no int8 {missing}"
            for unit in found.units
            if not unit.forced_by and (missing := _float_operator(spec, unit))
        }
        other |= {
            unit: self.float_values[value.name]
            for unit in found.units
            for value in unit.outputs
            if value.name and value.name in self.float_values
        }
        left = {node: reason for unit, reason in other.items() for node in unit.nodes}
        units = tuple(unit for unit in found.units if unit not in other)
        return MatchedUnits(units, {**found.left, **left})


def rejected(
    choice: Selection, chosen: QuantizationParameters, ctx: Context
) -> dict[NodeUnit, Reject]:
    """Return the units whose proposed Q/DQ the target rejects, with its reasons.

    Not forced for regions of several nodes, which have no operator, and for nodes that ``green``
    names, which are quantized even if the target computes them in float.
    """
    if ctx.target is None:
        return {}
    answers = {
        unit: ctx.target.supports_quantized(
            unit.nodes[0], proposed_quantization(unit, choice, chosen.values, chosen.weights)
        )
        for unit in choice.units
        if unit.op_type and not unit.forced_by
    }
    return {unit: answer for unit, answer in answers.items() if isinstance(answer, Reject)}


def _float_operator(spec: QuantizationSpec, unit: NodeUnit) -> str:
    """Return the first operator of a unit that the target lacks in int8; empty for none."""
    return next((n.op_type for n in unit.nodes if spec.operator(n.op_type) is None), "")


def _matmul_operands(choice: Selection) -> dict[ir.Value, list[WeightedNode]]:
    """Return the values that MatMul and Gemm alone read among int8 units, with these nodes."""
    found: dict[ir.Value, list[WeightedNode]] = {}
    others: set[ir.Value] = set()
    for unit in choice.units:
        if unit.weighted is not None and unit.weighted.is_matrix:
            found.setdefault(unit.inputs[0], []).append(unit.weighted)
        else:
            others.update(unit.inputs)
    return {value: weighted_nodes for value, weighted_nodes in found.items() if value not in others}


def spec_of(ctx: Context) -> QuantizationSpec:
    """Return the quantization spec of the target.

    Raises:
        PassError: it requires other integer types than int8.
    """
    spec = ctx.target.quantization_spec() if ctx.target else QuantizationSpec()
    name = ctx.target.name if ctx.target else ""
    if spec.activations != QuantizationSpec().activations:
        raise PassError(f"{name} has activations of {spec.activations}; int8-sym has int8")
    if spec.weights.dtype != "int8" or spec.weights.low > -127 or spec.weights.high < 127:
        raise PassError(f"{name} has weights of {spec.weights}; int8-sym has int8 in [-127, 127]")
    return spec
