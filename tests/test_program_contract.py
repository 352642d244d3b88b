"""What `narrowpass.Program` promises, of each backend that is installed."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import narrowpass
from narrowpass import Bundle, CompileOptions, Program, load_plugins
from narrowpass.errors import UsageError
from narrowpass.runtime.backend import compile_bundle
from narrowpass_ir.verify import ValueSpec

BACKENDS = sorted(
    name for name, each in load_plugins().registry.backends.items() if each.available() is None
)
OPTIONS = [*BACKENDS, *(["xnn-cpu{share-workspace=true}"] if "xnn-cpu" in BACKENDS else [])]

RNG = np.random.default_rng(7)
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def perceptron(seed: int, width: int = 24) -> onnx.ModelProto:
    """A matmul with a constant matrix of its own, and a nonlinearity."""
    weight = np.random.default_rng(seed).standard_normal((width, width)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], "matmul"),
        helper.make_node("Tanh", ["m"], ["y"], "tanh"),
    ]
    x, y = (helper.make_tensor_value_info(name, FLOAT, ["n", width]) for name in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(weight, "w")])
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])


def many_types() -> onnx.ModelProto:
    """Inputs and outputs of several types and ranks, with symbolic and unknown dimensions."""
    inputs = [
        helper.make_tensor_value_info("image", FLOAT, ["batch", 3, None, 8]),
        helper.make_tensor_value_info("half", TensorProto.FLOAT16, []),
        helper.make_tensor_value_info("ids", INT64, ["batch", "tokens"]),
        helper.make_tensor_value_info("mask", TensorProto.BOOL, [1, 4]),
        helper.make_tensor_value_info("bytes", TensorProto.UINT8, [2]),
    ]
    outputs = [
        helper.make_tensor_value_info("small", FLOAT, ["batch", 3, None, 8]),
        helper.make_tensor_value_info("twice", TensorProto.FLOAT16, []),
        helper.make_tensor_value_info("next", INT64, ["batch", "tokens"]),
        helper.make_tensor_value_info("not", TensorProto.BOOL, [1, 4]),
        helper.make_tensor_value_info("wide", TensorProto.INT32, [2]),
    ]
    nodes = [
        helper.make_node("Relu", ["image"], ["small"], "relu"),
        helper.make_node("Add", ["half", "half"], ["twice"], "add"),
        helper.make_node("Abs", ["ids"], ["next"], "abs"),
        helper.make_node("Not", ["mask"], ["not"], "not"),
        helper.make_node("Cast", ["bytes"], ["wide"], "cast", to=TensorProto.INT32),
    ]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])


def loaded(model: onnx.ModelProto, backend: str, **options: object) -> Program:
    return narrowpass.load(model, backend, pipeline="", cache=False, **options)


@pytest.mark.parametrize("backend", BACKENDS)
def test_inputs_and_outputs_are_those_of_the_model(backend):
    with loaded(many_types(), backend) as program:
        assert program.inputs() == (
            ValueSpec("image", "float", ("batch", 3, None, 8)),
            ValueSpec("half", "float16", ()),
            ValueSpec("ids", "int64", ("batch", "tokens")),
            ValueSpec("mask", "bool", (1, 4)),
            ValueSpec("bytes", "uint8", (2,)),
        )
        assert program.outputs("main") == (
            ValueSpec("small", "float", ("batch", 3, None, 8)),
            ValueSpec("twice", "float16", ()),
            ValueSpec("next", "int64", ("batch", "tokens")),
            ValueSpec("not", "bool", (1, 4)),
            ValueSpec("wide", "int32", (2,)),
        )


@pytest.mark.parametrize("backend", BACKENDS)
def test_inputs_and_outputs_are_those_of_a_session_of_onnxruntime(backend):
    ort = pytest.importorskip("onnxruntime")
    model = many_types()
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    with loaded(model, backend) as program:
        for ours, theirs in (
            (program.inputs(), session.get_inputs()),
            (program.outputs(), session.get_outputs()),
        ):
            assert [(v.name, f"tensor({v.dtype})", [*v.shape]) for v in ours] == [
                (v.name, v.type, v.shape) for v in theirs
            ]


@pytest.mark.parametrize("backend", BACKENDS)
def test_inputs_with_defaults_and_sequences(backend):
    model = perceptron(0)
    model.graph.input.append(helper.make_tensor_value_info("w", FLOAT, [24, 24]))
    sequence = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, None))
    model.graph.output.append(helper.make_value_info("both", sequence))
    model.graph.node.append(helper.make_node("SequenceConstruct", ["m", "y"], ["both"], "both"))
    with loaded(model, backend) as program:
        assert program.inputs() == (
            ValueSpec("x", "float", ("n", 24)),
            ValueSpec("w", "float", (24, 24), has_default=True),
        )
        assert program.outputs()[1] == ValueSpec("both", "seq(tensor(float))", None)


@pytest.mark.parametrize("backend", BACKENDS)
def test_each_method_has_inputs_of_its_own(backend, tmp_path):
    program = two_methods(backend, tmp_path)
    assert program.inputs("one")[0].shape == ("n", 24)
    assert program.inputs("two")[0].shape == ("n", 40)
    with pytest.raises(UsageError, match="no method 'three'"):
        program.inputs("three")
    program.close()
    with pytest.raises(UsageError, match="closed"):
        program.outputs("one")


def two_methods(backend: str, folder: Path) -> Program:
    """Compile a bundle of two methods, for two threads in a run."""
    models = {"one": perceptron(1), "two": perceptron(2, 40)}
    narrowpass.build(models, "", folder / "two.narrow", target=backend)
    chosen = load_plugins().registry.backend(backend)
    options = CompileOptions(threads=2, cache="memory")
    return compile_bundle(chosen, Bundle.load(folder / "two.narrow"), options)


FEEDS = {
    (method, rows): {"x": RNG.standard_normal((rows, width)).astype(np.float32)}
    for method, width in (("one", 24), ("two", 40))
    for rows in (1, 5, 33)
}


def in_threads(programs: list[Program], turns: int = 12) -> list[object]:
    """Run all methods from eight threads; return errors, and the runs with wrong results."""
    expected = {key: programs[0].run(feeds, key[0])["y"] for key, feeds in FEEDS.items()}
    keys, wrong = list(FEEDS), []
    start = threading.Barrier(8)

    def work(number: int) -> None:
        program = programs[number % len(programs)]
        start.wait()
        try:
            for turn in range(turns):
                key = keys[(number * 5 + turn) % len(keys)]
                if not np.array_equal(program.run(FEEDS[key], key[0])["y"], expected[key]):
                    wrong.append(key)
        except Exception as error:  # noqa: BLE001 - a thread hands it to the test
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


@pytest.mark.parametrize("backend", OPTIONS)
def test_one_program_from_several_threads(backend, tmp_path):
    with two_methods(backend, tmp_path) as program:
        assert in_threads([program]) == []


@pytest.mark.parametrize("backend", OPTIONS)
def test_a_bundle_compiled_twice_runs_in_two_threads(backend, tmp_path):
    with two_methods(backend, tmp_path) as one, two_methods(backend, tmp_path) as other:
        assert in_threads([one, other]) == []


@pytest.mark.parametrize("backend", OPTIONS)
def test_a_program_is_closed_while_others_run_it(backend, tmp_path):
    """Each run ends with its results, or does not begin: nothing in between."""
    program = two_methods(backend, tmp_path)
    key = "two", 33
    expected = program.run(FEEDS[key], "two")["y"]
    started = threading.Barrier(5)
    wrong: list[object] = []

    def work() -> None:
        started.wait()
        try:
            while np.array_equal(program.run(FEEDS[key], "two")["y"], expected):
                pass
            wrong.append(key)
        except UsageError as error:
            if "closed" not in str(error):
                wrong.append(error)
        except Exception as error:  # noqa: BLE001 - a thread hands it to the test
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    started.wait()
    program.close()
    for thread in threads:
        thread.join(timeout=60)
    assert wrong == []
    assert not any(thread.is_alive() for thread in threads)
