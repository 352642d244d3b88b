"""The backend against onnx's evaluator, and what it does with weights, types and errors."""

import ml_dtypes
import numpy as np
import onnx.reference
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import narrowpass
from narrowpass import load_plugins
from narrowpass.errors import BackendError, UsageError
from narrowpass_onnxruntime.model import prepare
from narrowpass_testing import model_from_text

RNG = np.random.default_rng(3)


def load(model, options="", **given):
    return narrowpass.load(model, f"onnxruntime{options}", pipeline="", **given)


def perceptron(width=64):
    weights = {k: RNG.standard_normal((width, width)).astype(np.float32) / 8 for k in ("w", "v")}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], "first"),
        helper.make_node("Relu", ["m"], ["r"], "relu"),
        helper.make_node("MatMul", ["r", "v"], ["y"], "second"),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", width]) for name in "xy")
    held = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", [x], [y], held)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])


@pytest.mark.parametrize("options", ["", "{optimize=none}", "{optimize=basic,spin=true}"])
@pytest.mark.parametrize("threads", [1, 2])
def test_results_are_those_of_the_evaluator(options, threads):
    """Within 1e-5 of the largest: both accumulate 64 elements in float32, in other orders."""
    model = perceptron()
    feeds = {"x": RNG.standard_normal((5, 64)).astype(np.float32)}
    (right,) = onnx.reference.ReferenceEvaluator(model).run(None, feeds)
    with load(model, options, threads=threads) as program:
        got = program.run(feeds)["y"]
        assert np.abs(got - right).max() <= 1e-5 * np.abs(right).max()
        assert program.stats()["threads"] == threads


def test_large_weights_are_passed_by_address():
    model = ir.from_proto(perceptron())
    prepared = prepare(model, ())
    assert set(prepared.weights) == {"w", "v"}
    assert len(prepared.text) < 2000
    weight = RNG.standard_normal((64, 64)).astype(np.float32)
    model.graph.initializers["w"].const_value = ir.tensor(weight, name="w")
    assert np.shares_memory(prepare(model, ()).weights["w"], weight)


def test_values_that_are_kept():
    model = perceptron()
    feeds = {"x": RNG.standard_normal((3, 64)).astype(np.float32)}
    with load(model, keep=["m"]) as program:
        found = program.run(feeds, outputs=["m", "y"])
        assert list(found) == ["m", "y"]
        weight = numpy_helper.to_array(model.graph.initializer[0])
        assert np.allclose(found["m"], feeds["x"] @ weight, atol=1e-5)
        with pytest.raises(UsageError, match="was not kept"):
            program.run(feeds, outputs=["r"])


@pytest.mark.parametrize("dtype", ["bfloat16", "float8e4m3fn"])
def test_types_that_numpy_lacks_cross_the_boundary(dtype):
    model = model_from_text(
        f'<ir_version: 10, opset_import: ["" : 21]> g ({dtype}[n] x) => ({dtype}[n] y, float[n] z) '
        "{ z = Cast<to=1>(x) y = Identity(x) }"
    )
    numpy_type = {"bfloat16": ml_dtypes.bfloat16, "float8e4m3fn": ml_dtypes.float8_e4m3fn}[dtype]
    x = np.array([0.5, -3.0, 0.0156], np.float32).astype(numpy_type)
    with load(model) as program:
        found = program.run({"x": x})
    assert found["y"].dtype == numpy_type
    assert np.array_equal(found["y"].view(np.uint8), x.view(np.uint8))
    assert np.array_equal(found["z"], x.astype(np.float32))


def test_weights_of_bfloat16():
    weight = RNG.standard_normal((64, 64)).astype(ml_dtypes.bfloat16)
    model = model_from_text(
        '<ir_version: 10, opset_import: ["" : 21]> g (float[n, 64] x, bfloat16[64, 64] w) '
        "=> (float[n, 64] y) { c = Cast<to=1>(w) y = MatMul(x, c) }"
    )
    value = model.graph.inputs.pop()
    value.const_value = ir.tensor(weight, name="w")
    model.graph.register_initializer(value)
    x = RNG.standard_normal((2, 64)).astype(np.float32)
    with load(model) as program:
        got = program.run({"x": x})["y"]
    assert np.allclose(got, x @ weight.astype(np.float32), atol=1e-4)


def test_scalars_strings_and_sequences():
    model = model_from_text(
        '<ir_version: 10, opset_import: ["" : 21]> '
        "g (float[2] x, float s, string[k] t) => (float[2] y, seq(float[2]) q, string[k] u) "
        "{ y = Mul(x, s) q = SequenceConstruct(x, y) u = Identity(t) }"
    )
    feeds = {
        "x": np.array([1, 2], np.float32),
        "s": np.array(3, np.float32),
        "t": np.array(["a", "é"], object),
    }
    with load(model) as program:
        found = program.run(feeds)
    assert found["y"].tolist() == [3, 6]
    assert [each.tolist() for each in found["q"]] == [[1, 2], [3, 6]]
    assert found["u"].tolist() == ["a", "é"]


def test_profile_names_nodes():
    with load(perceptron(), "{optimize=none}") as program:
        rows = program.profile({"x": np.ones((2, 64), np.float32)}, runs=3)
        assert [row.node for row in rows] == ["first", "relu", "second"]
        assert [row.op_type for row in rows] == ["MatMul", "Relu", "MatMul"]
        assert all(row.seconds >= 0 for row in rows)
        plans = program.explain()
    assert [(plan.node, plan.kernel) for plan in plans] == [
        (name, "onnxruntime") for name in ("first", "relu", "second")
    ]


def test_model_that_onnxruntime_refuses():
    model = model_from_text(
        '<ir_version: 10, opset_import: ["" : 21, "nobody" : 1]> g (float[2] x) => (float[2] y) '
        "{ y = nobody.Unheard(x) }"
    )
    with pytest.raises(BackendError, match="onnxruntime refuses it"):
        load(model)
    backend = load_plugins().registry.backend("onnxruntime")
    assert "nobody" in backend.supports(model.graph[0]).reason


def test_types_that_cannot_be_fed():
    model = model_from_text(
        '<ir_version: 10, opset_import: ["" : 21]> g (int4[2] x) => (float[2] y) '
        "{ y = Cast<to=1>(x) }"
    )
    with pytest.raises(BackendError, match="'x' is int4"):
        load(model)


def test_failure_in_a_run():
    model = model_from_text(
        '<ir_version: 10, opset_import: ["" : 21]> g (float[3] x, int64[1] i) => (float[1] y) '
        "{ y = Gather(x, i) }"
    )
    with load(model) as program:
        feeds = {"x": np.arange(3, dtype=np.float32), "i": np.array([7], np.int64)}
        with pytest.raises(BackendError, match="onnxruntime failed"):
            program.run(feeds)
        assert program.run({**feeds, "i": np.array([1], np.int64)})["y"].tolist() == [1.0]


def test_quantized_bundle_runs_as_on_the_oracle():
    pytest.importorskip("narrowpass_int8_sym")
    model = perceptron()
    bundle = narrowpass.build(model, "int8-sym{mode=weight-only}")
    feeds = {"x": RNG.standard_normal((4, 64)).astype(np.float32)}
    results = []
    for backend in ("reference", "onnxruntime"):
        with narrowpass.load(bundle, backend) as program:
            results.append(program.run(feeds)["y"])
    assert np.abs(results[0] - results[1]).max() <= 1e-5 * np.abs(results[0]).max()
