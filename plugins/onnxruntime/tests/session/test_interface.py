"""What callers ask about a session: the answers are those of onnxruntime's class."""

import inspect

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from session_kit import (
    FLOAT,
    INT64,
    ORIGINAL,
    OURS,
    STRING,
    both,
    classifier,
    external,
    identity,
    model,
    node,
    overridable,
    perceptron,
    tensor,
    value,
)

from narrowpass_onnxruntime.session.binding import IOBinding
from narrowpass_onnxruntime.session.metadata import interface_of


def methods(of):
    return {name: each for name, each in inspect.getmembers(of) if not name.startswith("_")}


def parameters(function):
    return [
        (name, each.kind, each.default)
        for name, each in inspect.signature(function).parameters.items()
    ]


@pytest.mark.parametrize(
    ("ours", "original"), [(OURS, ORIGINAL), (IOBinding, onnxruntime.IOBinding)]
)
def test_methods_have_the_signatures_of_onnxruntimes(ours, original):
    """A newer onnxruntime that adds a method, or a parameter, fails here."""
    theirs = {**methods(original), "__init__": original.__init__}
    own = {**methods(ours), "__init__": ours.__init__}
    assert not {*theirs} - {*own}
    for name, function in theirs.items():
        assert parameters(own[name]) == parameters(function), name


def sequence(kind=FLOAT):
    element = helper.make_tensor_type_proto(kind, ["n", 3])
    listed = helper.make_sequence_type_proto(element)
    nodes = [node("SequenceConstruct", ["x", "x"], ["y"])]
    return model(nodes, [value("x", kind=kind)], [helper.make_value_info("y", listed)])


def without_output_shape():
    weight = tensor(np.ones((3, 4), np.float32), "w")
    nodes = [node("MatMul", ["x", "w"], ["y"])]
    return model(nodes, [value("x")], [value("y", None)], [weight])


def with_other_names():
    weight = tensor(np.ones((3, 4), np.float32), "w")
    nodes = [node("MatMul", ["x", "w"], ["y"])]
    return model(nodes, [value("x")], [value("y", ("k", "l"))], [weight])


def with_metadata():
    described = perceptron()
    described.producer_name, described.producer_version = "maker", "2"
    described.domain, described.model_version = "org.example", 7
    described.doc_string, described.graph.doc_string = "a model", "a graph"
    helper.set_model_props(described, {"names": "cat,dog", "stride": "32"})
    return described


MODELS = {
    "perceptron": perceptron,
    "old format": lambda: overridable(3),
    "default": overridable,
    "metadata": with_metadata,
    "maps": lambda: classifier(classlabels_int64s=[3, 5]),
    "maps of text": lambda: classifier(classlabels_strings=["cat", "dog"]),
    "sequence": sequence,
    "scalar": lambda: identity(FLOAT, ()),
    "text": lambda: identity(STRING, (None,)),
    "fixed": lambda: identity(INT64, (2, 3)),
    "negative and zero sizes": lambda: identity(FLOAT, (-1, 0, 3)),
    "bfloat16": lambda: identity(onnx.TensorProto.BFLOAT16, ("n",)),
    "no output shape": without_output_shape,
    "other names in outputs": with_other_names,
}


@pytest.mark.parametrize("case", MODELS)
def test_inputs_outputs_and_metadata(case):
    original, ours = both(MODELS[case]())
    for ask in ("get_inputs", "get_outputs", "get_overridable_initializers"):
        expected = [(arg.name, arg.type, arg.shape) for arg in getattr(original, ask)()]
        assert [(arg.name, arg.type, arg.shape) for arg in getattr(ours, ask)()] == expected
        expected = [str(arg) for arg in getattr(original, ask)()]
        assert [str(arg) for arg in getattr(ours, ask)()] == expected
    expected, found = original.get_modelmeta(), ours.get_modelmeta()
    for name in dir(expected):
        if not name.startswith("_"):
            assert getattr(found, name) == getattr(expected, name), name


def test_the_backend_uses_onnxruntimes_own_class(monkeypatch):
    import narrowpass

    monkeypatch.setattr(onnxruntime, "InferenceSession", OURS)
    with narrowpass.load(perceptron(), "onnxruntime", pipeline="") as program:
        session = program._methods["main"].session
        assert type(session) is ORIGINAL


def test_providers():
    session = OURS(
        perceptron().SerializeToString(),
        providers=[("NarrowpassExecutionProvider", {"threads": 2}), "CPUExecutionProvider"],
    )
    assert session.get_providers() == ["NarrowpassExecutionProvider", "CPUExecutionProvider"]
    assert session.get_provider_options() == {
        "NarrowpassExecutionProvider": {"threads": "2"},
        "CPUExecutionProvider": {},
    }
    session.set_providers(["CPUExecutionProvider"])
    assert session.get_provider_options()["NarrowpassExecutionProvider"] == {}
    session.disable_fallback()
    session.enable_fallback()


def test_answers_that_are_the_same_for_every_session(tmp_path):
    original, ours = both(external(tmp_path))
    for ask in ("get_input_memory_infos", "get_output_memory_infos"):
        expected, found = getattr(original, ask)(), getattr(ours, ask)()
        assert [info.name for info in found] == [info.name for info in expected]
    assert ours.get_input_epdevices() == [None]
    assert ours.get_tuning_results() == original.get_tuning_results()
    assert isinstance(ours.get_session_options(), onnxruntime.SessionOptions)
    assert ours.end_profiling() == original.end_profiling() == ""
    assert ours.get_profiling_start_time_ns() == original.get_profiling_start_time_ns() == 0
    ours.release_captured_graph()
    ours.set_tuning_results([])


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda s: s.get_provider_graph_assignment_info(), "get_provider_graph_assignment_info"),
        (lambda s: s.set_ep_dynamic_options({"a": "b"}), "set_ep_dynamic_options"),
        (lambda s: s.set_tuning_results([{}], error_on_invalid=True), "set_tuning_results"),
    ],
)
def test_what_is_not_supported_is_named(call, name):
    with pytest.raises(Exception, match=f"{name} is not supported") as caught:
        call(OURS(identity().SerializeToString()))
    assert type(caught.value).__name__ == "NotImplemented"


@pytest.mark.parametrize("whole", [True, False])
def test_models_that_are_inferred_node_by_node(whole, monkeypatch):
    """Neg stands for the operators of which onnx is not given a whole graph."""
    asked, infer_shapes = [], onnx.shape_inference.infer_shapes
    monkeypatch.setattr(
        onnx.shape_inference, "infer_shapes", lambda m: asked.append(m) or infer_shapes(m)
    )
    kinds = {"Abs"} if whole else {"Neg"}
    monkeypatch.setattr("narrowpass_onnxruntime.session.metadata.READS_TYPES", kinds)
    nodes = [node("Neg", ["x"], ["y"])]
    graph = helper.make_graph(nodes, "g", [value("x", ["n"])], [value("y", [None])])
    sets = [helper.make_opsetid("", 20)]
    proto = helper.make_model(graph, opset_imports=sets, ir_version=9)
    (output,) = interface_of(proto).outputs
    assert (output.name, output.shape) == ("y", ["n"])
    assert len(asked) == whole
