"""The public interface as a type checker sees it: checked by ``tox run -e types``, never run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, assert_type

import numpy as np
import onnx_ir as ir

import narrowpass
from narrowpass import (
    Accept,
    Backend,
    Bundle,
    Color,
    CompileOptions,
    Context,
    OpClassifier,
    Pass,
    PassResult,
    Pipeline,
    Program,
    Registry,
    Reject,
    hookimpl,
)
from narrowpass_ir.verify import ValueSpec, verify
from narrowpass_testing import assert_equivalent, model_from_text, random_feeds, run_pass
from narrowpass_testing.random_models import RECIPES, Chain, Recipes, check, random_models


@dataclass(frozen=True)
class Example(Pass):
    name: ClassVar[str] = "example"
    requires: ClassVar[tuple[str, ...]] = ("fold",)

    mode: Literal["static", "dynamic"] = "static"
    limit: float | None = None
    red: tuple[str, ...] = ()

    def run(self, model: ir.Model, ctx: Context) -> PassResult:
        ctx.counters["seen"] += 1
        return PassResult(model, modified=False)


class Classifier(OpClassifier):
    name: ClassVar[str] = "mine"

    def color(self, node: ir.Node) -> Color | None:
        return Color.GREEN if node.op_type == "MatMul" else None


@dataclass(frozen=True)
class Tuned(Backend):
    name: ClassVar[str] = "tuned"

    fast: bool = True

    def supports(self, node: ir.Node) -> Accept | Reject:
        return Reject(f"no kernel for {node.op_type}")

    def compile(self, bundle: Bundle, options: CompileOptions) -> Program:
        raise NotImplementedError


@hookimpl
def narrowpass_passes() -> Iterable[type[Pass]]:
    return [Example]


def build_and_run(x: np.ndarray[Any, Any]) -> None:
    bundle = narrowpass.build({"main": "model.onnx"}, pipeline="fold", out="model.narrow")
    assert_type(bundle, Bundle)
    with narrowpass.load("model.narrow", backend="reference", threads=4) as program:
        assert_type(program, Program)
        program.run({"x": x})["y"].sum()
        assert_type(program.inputs(), tuple[ValueSpec, ...])
        assert_type(program.outputs("main")[0].shape, tuple[int | str | None, ...] | None)
    narrowpass.load("model.narrow", Tuned(fast=False))
    narrowpass.build("model.onnx", target="tuned{fast=false}")


def pipelines(registry: Registry, model: ir.Model) -> None:
    pipeline = Pipeline.parse("fold,example{limit=3}", registry)
    assert_type(pipeline.run(model, Context()), PassResult)
    assert_type(narrowpass.load_model("model.onnx"), ir.Model)
    verify(model)


def kit() -> None:
    model = model_from_text("g (float[n] x) => (float[n] y) { y = Relu(x) }")
    result = run_pass(Example(limit=1.5), model)
    assert_type(result.modified, bool)
    assert_equivalent(model, result.model, feeds=[random_feeds(model)], tolerance="rel:1e-5")


MINE = Recipes()


@MINE.block("layers", "Twice")
def twice(chain: Chain) -> None:
    value: str = chain.take(1, 2)
    chain.add("Add", [value, value])


def try_random_models() -> int:
    cases = random_models(0, 10, recipes=RECIPES.only(["Relu"]) | MINE, types=["float"])
    return sum(check(case, "reference", threads=(1, 2)) for case in cases)
