"""Nodes that `xnn-cpu` has no kernel of, on onnxruntime."""

import os
import warnings

import numpy as np
import pytest
from onnx import helper, numpy_helper, parser
from onnx.backend.test.loader import load_model_tests
from onnx.reference import ReferenceEvaluator

import narrowpass
from narrowpass.errors import BackendError, UsageError
from narrowpass_ir.inference import infer
from narrowpass_ir.io import load_proto
from narrowpass_onnxruntime.backend import OnnxRuntimeBackend
from narrowpass_onnxruntime.node import node_session

RNG = np.random.default_rng(3)


def model(text, opset=21, **weights):
    found = parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]>\n{text}')
    found.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in weights.items())
    return found


def load(given, fallback="onnxruntime", **options):
    backend = f"xnn-cpu{{fallback={fallback}}}"
    return narrowpass.load(given, backend, pipeline="", threads=1, cache=False, **options)


def kernels(program):
    return {plan.op_type: plan.kernel for plan in program.explain()}


POOL = """g (float[N,2,D,H,W] x) => (float[N,2,E,I,V] y) {
    a = Relu(x)  b = MaxPool<kernel_shape=[2,2,2], strides=[1,2,2]>(a)  y = Neg(b) }"""
NORM = """g (float[N,3,H,W] x) => (float[N,3,M,P] y) {
    a = Relu(x)  y = LpPool<kernel_shape=[2,3], p=2>(a) }"""
ALIGN = """g (float[N,3,H,W] x, float[R,4] r, int64[R] b) => (float[R,3,4,4] y) {
    a = Relu(x)  y = RoiAlign<output_height=4, output_width=4, sampling_ratio=2>(a, r, b) }"""
SIZED = """g (float[N,3,H,W] x, float[4] s) => (float[N,3,M,P] y) {
    a = Relu(x)  y = Resize<mode="linear">(a, , s) }"""

CASES = {
    "MaxPool": (POOL, {"x": (2, 2, 4, 6, 6)}),
    "LpPool": (NORM, {"x": (2, 3, 6, 7)}),
    "RoiAlign": (
        ALIGN,
        {
            "x": (2, 3, 9, 9),
            "r": np.array([[0, 0, 5, 5], [1, 2, 7, 8]], np.float32),
            "b": np.array([0, 1]),
        },
    ),
    "Resize": (SIZED, {"x": (1, 3, 5, 5), "s": np.array([1, 1, 1.6, 2], np.float32)}),
}


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_the_reference_evaluator(name):
    """In float32 two orders of addition differ by some units in the last place."""
    text, given = CASES[name]
    source = model(text)
    feeds = {
        key: value if isinstance(value, np.ndarray) else RNG.standard_normal(value, np.float32)
        for key, value in given.items()
    }
    program = load(source)
    assert kernels(program)[name] == "onnxruntime"
    assert kernels(load(source, "reference"))[name] == "onnx.reference"
    assert kernels(load(source, "auto"))[name] == "onnxruntime"
    (expected,) = ReferenceEvaluator(source).run(None, feeds)
    for _ in range(2):
        found = program.run(feeds)["y"]
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_operands_that_are_weights():
    text = ALIGN.replace(", float[R,4] r, int64[R] b", "")
    given = CASES["RoiAlign"][1]
    source = model(text, r=given["r"], b=given["b"])
    x = RNG.standard_normal((2, 3, 9, 9), np.float32)
    program = load(source)
    assert kernels(program)["RoiAlign"] == "onnxruntime"
    (expected,) = ReferenceEvaluator(source).run(None, {"x": x})
    np.testing.assert_allclose(program.run({"x": x})["y"], expected, rtol=1e-5, atol=1e-6)


def test_what_is_left_in_python():
    """Random numbers, subgraphs aside, and what onnxruntime computes otherwise."""
    drawn = model("g (float[N] x) => (float[N] y) { a = Abs(x)  y = Bernoulli<seed=1.0>(a) }")
    assert kernels(load(drawn))["Bernoulli"] == "onnx.reference"
    aligned = SIZED.replace("<mode", '<coordinate_transformation_mode="align_corners", mode')
    assert kernels(load(model(aligned)))["Resize"] == "onnx.reference"
    narrow = POOL.replace("float[", "bfloat16[")
    assert kernels(load(model(narrow, 22)))["MaxPool"] == "onnx.reference"


def test_bits_that_may_not_depend_on_other_rows_are_not_left_to_onnxruntime():
    found = narrowpass.load(model(POOL), "xnn-cpu{deterministic=true}", pipeline="", cache=False)
    assert kernels(found)["MaxPool"] == "onnx.reference"
    asked = "xnn-cpu{deterministic=true,fallback=onnxruntime}"
    found = narrowpass.load(model(POOL), asked, pipeline="", cache=False)
    assert kernels(found)["MaxPool"] == "onnxruntime"


def test_such_nodes_are_not_native():
    program = load(model(POOL))
    (plan,) = [plan for plan in program.explain() if plan.op_type == "MaxPool"]
    assert plan.reason == "pooling of inputs of rank 5 has no kernel"
    assert program.stats()["nodes"] - program.stats()["native_nodes"] == 1
    with pytest.raises(BackendError, match="no native kernel"):
        load(model(POOL), require_native=True)


def test_a_backend_that_runs_no_single_nodes():
    for name in ("onnxruntim", "xnn-cpu"):
        with pytest.raises(UsageError, match="pass one of auto, reference, onnxruntime"):
            load(model(POOL), name)


def test_a_backend_that_cannot_run_here(monkeypatch):
    monkeypatch.setattr(OnnxRuntimeBackend, "available", lambda _: "it is broken")
    with pytest.raises(UsageError, match="fallback: onnxruntime cannot run here: it is broken"):
        load(model(POOL))
    assert kernels(load(model(POOL), "auto"))["MaxPool"] == "onnx.reference"


def test_errors_name_the_node():
    source = model(ALIGN.replace("y = RoiAlign", "[aligned] y = RoiAlign"))
    feeds = {
        "x": np.ones((1, 3, 9, 9), np.float32),
        "r": np.zeros((1, 4), np.float32),
        "b": np.array([7]),  # there is one image
    }
    with pytest.raises(BackendError, match=r"node 'aligned' failed: .*batch"):
        load(source).run(feeds)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_runs():
    program = load(model(POOL))
    x = RNG.standard_normal((2, 2, 4, 6, 6), np.float32)
    expected = program.run({"x": x})["y"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns that threads are not copied
        child = os.fork()
    if child == 0:
        same = False
        try:
            same = np.array_equal(program.run({"x": x})["y"], expected)
        finally:
            os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0


def single_nodes():
    """Yield the tests of the ONNX node suite that are one node, fed with arrays."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the suite computes expected values when it is loaded
        cases = load_model_tests(kind="node")
    for case in cases:
        if case.model is None or len(case.model.graph.node) != 1 or case.model.functions:
            continue
        for given, expected in case.data_sets:
            if all(isinstance(x, np.ndarray | np.generic) for x in (*given, *expected)):
                arrays = map(np.asarray, given)
                names = [value.name for value in case.model.graph.input]
                yield case, dict(zip(names, arrays, strict=True)), expected


def test_no_node_of_the_suite_that_is_taken_is_wrong():
    """By the results and tolerances of the ONNX node suite; tests whose graphs lack types too."""
    backend, compared, wrong = OnnxRuntimeBackend(), 0, []
    for case, feeds, expected in single_nodes():
        source = load_proto(case.model)
        infer(source)
        session = backend.evaluator(source.graph[0], source, 1)
        if session is None:
            continue
        compared += 1
        found = session.run(feeds)
        for value, right in zip(case.model.graph.output, expected, strict=True):
            got = found[value.name]
            same = got.dtype == right.dtype and got.shape == right.shape
            if not same or not np.allclose(got, right, case.rtol, case.atol, equal_nan=True):
                wrong.append(case.name)
    assert wrong == []
    assert compared > 900


def test_an_initializer_that_may_be_overridden():
    """The default of `r` is not bound, since it can be fed."""
    given = CASES["RoiAlign"][1]
    source = model(ALIGN, r=given["r"], b=given["b"])
    program = load(source)
    assert kernels(program)["RoiAlign"] == "onnx.reference"
    x = RNG.standard_normal((2, 3, 9, 9), np.float32)
    other = given["r"] + 1
    for feeds in ({"x": x}, {"x": x, "r": other}):
        full = {**given, **feeds, "x": x}
        (expected,) = ReferenceEvaluator(model(ALIGN)).run(None, full)
        np.testing.assert_allclose(program.run(feeds)["y"], expected, rtol=1e-5, atol=1e-6)


def alone(text, **weights):
    """Return the session of the first node of a model; None where it is left."""
    found = load_proto(model(text, **weights))
    infer(found)
    return node_session(found.graph[0], found, 1, OnnxRuntimeBackend().compile)


def test_ranks_that_nodes_are_held_to(monkeypatch):
    """Neg stands for the operators of `_RANKS`: it takes any rank."""
    monkeypatch.setattr("narrowpass_onnxruntime.node._RANKS", {"Neg": (2,)})
    session = alone("g (float[A,B] x) => (float[A,B] y) { y = Neg(x) }")
    x = RNG.standard_normal((2, 3), np.float32)
    assert np.array_equal(session.run({"x": x})["y"], -x)
    for shape in ((), (6,), (1, 2, 3)):
        with pytest.raises(BackendError, match=r"'x' is of \[.*\], not 2-D"):
            session.run({"x": np.ones(shape, np.float32)})


@pytest.mark.parametrize("rank", [1, 2])
def test_weights_of_such_ranks(rank, monkeypatch):
    monkeypatch.setattr("narrowpass_onnxruntime.node._RANKS", {"Add": (2, 2)})
    text = "g (float[A,B] x) => (float[A,B] y) { y = Add(x, w) }"
    assert (alone(text, w=np.ones((1,) * rank, np.float32)) is None) == (rank == 1)


@pytest.mark.parametrize("value", [0, -2, [2, 0]])
@pytest.mark.parametrize("name", ["blocksize", "group", "num_groups", "kernel_shape", "strides"])
def test_attributes_that_are_1_or_more(name, value, caplog):
    """Of an operator that no library has: the attribute decides before anyone is asked."""
    for given, left in ((value, True), (1, False)):
        caplog.clear()
        proto = model("g (float[A] x) => (float[A] y) { y = mine.Op(x) }")
        proto.opset_import.add(domain="mine", version=1)
        proto.graph.node[0].attribute.append(helper.make_attribute(name, given))
        source = load_proto(proto)
        with caplog.at_level("INFO", "narrowpass.onnxruntime"):
            assert node_session(source.graph[0], source, 1, OnnxRuntimeBackend().compile) is None
        assert (f"its {name} is not from 1 on" in caplog.text) == left
