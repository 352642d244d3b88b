"""The pass ``int8-sym``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import onnx_ir as ir

from narrowpass import Decision, Pass, PassResult
from narrowpass.errors import PassError, UsageError
from narrowpass_analysis.metrics import Tolerance
from narrowpass_int8_sym import bias_correction, equalize
from narrowpass_int8_sym.bias_correction import bias_shifts
from narrowpass_int8_sym.calibration import CalibrationCache
from narrowpass_int8_sym.float_fallback import nodes_to_keep_float
from narrowpass_int8_sym.half_precision import downcast, has_half_precision, upcast
from narrowpass_int8_sym.scales import LEAST_SCALE
from narrowpass_int8_sym.smoothing import smooth
from narrowpass_int8_sym.static import Scheme, StaticQuantizer
from narrowpass_int8_sym.static.noise import report_noise
from narrowpass_int8_sym.weight_only import NOT_DYNAMIC, WeightQuantizer
from narrowpass_int8_sym.weighted_nodes import WEIGHTED_OPERATORS
from narrowpass_ir.errors import UpgradeError
from narrowpass_ir.upgrading import upgrade

if TYPE_CHECKING:
    from narrowpass import Context
    from narrowpass.calibration.samples import Samples

Array = np.ndarray[Any, Any]

_FIRST_OPSET = {"per-tensor": 10, "per-channel": 13}
"""The first operator set whose DequantizeLinear can store weights so."""


@dataclass(frozen=True)
class Int8Sym(Pass):
    """Quantize a model to int8, with symmetric weights.

    The result is standard ONNX. In mode ``static``, activations have scales from calibration data,
    and QuantizeLinear and DequantizeLinear surround each int8 operator. Otherwise each weight is
    int8 with a DequantizeLinear, and in mode ``dynamic`` MatMul and Gemm also have the metadata
    ``narrowpass.activations``, which requests dynamic per-token quantization from the backend.

    Attributes:
        mode: how activations are quantized: with scales from calibration data (``static``), per
            token at run time (``dynamic``), or not (``weight-only``); ``auto``: static where there
            are samples, else dynamic.
        weights: one scale for each output channel, or one for the tensor.
        activations: of ``static``: whether their zero points fit the range, or are 0.
        calibrator: of ``static``: computes the clipping range of a value. With ``l2``, values that
            only MatMul and Gemm read get the range that minimizes the error of their results; see
            `narrowpass_int8_sym.static.clipping`.
        samples: of ``static``: the number of samples, the first ones; none for all.
        scale_policy: ``floor``: no scale is below 2⁻¹², as in PyTorch's presets for XNNPACK;
            ``solve``: as small as the ranges allow, and increased only as far as a limit of the
            target requires.
        red: nodes that stay float32: globs of names, ``op:TYPE``.
        green: of ``static``: nodes that are quantized even where a rule would keep them in float,
            if that is possible at all.
        tolerance: how far outputs may be from those of the float model on the data, such as
            ``cosine:0.995``; the fewest nodes stay float32 that meet it, the most sensitive first,
            measured with each node quantized alone.
        smooth: of ``static``: whether channels of the operands of MatMul and Gemm are scaled to
            similar magnitudes first (SmoothQuant): in the constants of their producers where
            possible, else by a Mul, where that lowers the noise enough; see the pass ``equalize``.
            A producer that would be int8 stays float where that halves the noise.
        bias_correction: of ``static``: whether the mean error that rounding of weights adds to each
            channel is subtracted from biases.
    """

    name: ClassVar[str] = "int8-sym"
    serves: ClassVar[Mapping[str, str]] = MappingProxyType({"int8": ""})
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
        """Quantize the model; weights are converted when they are written.

        Counters: ``nodes`` (that are int8, or have int8 weights), ``left`` (that stay float),
        ``int8`` (weights) or, of ``static``, ``values`` (int8 activations); ``embeddings`` (int8).

        Raises:
            PassError: the mode or the tolerance needs data and there is none; the operator set is
                old and cannot be upgraded.
            DataError: a weight has an element that is infinite or NaN, or an activation is on a
                sample.
        """
        if ctx.samples is None and (self.mode == "static" or self.tolerance is not None):
            what = "mode=static" if self.mode == "static" else "tolerance"
            raise PassError(f"{what} needs data: pass --calibration, or build(calibration=...)")
        model, upgraded = _upgraded(model, _FIRST_OPSET[self.weights], ctx)
        # The model itself must not change where nothing is quantized: only a clone is upcast.
        wide = model.clone() if has_half_precision(model) else model
        upcast_model = wide is not model and upcast(wide)
        if self.mode == "static" or (self.mode == "auto" and ctx.samples is not None):
            quantized = self._static(wide, ctx)
        else:
            quantized = wide if self._stored(wide, ctx) else None
        reported = self._report_convolutions(wide, ctx)
        if quantized is None and not reported:
            _report_nothing(ctx)
        elif quantized is not None and upcast_model:
            downcast(quantized)
        return PassResult(quantized or model, quantized is not None or upgraded)

    def _report_convolutions(self, model: ir.Model, ctx: Context) -> bool:
        """Warn of convolutions that stay float because there is no data; return whether some do."""
        if self.mode == "static" or (self.mode == "auto" and ctx.samples is not None):
            return False
        kinds = ("Conv", "ConvTranspose")
        nodes = [n for n in model.graph.all_nodes() if n.op_type in kinds and not n.domain]
        left = [n for n in ctx.decisions if n.op_type in kinds and n.reason.startswith(NOT_DYNAMIC)]
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
        static = StaticQuantizer(scheme, self.calibrator, self.samples, self.red, self.green, cache)
        smoothing: list[Decision] = []
        if self.smooth:
            ctx.observer.progress("smoothing channels", 0, 0)
            limit = _fewer(self.samples, equalize.SAMPLES)
            floats, narrow = static.float_operands(model, ctx), static.int8_operands(model, ctx)
            smoothed = smooth(model, floats, narrow, samples, ctx.target, limit)
            smoothing = smoothed.decisions
            static = dataclasses.replace(static, float_values=smoothed.float_values)
        # First, so that an error about NaN in the data names the value that has it.
        calibrated = static.calibrate(model, samples, ctx)
        shifts = {}
        if self.bias_correction:
            ctx.observer.progress("correcting biases", 0, 0)
            shifts = self._shifts(model, static, samples, ctx)
        calibrated = dataclasses.replace(calibrated, shifts=shifts)

        def rewrite(model: ir.Model, kept_float: Mapping[int, str], ctx: Context) -> bool:
            return static.rewrite(model, calibrated, kept_float, ctx)

        kept_float: dict[int, str] = {}
        if self.tolerance is not None:
            numbers = static.quantizable_nodes(model, ctx)
            kept_float = nodes_to_keep_float(model, numbers, rewrite, samples, self.tolerance, ctx)
        before = model.clone()
        if not rewrite(model, kept_float, ctx):
            return None
        ctx.counters["smoothed"] += len(smoothing)
        ctx.counters["biases"] += len(shifts)
        ctx.decisions.extend(smoothing)
        if ctx.observer.reads_decisions:
            ctx.observer.progress("measuring the noise of values", 0, 0)
            report_noise(before, model, samples, ctx)
        return model

    def _shifts(
        self, model: ir.Model, static: StaticQuantizer, samples: Samples, ctx: Context
    ) -> dict[str, Array]:
        """Return the bias corrections of weighted nodes, which get a bias where they can."""
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
        stored = WeightQuantizer(
            self.mode != "weight-only",
            self.weights == "per-channel",
            self.scale_policy == "floor",
            self.red,
        )
        kept_float: dict[int, str] = {}
        if self.tolerance is not None:
            numbers = stored.quantizable_nodes(model, ctx)
            kept_float = nodes_to_keep_float(
                model, numbers, stored.rewrite, _given(ctx), self.tolerance, ctx
            )
        return stored.rewrite(model, kept_float, ctx)


def _fewer(given: int | None, most: int) -> int:
    return most if given is None else min(given, most)


def _given(ctx: Context) -> Samples:
    if ctx.samples is None:
        raise PassError("there is no data")
    return ctx.samples


def _report_nothing(ctx: Context) -> None:
    """Warn that nothing has become int8, with the reason of the first weighted node.

    No warning where all that can be int8 is quantized already.
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
    """Return a model with an operator set of at least `least`, and whether it was upgraded."""
    before = model.opset_imports.get("", 1)
    if before >= least:
        return model, False
    try:
        newer, changed = upgrade(model, least)
    except UpgradeError as error:
        raise PassError(str(error)) from error
    if newer is model:
        return model, False
    ctx.observer.log.info("int8-sym: operator set %d becomes %d", before, least)
    reason = f"int8 weights of that kind came with operator set {least}; the model had {before}"
    ctx.decisions.extend(
        Decision(node.name or "", node.op_type, "upgraded", "rule", reason) for node in changed
    )
    return newer, True
