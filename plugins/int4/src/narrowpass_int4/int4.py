"""The pass ``int4``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Literal

import onnx_ir as ir

from narrowpass import Decision, Pass, PassResult
from narrowpass.errors import PassError, UpgradeError, UsageError
from narrowpass_int4.matrices import label_of
from narrowpass_int4.plan import Plan, Rules, plan
from narrowpass_int4.requests import request_int8_rows, request_rounded_attention
from narrowpass_int4.rewriting import Rewriting
from narrowpass_int4.settings import Options
from narrowpass_ir.inference import inferred
from narrowpass_ir.upgrading import upgrade

if TYPE_CHECKING:
    from narrowpass import Context

OPSET = 21
"""The operator set from which DequantizeLinear has blocks, and ONNX integers of 4 bits."""

IR_VERSION = 10
"""The same of the file format."""


@dataclass(frozen=True)
class Int4(Pass):
    """Store weights as integers of 4 bits, in blocks with a scale each; activations stay float.

    Weights of MatMul, Gemm, Conv of 1 x 1, experts (com.microsoft's MoE, and MatMul with a constant
    of several matrices) and embeddings are quantized one at a time: memory is that of a weight or
    two, whatever the size of the model. A weight that two nodes read, such as an embedding that is
    the LM head too, is stored once.

    Attributes:
        block: how many elements along K share a scale; ``channel``: all of them.
        symmetric: whether integers are from -8 to 7 and there are no zero points; else they are
            from 0 to 15.
        method: what chooses integers, scales and zero points. ``rtn``: rounding to nearest in the
            range of the block. ``mse``: the range with the least squared error. ``hqq``: the zero
            point, or the scale if symmetric, that fits all but outliers. Of data: ``gptq``: each
            column compensates what rounding did to those before it; ``awq``: channels that meet
            large activations are scaled up first, and what computes them is scaled down.
        head: what becomes of the matmuls that no other follows, such as the LM head.
        embeddings: what becomes of constants whose rows are looked up. A weight that is both has
            the more bits of the two.
        format: ``qdq``: DequantizeLinear of ONNX before each matmul; ``nbits``: com.microsoft's
            MatMulNBits and GatherBlockQuantized, and DequantizeLinear where these cannot be.
        scales: how the scales of 4-bit blocks are stored. ``float16``: as float16, with a Cast to
            float32, for float32 weights whose scales float16 can represent: 4.5 bits for each
            weight in blocks of 32, and not 5. ``weight``: in the dtype of the weight, as all
            other scales are.
        activations: how rows are multiplied with narrow weights. ``float``: as they are.
            ``dynamic``: quantized to int8 when the model runs, in blocks of the same size, by a
            backend that can: the metadata ``narrowpass.activations`` of the node, or
            ``accuracy_level`` 4 of MatMulNBits. It takes half the time where arithmetic limits, and
            costs accuracy. Matmuls whose weights are integers already, as of a GGUF file, have the
            request too, and attention between them may round its operands to bfloat16.
        red: nodes whose weights stay wide: globs of names, ``op:TYPE``.
        green: nodes whose weights are narrow also where a rule or `tolerance` would leave them.
        tolerance: the largest error of a layer over its signal, as root mean squares: of its
            outputs where there is data, else of its weights. Layers above it stay wide.
    """

    name: ClassVar[str] = "int4"
    serves: ClassVar[Mapping[str, str]] = MappingProxyType({"int4": ""})
    block: Literal["16", "32", "64", "128", "channel"] = "32"
    symmetric: bool = True
    method: Literal["rtn", "mse", "hqq", "gptq", "awq"] = "mse"
    head: Literal["int8", "int4", "keep"] = "int8"
    embeddings: Literal["int8", "int4", "keep"] = "int8"
    format: Literal["qdq", "nbits"] = "qdq"
    scales: Literal["float16", "weight"] = "float16"
    activations: Literal["float", "dynamic"] = "float"
    red: tuple[str, ...] = ()
    green: tuple[str, ...] = ()
    tolerance: float | None = None

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            OptionError: a value that does not fit its field's type.
            UsageError: a tolerance that is not positive.
        """
        super().__post_init__()
        if self.tolerance is not None and self.tolerance <= 0:
            raise UsageError(f"tolerance must be above 0: {self.tolerance}")

    def run(self, model: ir.Model, ctx: Context) -> PassResult:
        """Quantize the weights of a model.

        Counters: ``int4`` and ``int8`` (weights), ``left`` (nodes that stay wide), ``rows`` (nodes
        whose weights are integers already, and whose rows become int8), ``rounded`` (nodes without
        weights, whose operands may be bfloat16).

        Raises:
            PassError: the method needs data and there is none; the operator set is old and cannot
                be upgraded; there is no space for temporary files.
            DataError: a weight has an element that is infinite or NaN, or an activation on a
                sample.
        """
        result = self._quantized(model, ctx)
        if self.activations == "float":
            return result
        notes = [result.summary]
        if requested := request_int8_rows(result.model, self.red, ctx):
            notes.append(
                f"rows of {requested} matmuls with weights that are integers already become int8"
            )
        if not result.modified and not requested:
            return result
        if rounded := request_rounded_attention(result.model, self.red, ctx):
            notes.append(f"operands of {rounded} nodes without weights may be bfloat16")
        return PassResult(result.model, True, "; ".join(notes))

    def _quantized(self, model: ir.Model, ctx: Context) -> PassResult:
        if self.method in ("gptq", "awq") and ctx.samples is None:
            raise PassError(
                f"method={self.method} needs data: pass --calibration, or build(calibration=...); "
                "method=mse and method=hqq need none"
            )
        rules = Rules(self.head, self.embeddings, self.red, self.green)
        planned = plan(model, rules, ctx)
        if not planned.jobs:
            _report_left(planned, ctx)
            return PassResult(model, False, _nothing(planned))
        model, upgraded = _upgraded(model, ctx)
        if upgraded:
            planned = plan(model, rules, ctx)
        options = Options(
            None if self.block == "channel" else int(self.block),
            self.symmetric,
            self.method,
            self.format,
            self.scales,
            self.activations,
            self.tolerance,
        )
        with inferred(model):
            rewriting = Rewriting(model, planned, options, ctx)
            rewriting.quantize()
        rewriting.emit()
        _report_left(planned, ctx)
        model.ir_version = max(model.ir_version, IR_VERSION)
        return PassResult(model, upgraded or rewriting.changed, rewriting.summary())


def _upgraded(model: ir.Model, ctx: Context) -> tuple[ir.Model, bool]:
    """Return the model with an operator set that has what is needed, and whether it is another."""
    before = model.opset_imports.get("", 1)
    if before >= OPSET:
        return model, False
    try:
        found, changed = upgrade(model, OPSET)
    except UpgradeError as error:
        raise PassError(str(error)) from error
    if found is model:
        model.opset_imports[""] = OPSET
        return model, True
    ctx.observer.log.info("int4: operator set %d becomes %d", before, OPSET)
    reason = f"integers of 4 bits came with operator set {OPSET}; the model had {before}"
    ctx.decisions.extend(
        Decision(label_of(node), node.op_type, "upgraded", "rule", reason) for node in changed
    )
    return found, True


def _report_left(planned: Plan, ctx: Context) -> None:
    ctx.counters["left"] += len(planned.left)
    ctx.decisions.extend(
        Decision(label_of(each.node), each.node.op_type, "wide", each.by, each.reason)
        for each in planned.left
    )


def _nothing(planned: Plan) -> str:
    first = next(iter(planned.left), None)
    if first is None:
        return "int4: nothing is quantized: no node has a constant matrix"
    return f"int4: nothing is quantized; {label_of(first.node)!r}: {first.reason}"
