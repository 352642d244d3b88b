"""Small models, quantized on data, and held against the float model and other runtimes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from int8_kit import Array
from onnxruntime_kit import session_of

import narrowpass
from narrowpass import Backend, Bundle, Context, Decision, Samples
from narrowpass.runtime.quantization import OperatorSpec, QuantizationSpec, ScaleBound
from narrowpass_int8_sym.int8_sym import Int8Sym
from narrowpass_reference import ReferenceBackend
from narrowpass_testing import model_from_text, run_pass

Feeds = dict[str, Array]


class Limited(ReferenceBackend):
    """A backend with limits."""

    name = "limited"

    def __init__(self, spec: QuantizationSpec) -> None:
        self.spec = spec

    def quantization_spec(self) -> QuantizationSpec:
        return self.spec


def limits(**bounds: ScaleBound) -> QuantizationSpec:
    """Return a spec with limits on ratios of scales, by operator."""
    return QuantizationSpec(operators={name: OperatorSpec(each) for name, each in bounds.items()})


@dataclass(frozen=True)
class Quantized:
    """What the pass result of a model."""

    float_model: ir.Model
    model: ir.Model
    modified: bool
    decisions: list[Decision]
    data: list[Feeds]

    @property
    def proto(self) -> onnx.ModelProto:
        return ir.to_proto(self.model)

    @property
    def count(self) -> Counter[str]:
        return Counter(node.op_type for node in self.model.graph)

    @property
    def verdicts(self) -> dict[str, str]:
        """Return the decisions, by name of the node."""
        return {item.node: item.decision for item in self.decisions if item.op_type}

    @property
    def reasons(self) -> dict[str, str]:
        return {item.node: item.reason for item in self.decisions if item.op_type}

    def producer(self, name: str) -> ir.Node:
        """Return the node that computes a value."""
        found = (node for node in self.model.graph for v in node.outputs if v.name == name)
        return next(found)

    def constant(self, value: ir.Value | str) -> Array:
        name = value if isinstance(value, str) else value.name
        return self.model.graph.initializers[name or ""].const_value.numpy()

    def parameters(self, name: str) -> tuple[float, int]:
        """Return scale and zero point of the DequantizeLinear of a value."""
        node = self.producer(name)
        assert node.op_type == "DequantizeLinear", f"{name} is computed by {node.op_type}"
        return float(self.constant(node.inputs[1])), int(self.constant(node.inputs[2]))

    def sqnr(self) -> float:
        """Return the SQNR over all data and outputs, in dB."""
        power = noise = 0.0
        for right, got in zip(outputs(self.float_model, self.data), self.outputs(), strict=True):
            for name, array in right.items():
                power += float(np.sum(array.astype(np.float64) ** 2))
                noise += float(np.sum((got[name].astype(np.float64) - array) ** 2))
        return 10 * np.log10(power / max(noise, 1e-30))

    def outputs(self) -> list[Feeds]:
        return outputs(self.model, self.data)


def outputs(model: ir.Model, data: list[Feeds]) -> list[Feeds]:
    """Run a model on onnx's reference evaluator."""
    with narrowpass.load(Bundle({"main": model}), "reference") as program:
        return [dict(program.run(feeds)) for feeds in data]


def graph(text: str, constants: Mapping[str, Array] | None = None, opset: int = 21) -> ir.Model:
    """Read a graph whose constants are written as inputs."""
    model = model_from_text(text, opset=opset)
    for value in [v for v in model.graph.inputs if v.name in (constants or {})]:
        model.graph.inputs.remove(value)
        value.const_value = ir.Tensor(np.asarray((constants or {})[value.name]), name=value.name)
        model.graph.initializers[value.name] = value
    return model


def quantized(
    model: ir.Model,
    data: list[Feeds],
    spec: QuantizationSpec | None = None,
    *,
    target: Backend | None = None,
    **options: Any,
) -> Quantized:
    """Run the pass under all checks; a second run must change nothing."""
    samples = Samples("test data", lambda: data)
    ctx = Context(target=target or Limited(spec or QuantizationSpec()), samples=samples)
    pass_ = Int8Sym(**options)
    result = run_pass(pass_, model, ctx=ctx)
    decisions = decisions_of(pass_, model, ctx)
    onnx.checker.check_model(ir.to_proto(result.model), full_check=True)
    again = run_pass(pass_, result.model, ctx=ctx)
    assert not again.modified, "a second run changes the model"
    return Quantized(model, result.model, result.modified, decisions, data)


def decisions_of(pass_: Int8Sym, model: ir.Model, ctx: Context) -> list[Decision]:
    """Return the decisions of a pass on the nodes and the values of a model."""
    own = Context(target=ctx.target, samples=ctx.samples)
    pass_.run(model.clone(), own)
    return own.decisions


def session(proto: onnx.ModelProto, *, optimized: bool) -> Any:
    """Let onnxruntime run a model, as it stands or with its own int8 operators."""
    # Else it converts int8 to uint8 or not, depending on the processor.
    return session_of(proto, optimized=optimized, session__qdqisint8allowed="1")


def assert_runs_elsewhere(result: Quantized, steps: int = 1, relative: float = 1e-5) -> None:
    """Compare with onnxruntime: int8 results to some steps, float ones to a part of the largest."""
    for optimized in (False, True):
        run = session(result.proto, optimized=optimized)
        names = [output.name for output in run.get_outputs()]
        for feeds, right in zip(result.data, result.outputs(), strict=True):
            for name, got in zip(names, run.run(None, feeds), strict=True):
                node = result.producer(name)
                if node.op_type == "DequantizeLinear":
                    allowed = result.parameters(name)[0] * (steps + 1e-3)
                else:
                    allowed = relative * np.abs(right[name]).max()
                assert np.abs(got - right[name]).max() <= allowed, (name, optimized)
