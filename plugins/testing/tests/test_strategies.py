"""Generated models are valid, varied, run, and shrink."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
from hypothesis import HealthCheck, Phase, find, given, settings
from onnx.reference import ReferenceEvaluator

from narrowpass_ir.verify import verify
from narrowpass_testing import assert_equivalent, random_feeds
from narrowpass_testing._steps import STEPS
from narrowpass_testing.random_models import RECIPES, check
from narrowpass_testing.strategies import cases, models


@settings(max_examples=100)
@given(models())
def test_models_are_valid(model: ir.Model) -> None:
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    verify(model)


@settings(max_examples=50)
@given(models())
def test_models_run_and_equal_themselves(model: ir.Model) -> None:
    assert_equivalent(model, model.clone(), special=True)


@settings(max_examples=50)
@given(models())
def test_declared_outputs_are_what_onnx_computes(model: ir.Model) -> None:
    proto = ir.to_proto(model)
    with np.errstate(all="ignore"):
        results = ReferenceEvaluator(proto).run(None, random_feeds(model, sizes={"n": 2}))
    for info, array in zip(proto.graph.output, results, strict=True):
        declared = info.type.tensor_type
        assert array.dtype == onnx.helper.tensor_dtype_to_np_dtype(declared.elem_type)
        dims = [dim.dim_value if dim.HasField("dim_value") else 2 for dim in declared.shape.dim]
        assert list(array.shape) == dims


def test_models_are_varied() -> None:
    operators: Counter[str] = Counter()
    features: Counter[str] = Counter()

    @settings(max_examples=400, database=None, phases=[Phase.generate])
    @given(models())
    def collect(model: ir.Model) -> None:
        graph = model.graph
        operators.update(node.op_type for node in graph.all_nodes())
        inputs = {value.name for value in graph.inputs}
        features["a default"] += any(name in inputs for name in graph.initializers)
        features["an unused node"] += any(
            not value.uses() and not value.is_graph_output()
            for node in graph
            for value in node.outputs
        )
        features["an unused initializer"] += any(not v.uses() for v in graph.initializers.values())
        features["several outputs"] += len(graph.outputs) > 1
        features.update(str(value.dtype) for value in (*graph.inputs, *graph.initializers.values()))

    collect()
    assert len(operators) >= 30
    assert {"If", "Identity", "Constant", "Shape", "Dropout", "MatMul", "Where"} <= set(operators)
    assert {"a default", "an unused node", "an unused initializer", "several outputs"} <= set(
        features
    )
    assert {"FLOAT", "FLOAT16", "DOUBLE", "INT64", "INT32", "BOOL", "UINT8"} <= set(features)


def test_a_failing_example_is_small() -> None:
    found = find(
        models(),
        lambda model: any(node.op_type == "Tanh" for node in model.graph),
        settings=settings(
            max_examples=5000, database=None, suppress_health_check=list(HealthCheck)
        ),
    )
    assert len(list(found.graph)) <= 2
    assert len(found.graph.inputs) == 1
    assert len(found.graph.outputs) == 1
    assert not found.graph.initializers


def test_operators_can_be_left_out() -> None:
    steps = [step for step in STEPS if "_if" not in step.__name__]

    @settings(max_examples=50, database=None)
    @given(models(steps=steps, max_nodes=2))
    def check(model: ir.Model) -> None:
        assert all(node.op_type != "If" for node in model.graph)
        assert len(list(model.graph)) <= 6

    check()


@settings(max_examples=15)
@given(cases(types=["float"]))
def test_cases_are_judged(case) -> None:
    check(case, "reference")


def test_a_failing_case_is_small() -> None:
    found = find(
        cases(recipes=RECIPES.only(["Abs", "Neg", "Relu", "Tanh"])),
        lambda case: any(node.op_type == "Tanh" for node in case.model.graph.node),
        settings=settings(max_examples=300, database=None, suppress_health_check=list(HealthCheck)),
    )
    assert len(found.model.graph.node) <= 4
