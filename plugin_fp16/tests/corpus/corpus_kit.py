"""Small models as text, each with the fewest casts that it needs, which were worked out by hand."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from fp16_kit import compare, nodes_of
from onnx import numpy_helper, parser
from onnx.reference import ReferenceEvaluator
from onnxruntime_kit import run_onnxruntime

import narrowpass

Array = np.ndarray[Any, Any]


def draw(*shape: int, seed: int = 0, scale: float = 0.3) -> Array:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


X = draw(4, 8, seed=1)
W = draw(8, 8, seed=2)
BASE = {"w": W, "v": draw(8, 8, seed=3), "b": draw(8, seed=4)}


@dataclass(frozen=True)
class Case:
    """A model, and the expected result of the pass.

    Attributes:
        body: the nodes of the main graph, and functions behind ``|``.
        casts: how many more Casts there are than in the model; fewer, if below 0.
        wide: operators some of whose inputs or outputs stay in float32.
        ends: inputs and outputs, ``x`` to ``y`` of [4, 8] if nothing is said.
        feeds: what it is run on.
        constants: more of them.
        opset: of the model.
        data: whether there is calibration data, the feeds.
        text: the pipeline.
        tolerance: of the results.
        runtime: whether onnxruntime has its operators.
        evaluator: whether onnx's evaluator runs it as the standard says.
    """

    body: str
    casts: int
    wide: str = ""
    ends: str = "float[4,8] x) => (float[4,8] y"
    feeds: Mapping[str, Array] = field(default_factory=dict)
    constants: Mapping[str, Array] = field(default_factory=dict)
    opset: int = 20
    data: bool = False
    text: str = "fp16{cost=count}"
    tolerance: float = 1e-2
    runtime: bool = True
    evaluator: bool = True

    def model(self) -> onnx.ModelProto:
        """Return the model in float32."""
        body, _, functions = self.body.partition("|")
        domain = ', "d": 1' if functions else ""
        level = 10 if self.opset > 20 else 9
        head = f'<ir_version: {level}, opset_import: ["": {self.opset}{domain}]>'
        model = parser.parse_model(f"{head} g ({self.ends}) {{ {body} }} {functions}")
        given = {value.name for value in model.graph.input} & set(self.constants)
        for name, array in {**BASE, **self.constants}.items():
            if f"{name})" in self.body or f"{name}," in self.body or f"{name} " in self.body:
                model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
        assert given <= set(self.constants)
        onnx.checker.check_model(model, full_check=True)
        return model

    def inputs(self) -> dict[str, Array]:
        """Return what it is run on."""
        return {"x": X, **self.feeds} if " x" in self.ends.partition("=>")[0] else dict(self.feeds)

    def build(self, model: onnx.ModelProto) -> Any:
        """Run the pass."""
        return narrowpass.build(
            ir.from_proto(model),
            self.text,
            target="reference",
            calibration=[self.inputs()] if self.data else None,
        )

    def check(self) -> onnx.ModelProto:
        """Hold the rewritten model to all that is known of it."""
        model = self.model()
        bundle = self.build(model)
        narrowed = ir.to_proto(bundle.methods["main"])
        onnx.checker.check_model(narrowed, full_check=True)
        for ends in ("input", "output"):
            assert list(getattr(narrowed.graph, ends)) == list(getattr(model.graph, ends))
        assert self._again(narrowed) == narrowed.SerializeToString(), (
            "a second run changes the model"
        )
        if self.evaluator:
            right = ReferenceEvaluator(model).run(None, self.inputs())
            got = ReferenceEvaluator(narrowed).run(None, self.inputs())
            assert [a.dtype for a in got] == [a.dtype for a in right]
            compare(got, right, self.tolerance)
        self._on_the_runtime(model, narrowed)
        assert casts(narrowed) - casts(model) == self.casts, onnx.printer.to_text(narrowed.graph)
        report = bundle.reports[-1].methods["main"].decisions
        wide = {
            item["op_type"]
            for item in report
            if item["decision"].endswith("wide") and item["by"] not in ("types", "subgraphs")
        }
        assert wide - {"Constant"} == set(self.wide.split())
        return narrowed

    def _again(self, narrowed: onnx.ModelProto) -> bytes:
        return ir.to_proto(self.build(narrowed).methods["main"]).SerializeToString()

    def _on_the_runtime(self, model: onnx.ModelProto, narrowed: onnx.ModelProto) -> None:
        if importlib.util.find_spec("onnxruntime") is None:
            return
        if not self.runtime or "bfloat16" in self.text:
            return
        right, got = (
            run_onnxruntime(each, self.inputs(), optimized=True) for each in (model, narrowed)
        )
        compare(got, right, self.tolerance)


def casts(model: onnx.ModelProto) -> int:
    """Count the casts of a model, in subgraphs and functions too."""
    found = nodes_of(model.graph)
    for function in model.functions:
        found += nodes_of(function)
    return sum(node.op_type == "Cast" for node in found)
