"""Quantized models in the forms that tools write, and backends with limits of their own."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import passes_kit
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnxruntime_kit import run_onnxruntime

from narrowpass import (
    Accept,
    Backend,
    Bundle,
    CompileOptions,
    Context,
    Decision,
    Observer,
    Program,
    Registry,
)
from narrowpass.runtime.quantization import (
    FixedOutput,
    OperatorSpec,
    PerTokenQuantization,
    QuantizationSpec,
    ScaleBound,
)
from narrowpass_int8_sym.repair_quantized import RepairQuantized
from narrowpass_reference import ReferenceBackend
from narrowpass_testing import assert_signature_unchanged, run_pass

Array = np.ndarray[Any, Any]
MICROSOFT = "com.microsoft"
RNG = np.random.default_rng(61)
IMAGE = [1, 3, 8, 8]
FEEDS = {"x": np.random.default_rng(4).standard_normal(IMAGE).astype(np.float32)}


def node(
    kind: str, inputs: Sequence[str], outputs: str, domain: str = "", **attributes: Any
) -> onnx.NodeProto:
    """Build a node with the name of its first output."""
    names = outputs.split()
    return helper.make_node(kind, list(inputs), names, name=names[0], domain=domain, **attributes)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int | str]],
    outputs: Mapping[str, Sequence[int | str] | None],
    constants: Mapping[str, Any],
    opset: int = 21,
    types: Mapping[str, Any] | None = None,
) -> onnx.ModelProto:
    """Build a model; inputs and outputs are float32 unless `types` says otherwise."""
    kinds = {n: helper.np_dtype_to_tensor_dtype(np.dtype(k)) for n, k in (types or {}).items()}
    return passes_kit.model(
        nodes, inputs, outputs, constants, opset, types=kinds, domains=[MICROSOFT]
    )


@dataclass(frozen=True)
class Limited(Backend):
    """The reference backend, with limits."""

    name = "limited"
    limits: QuantizationSpec

    def supports(self, node: ir.Node) -> Accept:
        return Accept()

    def compile(self, bundle: Bundle, options: CompileOptions) -> Program:
        return ReferenceBackend().compile(bundle, options)

    def quantization_spec(self) -> QuantizationSpec:
        return self.limits


MATMUL = OperatorSpec(ScaleBound("input * weight / output", 2.0**-32, 2.0**8))
ADDITION = OperatorSpec(ScaleBound("input / output", 2.0**-10, 2.0**8))
CONVERSION = OperatorSpec(ScaleBound("input / output", 2.0**-8, 2.0**7, closed=True))
SAME = ("Clip", "Concat", "MaxPool", "Pad", "Relu", "Reshape", "Resize", "Slice")
XNNPACK = QuantizationSpec(
    operators={
        **dict.fromkeys(("Conv", "ConvTranspose", "MatMul", "Gemm"), MATMUL),
        "Add": ADDITION,
        "Sub": ADDITION,
        "Mul": OperatorSpec(ScaleBound("input * input / output", 2.0**-16, 2.0**8)),
        "LeakyRelu": CONVERSION,
        "QuantizeLinear": CONVERSION,
        **dict.fromkeys(SAME, OperatorSpec(same=True)),
        "Softmax": OperatorSpec(output=FixedOutput("uint8", 2.0**-8, 0)),
    },
    per_token=PerTokenQuantization(frozenset({"MatMul", "Gemm"})),
)
"""The limits of the native backend on XNNPACK's operators."""


@dataclass
class Repaired:
    """The result of the pass on a model."""

    before: onnx.ModelProto
    after: onnx.ModelProto
    modified: bool
    decisions: list[Decision]
    warnings: list[str]

    def of(self, name: str) -> list[Decision]:
        """Return the decisions about a node."""
        return [each for each in self.decisions if each.node == name]

    def kinds(self) -> list[str]:
        """Return the operators of the model, in order."""
        return [each.op_type for each in self.after.graph.node]

    def constants(self) -> dict[str, Array]:
        return {each.name: numpy_helper.to_array(each) for each in self.after.graph.initializer}

    def reads(self, name: str) -> list[str]:
        """Return the inputs of the node of a name."""
        return next(list(n.input) for n in self.after.graph.node if n.name == name)


REGISTRY = Registry()
"""Without plugins: the pass is given as it is."""


def repaired(proto: onnx.ModelProto, spec: QuantizationSpec | None = None) -> Repaired:
    """Run the pass under all checks; a second run must change nothing and decide the same."""
    given = ir.from_proto(proto)
    found: list[Decision] = []
    handler = _Kept()
    log = logging.getLogger("narrowpass.test")
    log.addHandler(handler)
    target = Limited(XNNPACK if spec is None else spec)
    try:
        result = run_pass(
            RepairQuantized(),
            given,
            ctx=Context(target, decisions=found, observer=Observer(log=log)),
            registry=REGISTRY,
        )
    finally:
        log.removeHandler(handler)
    assert_signature_unchanged(given, result.model)
    after = ir.to_proto(result.model)
    onnx.checker.check_model(after, full_check=True)
    again: list[Decision] = []
    second = run_pass(
        RepairQuantized(),
        result.model,
        ctx=Context(
            target, decisions=again, observer=Observer(logging.getLogger("narrowpass.again"))
        ),
        registry=REGISTRY,
    )
    assert not second.modified, "a second run changes the model"
    left = [each for each in found if each.decision == "float" and each.by == "constraints"]
    assert {(d.node, d.reason) for d in left} >= {
        (d.node, d.reason) for d in again if d.decision == "float" and d.by == "constraints"
    }
    return Repaired(proto, after, result.modified, found, handler.lines)


class _Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def evaluated(proto: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    """Run a model of ONNX's own operators on onnx's evaluator."""
    return ReferenceEvaluator(proto).run(None, dict(feeds))


def on_onnxruntime(proto: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    """Run a model on onnxruntime as it stands: optimized, it fuses Q/DQ in ways of its own."""
    return run_onnxruntime(proto, feeds)


def floats(*shape: int, scale: float = 1.0) -> Array:
    return (RNG.standard_normal(shape) * scale).astype(np.float32)


def integers(dtype: Any, *shape: int, low: int = -127, high: int = 127, zero: int = 0) -> Array:
    """Draw integers from `low` to `high`, around a zero point."""
    return (RNG.integers(low, high + 1, shape) + zero).astype(dtype)


def same(found: Repaired, feeds: Mapping[str, Array], *, steps: int = 0, step: float = 0.0) -> None:
    """Hold the result to that of the model as it was: equal, or within steps."""
    for got, right in zip(
        evaluated(found.after, feeds), evaluated(found.before, feeds), strict=True
    ):
        assert (got.dtype, got.shape) == (right.dtype, right.shape)
        if steps:
            assert np.abs(got - right).max() <= steps * step * 1.001
        else:
            np.testing.assert_array_equal(got, right)


def pair(
    source: str, to: str, which: str, *, zero: bool = True, **attributes: Any
) -> list[onnx.NodeProto]:
    """Write QuantizeLinear and DequantizeLinear of one scale."""
    operands = [f"{which}s", *([f"{which}z"] if zero else [])]
    return [
        node("QuantizeLinear", [source, *operands], f"{to}q", **attributes),
        node("DequantizeLinear", [f"{to}q", *operands], to, **attributes),
    ]
