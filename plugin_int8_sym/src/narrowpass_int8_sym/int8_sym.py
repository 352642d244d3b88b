"""The pass ``int8-sym``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import onnx_ir as ir

from narrowpass import Decision, Pass, PassResult
from narrowpass.errors import PassError, UsageError
from narrowpass.ir.upgrading import upgrade
from narrowpass_analysis.metrics import Tolerance
from narrowpass_int8_sym import bias_correction, equalize
from narrowpass_int8_sym.bias_correction import bias_shifts
from narrowpass_int8_sym.calibration import CalibrationCache
from narrowpass_int8_sym.float_fallback import nodes_to_hold
from narrowpass_int8_sym.halves import has_halves, narrow, widen
from narrowpass_int8_sym.scales import LEAST_SCALE
from narrowpass_int8_sym.smoothing import smooth
from narrowpass_int8_sym.static import Scheme, Static
from narrowpass_int8_sym.static.noise import report_noise
from narrowpass_int8_sym.weight_only import ROWS_STAY, Stored
from narrowpass_int8_sym.weighted_nodes import WEIGHTED_OPERATORS

if TYPE_CHECKING:
    from narrowpass import Context
    from narrowpass.calibration.samples import Samples

Array = np.ndarray[Any, Any]

_FIRST_OPSET = {"per-tensor": 10, "per-channel": 13}
"""The operator sets from which weights can be stored so."""


@dataclass(frozen=True)
class Int8Sym(Pass):
    """Let a model compute with signed bytes; those of weights have the zero point 0.

    The result is standard ONNX. In mode ``static``, activations have scales that are found on data,
    and QuantizeLinear and DequantizeLinear stand around what computes with int8. Otherwise a
    DequantizeLinear stands before each weight, and in mode ``dynamic`` MatMul and Gemm also have
    the metadata ``narrowpass.activations``, which asks the backend to quantize their rows at run
    time.

    Attributes:
        mode: where activations are quantized: on data beforehand, at run time, or nowhere;
            ``auto``: on data where there are samples, else at run time.
        weights: one scale for each channel of the result, or one for the tensor.
        activations: of ``static``: whether their zero points fit the range, or are 0.
        calibrator: of ``static``: what makes a range of the data. With ``l2``, what only MatMul and
            Gemm read has the range with which their results err least, see `best_windows`.
        samples: of ``static``: how many samples are taken, the first ones; none for all.
        scale_policy: ``floor``: no scale is below 2⁻¹², as in PyTorch's presets for XNNPACK;
            ``solve``: as small as the data asks for, and raised as far as a limit of the target
            asks.
        red: nodes that stay float32: globs of names, ``op:TYPE``.
        green: of ``static``: nodes that are quantized also where a rule would leave them, if
            that is possible at all.
        tolerance: how far outputs may be from those of the model as it was on the data, such as
            ``cosine:0.995``; the fewest nodes that must be for that stay float32, those first that
            harm the outputs most when they alone are quantized.
        smooth: of ``static``: whether channels of what MatMul and Gemm read are brought to like
            magnitudes first: by their producers, where these can take the factors, else by a
            multiplication, where it lowers the noise enough; see the pass ``equalize``. What makes
            such a value, and would be int8, stays float where that lowers it by half.
        bias_correction: of ``static``: whether biases make up for what rounding the weights adds to
            the mean of each channel.
    """

    name: ClassVar[str] = "int8-sym"
    mode: Literal["auto", "static", "dynamic", "weight-only"] = "auto"
    weights: Literal["per-channel", "per-tensor"] = "per-channel"
    activations: Literal["affine", "symmetric"] = "affine"
    calibrator: Literal["l2", "minmax", "percentile", "entropy", "moving-average"] = "l2"
    samples: int | None = None
    scale_policy: Literal["solve", "floor"] = "solve"
    red: tuple[str, ...] = ()
    green: tuple[str, ...] = ()
    tolerance: Tolerance | None = None
    smooth: bool = True
    bias_correction: bool = True

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            OptionError: a value that does not fit its field's type.
            UsageError: fewer than one sample.
        """
        super().__post_init__()
        if self.samples is not None and self.samples < 1:
            raise UsageError(f"samples must be at least 1: {self.samples}")

    def run(self, model: ir.Model, ctx: Context) -> PassResult:
        """Quantize; weights are converted when they are written.

        Counters: ``nodes`` (that compute with int8, or with weights in bytes), ``left`` (that stay
        float), ``int8`` (weights) or, of ``static``, ``values`` (activations that have become
        int8) and ``tables`` (of embeddings, in bytes).

        Raises:
            PassError: the mode or the tolerance needs data and there is none; the operator set is
                old and cannot be upgraded.
            DataError: a weight has an element that is infinite or NaN, or an activation is on a
                sample.
        """
        if ctx.samples is None and (self.mode == "static" or self.tolerance is not None):
            what = "mode=static" if self.mode == "static" else "tolerance"
            raise PassError(f"{what} needs data: give --calibration, or build(calibration=...)")
        model, upgraded = _upgraded(model, _FIRST_OPSET[self.weights], ctx)
        # What is not quantized must be as it was, so that only a clone is widened.
        wide = model.clone() if has_halves(model) else model
        upcast_model = wide is not model and widen(wide)
        if self.mode == "static" or (self.mode == "auto" and ctx.samples is not None):
            quantized = self._static(wide, ctx)
        else:
            quantized = wide if self._stored(wide, ctx) else None
        told = self._report_convolutions(wide, ctx)
        if quantized is None and not told:
            _report_nothing(ctx)
        elif quantized is not None and upcast_model:
            narrow(quantized)
        return PassResult(quantized or model, quantized is not None or upgraded)

    def _report_convolutions(self, model: ir.Model, ctx: Context) -> bool:
        """Warn of convolutions that stay float because there is no data; return whether some do."""
        if self.mode == "static" or (self.mode == "auto" and ctx.samples is not None):
            return False
        kinds = ("Conv", "ConvTranspose")
        nodes = [n for n in model.graph.all_nodes() if n.op_type in kinds and not n.domain]
        left = [n for n in ctx.decisions if n.op_type in kinds and n.reason.startswith(ROWS_STAY)]
        if not left:
            return False
        way = "leave mode=dynamic out and " if self.mode == "dynamic" else ""
        ctx.observer.log.warning(
            "int8-sym: 0 of %d convolutions became int8: static int8 needs calibration data: "
            "%spass --calibration DATA, or build(calibration=...); mode=weight-only stores their "
            "weights as int8 without any, and computes in float",
            len(nodes),
            way,
        )
        return True

    def _static(self, given: ir.Model, ctx: Context) -> ir.Model | None:
        """Return a quantized clone; None where nothing can be quantized."""
        model = given.clone()
        samples = _given(ctx)
        if self.mode == "auto":
            ctx.observer.log.info("int8-sym: mode=static, because there are samples")
        scheme = Scheme(
            self.weights == "per-channel",
            self.activations == "symmetric",
            self.scale_policy == "floor",
        )
        cache = CalibrationCache()
        static = Static(scheme, self.calibrator, self.samples, self.red, self.green, cache)
        told: list[Decision] = []
        if self.smooth:
            ctx.observer.progress("smoothing channels", 0, 0)
            limit = _fewer(self.samples, equalize.SAMPLES)
            floats, narrow = static.floats(model, ctx), static.between(model, ctx)
            smoothed = smooth(model, floats, narrow, samples, ctx.target, limit)
            told = smoothed.decisions
            static = dataclasses.replace(static, wide=smoothed.wide)
        # First, so that NaN in the data is told of the value that has it.
        calibrated = static.calibrate(model, samples, ctx)
        shifts = {}
        if self.bias_correction:
            ctx.observer.progress("correcting biases", 0, 0)
            shifts = self._shifts(model, static, samples, ctx)
        calibrated = dataclasses.replace(calibrated, shifts=shifts)

        def rewrite(model: ir.Model, held: Mapping[int, str], ctx: Context) -> bool:
            return static.rewrite(model, calibrated, held, ctx)

        held: dict[int, str] = {}
        if self.tolerance is not None:
            numbers = static.numbers(model, ctx)
            held = nodes_to_hold(model, numbers, rewrite, samples, self.tolerance, ctx)
        before = model.clone()
        if not rewrite(model, held, ctx):
            return None
        ctx.counters["smoothed"] += len(told)
        ctx.counters["biases"] += len(shifts)
        ctx.decisions.extend(told)
        ctx.observer.progress("measuring the noise of values", 0, 0)
        report_noise(before, model, samples, ctx)
        return model

    def _shifts(
        self, model: ir.Model, static: Static, samples: Samples, ctx: Context
    ) -> dict[str, Array]:
        """Return what is to be taken off the biases of products, which get one where they can."""
        return bias_shifts(
            model,
            static.weighted_nodes(model, ctx),
            samples,
            ctx.target,
            per_channel=self.weights == "per-channel",
            least=LEAST_SCALE if self.scale_policy == "floor" else 0.0,
            limit=_fewer(self.samples, bias_correction.SAMPLES),
        )

    def _stored(self, model: ir.Model, ctx: Context) -> bool:
        if self.mode == "auto":
            ctx.observer.log.info("int8-sym: mode=dynamic, because there are no samples")
        stored = Stored(
            self.mode != "weight-only",
            self.weights == "per-channel",
            self.scale_policy == "floor",
            self.red,
        )
        held: dict[int, str] = {}
        if self.tolerance is not None:
            numbers = stored.numbers(model, ctx)
            held = nodes_to_hold(model, numbers, stored.rewrite, _given(ctx), self.tolerance, ctx)
        return stored.rewrite(model, held, ctx)


def _fewer(given: int | None, most: int) -> int:
    return most if given is None else min(given, most)


def _given(ctx: Context) -> Samples:
    if ctx.samples is None:
        raise PassError("there is no data")
    return ctx.samples


def _report_nothing(ctx: Context) -> None:
    """Warn that nothing has become int8, with why the first product has not.

    Where all that could be int8 is so already, that is as it should be.
    """
    if any(item.decision == "kept" for item in ctx.decisions):
        ctx.observer.log.info("int8-sym: nothing is quantized that was not so before")
        return
    left = [item for item in ctx.decisions if item.decision == "float"]
    weighted_nodes = [item for item in left if item.op_type in WEIGHTED_OPERATORS] or left
    first = next((item for item in weighted_nodes if item.reason), None)
    why = "no node has a constant weight" if first is None else f"{first.node!r}: {first.reason}"
    ctx.observer.log.warning("int8-sym: nothing is quantized; %s", why)


def _upgraded(model: ir.Model, least: int, ctx: Context) -> tuple[ir.Model, bool]:
    """Return a model of an operator set that has what is needed, and whether it is another."""
    before = model.opset_imports.get("", 1)
    if before >= least:
        return model, False
    made, changed = upgrade(model, least)
    if made is model:
        return model, False
    ctx.observer.log.info("int8-sym: operator set %d becomes %d", before, least)
    reason = f"int8 weights of that kind came with operator set {least}; the model had {before}"
    ctx.decisions.extend(
        Decision(node.name or "", node.op_type, "upgraded", "rule", reason) for node in changed
    )
    return made, True
