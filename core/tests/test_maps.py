"""Lists of maps that converters of scikit-learn put at the end become tensors."""

from __future__ import annotations

import logging

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import narrowpass
from narrowpass.errors import ModelError

ML = "ai.onnx.ml"


def classifier(**classes):
    key = TensorProto.STRING if "classlabels_strings" in classes else TensorProto.INT64
    value = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    kind = helper.make_sequence_type_proto(helper.make_map_type_proto(key, value))
    nodes = [
        helper.make_node("Softmax", ["x"], ["scores"], axis=1),
        helper.make_node("ZipMap", ["scores"], ["probability"], domain=ML, **classes),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 2])],
        [helper.make_value_info("probability", kind)],
    )
    imports = [helper.make_opsetid("", 18), helper.make_opsetid(ML, 3)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


@pytest.mark.parametrize(
    ("classes", "named"),
    [
        ({"classlabels_strings": ["cat", "dog"]}, "'cat', 'dog'"),
        ({"classlabels_int64s": [3, 5]}, "3, 5"),
    ],
)
def test_an_output_of_maps_becomes_a_tensor(classes, named, caplog, tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(classifier(**classes), path)
    with caplog.at_level(logging.WARNING, "narrowpass"):
        bundle = narrowpass.build({"main": path}, pipeline="")
    assert "'probability' is a list of maps; it is given as a float32 tensor [rows, 2]" in (
        caplog.text
    )
    assert f"the classes {named}" in caplog.text
    x = np.array([[1, 2], [0, 0]], np.float32)
    with narrowpass.load(bundle, "reference") as program:
        got = program.run({"x": x})["probability"]
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (maps,) = session.run(None, {"x": x})
    np.testing.assert_allclose(got, [list(each.values()) for each in maps], rtol=1e-6)


def test_other_maps_are_refused():
    model = classifier(classlabels_int64s=[3, 5])
    model.graph.node.append(helper.make_node("SequenceLength", ["probability"], ["count"]))
    model.graph.output.append(helper.make_tensor_value_info("count", TensorProto.INT64, []))
    with pytest.raises(ModelError, match="'probability' is a map"):
        narrowpass.build({"main": model}, pipeline="")


def test_a_model_that_imports_no_operators_of_onnx():
    model = classifier(classlabels_int64s=[3, 5])
    del model.opset_import[0]
    model.graph.node[0].op_type, model.graph.node[0].domain = "Normalizer", ML
    del model.graph.node[0].attribute[:]
    x = np.array([[1, 2], [0, 4]], np.float32)
    with narrowpass.load(model, "reference") as program:
        got = program.run({"x": x})["probability"]
    # Normalizer divides by the largest element of the row, which is exact here.
    np.testing.assert_array_equal(got, [[0.5, 1], [0, 1]])
