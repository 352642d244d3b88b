"""A second backend on narrowpass-planning, installed the way that anybody's would be."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

import narrowpass
import narrowpass_testing as testing
from narrowpass import OpDtypes, Reject
from narrowpass.runtime.meters import Extremes
from narrowpass.runtime.quantization import NodeQuantization, Parameters
from narrowpass_ir.inference import infer

pytest.importorskip("narrowpass_planning")

FOLDER = Path(__file__).with_name("numpy_backend")
ROOT = Path(__file__).parents[2]
DISTRIBUTION = "numpy-backend"
CAPTIONED = re.compile(
    r"^```\{code-block\} \w+\n:caption: (\S+)\n\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
RNG = np.random.default_rng(20)

NETWORK = """
    g (float[N, 3, H, 8] x, float[4, 3, 3, 3] kernel, float[4] bias, float[4, 10] matrix)
        => (float[N, 10] y) <int64[2] shape = {0, -1}> {
        [conv] a = Conv<pads = [1, 1, 1, 1], strides = [2, 1]>(x, kernel, bias)
        [gate] s = Sigmoid(a)
        [swish] b = Mul(a, s)
        [relu] c = Relu(b)
        [pool] p = GlobalAveragePool(c)
        [flat] f = Reshape(p, shape)
        [linear] l = MatMul(f, matrix)
        [sum] t = Add(l, l)
        [out] y = Softmax<axis = -1>(t)
    }
"""


@pytest.fixture(autouse=True)
def _installed(tmp_path, monkeypatch):
    """Do what ``pip install -e`` does for importlib.metadata."""
    info = tmp_path / "site" / "numpy_backend-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {DISTRIBUTION}\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[narrowpass]\nnumpy-backend = numpy_backend\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.syspath_prepend(str(FOLDER / "src"))
    monkeypatch.setenv("NARROWPASS_CACHE_DIR", str(tmp_path / "cache"))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "numpy_backend"]:
        del sys.modules[name]


@pytest.fixture
def model():
    shapes = {"kernel": (4, 3, 3, 3), "bias": (4,), "matrix": (4, 10)}
    arrays = {name: RNG.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return with_weights(NETWORK, arrays)


def with_weights(text, arrays):
    """Read a model of which some inputs are weights."""
    model = testing.model_from_text(text)
    for value in [value for value in model.graph.inputs if value.name in arrays]:
        model.graph.inputs.remove(value)
        value.const_value = ir.tensor(arrays[value.name], name=value.name)
        model.graph.initializers.add(value)
    return model


def saved(model, folder):
    narrowpass.save_model(model, folder / "model.onnx")
    return folder / "model.onnx"


def expected(file, feeds, names=("y",)):
    """Return values of a model by name, as the evaluator of onnx computes them."""
    model = onnx.load(file)
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return dict(zip(names, ReferenceEvaluator(model).run(None, feeds), strict=True))


def images(rows, height=6):
    return {"x": RNG.standard_normal((rows, 3, height, 8)).astype(np.float32)}


def test_results_of_any_shape(model, tmp_path):
    file = saved(model, tmp_path)
    with narrowpass.load(file, "numpy") as program:
        for rows, height in [(1, 6), (1, 6), (1, 6), (4, 6), (2, 5), (1, 6)]:
            feeds = images(rows, height)
            found, right = program.run(feeds)["y"], expected(file, feeds)["y"]
            np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-6)


def test_explain_profile_and_stats(model, tmp_path):
    with narrowpass.load(saved(model, tmp_path), "numpy", keep=["c"]) as program:
        plans = {plan.node: plan for plan in program.explain()}
        assert {plan.partition for plan in plans.values()} == {0}
        assert {plan.reason for plan in plans.values()} == {""}
        assert plans["conv"].kernel == "numpy im2col"
        times = {time.node: time for time in program.profile(images(2), runs=2)}
        assert set(times) == set(plans) - {"flat"}  # another shape of the same bytes
        assert all(time.seconds > 0 for time in times.values())
        found = program.stats()
        assert (found["native_nodes"], found["partitions"]) == (9, 1)
        assert found["weights"]["packs"] == 2
        kept = program.run(images(1), outputs=["c"])["c"]
        assert kept.shape == (1, 4, 3, 8)


def test_packed_weights_are_shared_and_kept_on_disk(model, tmp_path):
    narrowpass.build(
        {"one": saved(model, tmp_path), "two": saved(model, tmp_path)}, "", tmp_path / "b"
    )
    with narrowpass.load(tmp_path / "b", "numpy") as program:
        found = program.stats()["weights"]
        assert (found["packs"], found["hits"], found["mapped_bytes"]) == (2, 2, 0)
        right = program.run(images(1), "one")
    assert list((tmp_path / "cache").glob("*.numpy-weights"))
    del program
    with narrowpass.load(tmp_path / "b", "numpy") as program:
        found = program.stats()["weights"]
        assert (found["packs"], found["hits"]) == (0, 4)
        assert found["mapped_bytes"] > 0
        assert program.run(images(1), "two")["y"].shape == right["y"].shape


def test_without_a_cache_results_are_the_same(model, tmp_path):
    file, feeds = saved(model, tmp_path), images(2)
    results = []
    for cache in (True, "memory", False):
        with narrowpass.load(file, "numpy", cache=cache) as program:
            results.append(program.run(feeds)["y"])
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_what_has_no_kernel_runs_on_numpy_and_says_why(tmp_path):
    text = """
        g (float[N, 4] x, float[4, M] w) => (float[N, M] y, int64[N, 1] i) {
            [erf] e = Erf(x)
            [both] p = MatMul(e, w)
            [act] y = Relu(p)
            [best] i = ArgMax<axis = 1>(y)
        }
    """
    model = testing.model_from_text(text)
    feeds = {name: RNG.standard_normal((4, 4)).astype(np.float32) for name in ("x", "w")}
    file = saved(model, tmp_path)
    with narrowpass.load(file, "numpy") as program:
        plans = {plan.node: plan for plan in program.explain()}
        found, right = program.run(feeds), expected(file, feeds, ["y", "i"])
    assert plans["erf"].reason == "no kernel for Erf"
    assert plans["act"].kernel == "numpy relu"
    assert plans["act"].partition == 0
    np.testing.assert_allclose(found["y"], right["y"], rtol=1e-5)
    np.testing.assert_array_equal(found["i"], right["i"])


def test_observe_is_the_range_of_a_value(model, tmp_path):
    feeds = images(3)
    from numpy_backend.backend import NumpyBackend

    narrowpass.save_model(model, tmp_path / "model.onnx")
    options = narrowpass.CompileOptions(keep=["a"], observe=True)
    with NumpyBackend().compile(narrowpass.Bundle({"main": model}), options) as program:
        meter = Extremes()
        program.observe(feeds, {"a": meter})
    a = expected(tmp_path / "model.onnx", feeds, ["a"])["a"]
    np.testing.assert_allclose([meter.low, meter.high], [a.min(), a.max()], rtol=1e-5)


def test_loops_run_their_body_in_a_partition(tmp_path):
    text = """
        g (float[2] x, int64 n) => (float[2] y) {
            t = Constant<value = bool {1}>()
            [loop] y = Loop (n, t, x)
            <body = b (int64 i, bool c, float[2] s) => (bool d, float[2] z) {
                d = Identity(c)
                [double] z = Add(s, s)
            }>
        }
    """
    with narrowpass.load(saved(testing.model_from_text(text), tmp_path), "numpy") as program:
        plans = {plan.node: plan.kernel for plan in program.explain()}
        assert plans["double"] == "numpy add"
        feeds = {"x": np.ones(2, np.float32), "n": np.array(5, np.int64)}
        np.testing.assert_array_equal(program.run(feeds)["y"], [32, 32])


def quantized():
    """Return x · W for a matrix of int8 with a scale for each column."""
    text = """
        g (float[N, 16] x, int8[16, 8] q, float[8] scale) => (float[N, 8] y) {
            w = DequantizeLinear<axis = 1>(q, scale)
            [linear] y = MatMul(x, w)
        }
    """
    q = RNG.integers(-127, 128, (16, 8)).astype(np.int8)
    scale = RNG.uniform(0.01, 0.1, 8).astype(np.float32)
    return with_weights(text, {"q": q, "scale": scale}), q * scale


def test_int8_weights_stay_int8(tmp_path):
    model, matrix = quantized()
    x = RNG.standard_normal((3, 16)).astype(np.float32)
    with narrowpass.load(saved(model, tmp_path), "numpy") as program:
        (linear,) = [plan for plan in program.explain() if plan.node == "linear"]
        assert linear.kernel == "numpy matmul int8 (weights)"
        assert program.stats()["weights"]["heap_bytes"] == 16 * 8 + 4 * 8
        np.testing.assert_allclose(program.run({"x": x})["y"], x @ matrix, rtol=1e-4, atol=1e-4)


def test_quantization_gain_and_classifier(model):
    from numpy_backend.backend import NumpyBackend

    infer(model)
    backend = NumpyBackend()
    spec = backend.quantization_spec()
    assert spec.per_token.operators == {"MatMul"}
    nodes = {node.name: node for node in model.graph}
    proposal = NodeQuantization((Parameters(0.1, 0),), Parameters(0.1, 0))
    answer = backend.supports_quantized(nodes["conv"], proposal)
    assert isinstance(answer, Reject)
    assert "int8 Conv" in answer.reason
    assert backend.gain(nodes["flat"], OpDtypes("float16", "float32")) == 0
    assert backend.gain(nodes["conv"], OpDtypes("float16", "float32")) < 0
    assert backend.classifier.color(nodes["conv"]) is None


def test_the_howto_shows_these_files():
    page = (ROOT / "docs/howto/backend.md").read_text("utf-8")
    shown = dict(CAPTIONED.findall(page))
    files = [FOLDER / "pyproject.toml", *sorted((FOLDER / "src").rglob("*.py"))]
    assert shown == {
        f"numpy-backend/{file.relative_to(FOLDER)}": file.read_text("utf-8") for file in files
    }
