"""compare --across: one model run in several ways."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from narrowpass_analysis.compare import compare


def saved(path, nodes, *, mask=False, constants=()):
    """Save a model of x [N, S, 3], and a mask [N, S], to y."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", "S", 3])]
    if mask:
        inputs.append(
            helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["N", "S"])
        )
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(constants))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    return str(path)


@pytest.fixture
def rowwise(tmp_path):
    return saved(tmp_path / "rowwise.onnx", [helper.make_node("Relu", ["x"], ["y"])])


@pytest.fixture
def centred(tmp_path):
    """x less its mean over the batch: a row depends on the rows beside it."""
    axes = numpy_helper.from_array(np.array([0]), "axes")
    nodes = [
        helper.make_node("ReduceMean", ["x", "axes"], ["m"]),
        helper.make_node("Sub", ["x", "m"], ["y"]),
    ]
    return saved(tmp_path / "centred.onnx", nodes, constants=[axes])


def pooled(path, *, masked):
    """Build a sum of x + 1 over its columns; of those that the mask has, or of all."""
    ones = numpy_helper.from_array(np.ones(1, np.float32), "one")
    axes = numpy_helper.from_array(np.array([1]), "axes")
    last = numpy_helper.from_array(np.array([2]), "last")
    nodes = [
        helper.make_node("Add", ["x", "one"], ["a"]),
        helper.make_node("Cast", ["attention_mask"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["f", "last"], ["w"]),
        helper.make_node("Mul", ["a", "w" if masked else "one"], ["p"]),
        helper.make_node("ReduceSum", ["p", "axes"], ["y"]),
    ]
    return saved(path, nodes, mask=True, constants=[ones, axes, last])


def test_same_bits(call, rowwise):
    document = call("compare", rowwise, "--across", "threads,batch", "--json").json
    assert document["same"]
    assert {case["case"] for case in document["cases"]} == {
        *("2 threads", "3 threads", "4 threads"),
        *("each row alone", "half of the rows", "in reverse"),
    }
    for key in (*document.keys() - {"version"}, *document["cases"][0]):
        assert key in compare.help


def test_rows_that_depend_on_others(call, centred):
    result = call("compare", centred, "--across", "batch", code=1)
    assert "outputs differ: each row alone (batch), output 'y'" in result.err


def test_a_tolerance(call, centred):
    call("compare", centred, "--across", "batch", "--tolerance", "rel:10")
    result = call("compare", centred, "--across", "batch", "--tolerance", "rel:1e-3", code=1)
    assert "each row alone" in result.err


@pytest.mark.parametrize("masked", [True, False])
def test_padding(call, tmp_path, masked):
    path = pooled(tmp_path / "pooled.onnx", masked=masked)
    document = call("compare", path, "--across", "padding", "--json", code=0 if masked else 1).json
    assert document["same"] == masked
    assert [case["case"] for case in document["cases"]] == ["1 columns", "7 columns", "32 columns"]


def test_data_is_one_batch(call, rowwise, tmp_path):
    (tmp_path / "data").mkdir()
    for index in range(3):
        np.savez(tmp_path / "data" / f"{index}.npz", x=np.full((1, 2, 3), index, np.float32))
    document = call("compare", rowwise, "--across", "batch", "--data", "data", "--json").json
    assert document["same"]


def test_outputs_without_rows(call, tmp_path):
    nodes = [helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)]
    path = saved(tmp_path / "sum.onnx", nodes)
    assert "a row for each" in call("compare", path, "--across", "batch", code=2).err


def test_axes_that_a_method_does_not_have(call, rowwise):
    document = call("compare", rowwise, "--across", "all", "--json").json
    assert set(document["missing"]) == {"padding", "isa"}
    assert "cannot be held to instruction sets" in document["missing"]["isa"]
    result = call("compare", rowwise, "--across", "padding", code=2)
    assert "no attention mask" in result.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--across", "thread"], "there is no axis 'thread' (did you mean 'threads'?)"),
        (["B", "--across", "threads"], "leave out B"),
        ([], "pass a second model B, or --across"),
        (["--across", "threads", "--tolerance", "cosine:0.9"], "pass rel:LIMIT"),
    ],
)
def test_wrong_arguments(call, rowwise, arguments, message):
    assert message in call("compare", rowwise, *arguments, code=2).err
