"""Models with Q/DQ: what becomes signed, what moves, and that the numbers stay the same."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from repair_kit import (
    FEEDS,
    IMAGE,
    floats,
    integers,
    model,
    node,
    on_onnxruntime,
    pair,
    repaired,
    same,
)


def convolution(dtype, *, weight=None, zeros=True, opset=21, constants=(), stored="integers"):
    """Write what tools write of a convolution; `stored` as floats is PyTorch's and NNCF's way."""
    shift = 128 if dtype == np.uint8 else 0
    known = {
        "xs": np.float32(0.02),
        "xz": dtype(shift - 20),
        "ws": np.float32([0.01, 0.02, 0.015, 0.03]),
        "wz": np.zeros(4, weight or np.int8)
        + (weight or np.int8)(128 if weight == np.uint8 else 0),
        "ys": np.float32(0.06),
        "yz": dtype(shift + 4),
        "b": floats(4),
    }
    if stored == "integers":
        known["wq"] = integers(weight or np.int8, 4, 3, 3, 3, zero=128 if weight == np.uint8 else 0)
        reading = [node("DequantizeLinear", ["wq", "ws", "wz"], "wf", axis=0)]
    else:
        known["w"] = floats(4, 3, 3, 3, scale=0.4)
        reading = pair("w", "wf", "w", axis=0)
    nodes = [
        *pair("x", "xf", "x", zero=zeros),
        *reading,
        node("Conv", ["xf", "wf", "b"], "h", pads=[1, 1, 1, 1]),
        node("Relu", ["h"], "r"),
        *pair("r", "y", "y", zero=zeros),
    ]
    read = {name for each in nodes for name in each.input}
    inside = {name: value for name, value in known.items() if name in read}
    first = [constant(name, inside.pop(name)) for name in constants if name in inside]
    return model([*first, *nodes], {"x": IMAGE}, {"y": [1, 4, 8, 8]}, inside, opset)


def constant(name, array):
    return node("Constant", [], name, value=numpy_helper.from_array(np.asarray(array)))


@pytest.mark.parametrize("stored", ["integers", "floats"])
@pytest.mark.parametrize("weight", [np.int8, np.uint8])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("opset", [19, 21, 23, 25])
def test_operator_sets(opset, dtype, weight, stored):
    """The same numbers are multiplied and summed: not one bit differs."""
    found = repaired(convolution(dtype, weight=weight, stored=stored, opset=opset))
    same(found, FEEDS)
    assert found.of("h")[-1].decision == "int8"
    assert not found.warnings
    for each in found.after.graph.node:
        if each.op_type in ("QuantizeLinear", "DequantizeLinear"):
            assert found.constants()[each.input[2]].dtype == np.int8
    stored_as = found.constants()[found.reads("wf")[0]]
    assert (stored_as.dtype, stored_as.shape) == (np.int8, (4, 3, 3, 3))


@pytest.mark.parametrize("opset", [13, 17])
def test_older_operator_sets(opset):
    found = repaired(convolution(np.uint8, weight=np.uint8, opset=opset))
    assert found.of("h")[-1].decision == "int8"


def test_what_is_right_already_stays():
    found = repaired(convolution(np.int8))
    assert not found.modified
    assert [each.decision for each in found.decisions] == ["int8"]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_constant_nodes(dtype):
    names = ("xs", "xz", "ws", "wz", "wq", "ys", "yz")
    found = repaired(convolution(dtype, weight=np.uint8, constants=names))
    same(found, FEEDS)
    assert found.of("h")[-1].decision == "int8"


def test_zero_points_left_out():
    """They are 0, of unsigned bytes; signed ones have -128."""
    found = repaired(convolution(np.uint8, zeros=False))
    same(found, FEEDS)
    assert found.of("h")[-1].decision == "int8"
    zeros = [found.constants()[n.input[2]] for n in found.after.graph.node if n.name == "xfq"]
    assert [(each.dtype.name, int(each)) for each in zeros] == [("int8", -128)]


def test_scales_of_one_element():
    proto = convolution(np.uint8)
    for tensor in proto.graph.initializer:
        if tensor.name in ("xs", "xz"):
            tensor.dims.append(1)
    found = repaired(proto)
    same(found, FEEDS)
    quantizing = found.reads("xfq")
    assert [found.constants()[name].shape for name in quantizing[1:]] == [(1,), (1,)]


def test_the_type_of_the_result_as_an_attribute():
    nodes = [
        node("QuantizeLinear", ["x", "s"], "q", output_dtype=TensorProto.UINT8),
        node("DequantizeLinear", ["q", "s"], "f"),
        node("Relu", ["f"], "h"),
        *pair("h", "y", "y"),
    ]
    known = {"s": np.float32(0.02), "ys": np.float32(0.02), "yz": np.int8(-128)}
    found = repaired(model(nodes, {"x": IMAGE}, {"y": IMAGE}, known))
    same(found, FEEDS)
    assert found.of("h")[-1].decision == "int8"
    assert not next(n.attribute for n in found.after.graph.node if n.name == "q")


@pytest.mark.parametrize("most", [255, 127])
def test_as_pytorch_exports_it(most):
    """Fake quantization of torch.onnx: weights in float32, and a Clip for seven bits.

    Zero points are vectors of int8 for channels; the Clip has no lower limit.
    """
    clip = [
        constant("limit", np.uint8(127)),
        node("Clip", ["xfq", "", "limit"], "clipped"),
    ]
    nodes = [
        node("QuantizeLinear", ["x", "xs", "xz"], "xfq"),
        *(clip if most == 127 else []),
        node("DequantizeLinear", ["clipped" if most == 127 else "xfq", "xs", "xz"], "xf"),
        *pair("w", "wf", "w", axis=0),
        node("Conv", ["xf", "wf", "b"], "h"),
        *pair("h", "y", "y"),
    ]
    known = {
        "xs": np.float32(0.03),
        "xz": np.uint8(60),
        "w": floats(4, 3, 3, 3, scale=0.4),
        "ws": np.float32([0.02, 0.01, 0.02, 0.03]),
        "wz": np.zeros(4, np.int8),
        "b": floats(4),
        "ys": np.float32(0.05),
        "yz": np.uint8(128),
    }
    proto = model(nodes, {"x": IMAGE}, {"y": [1, 4, 6, 6]}, known)
    feeds = {"x": FEEDS["x"] * np.float32(2)}
    clipped = (np.rint(feeds["x"] / known["xs"]) + 60 > 127).sum()
    assert clipped > 10
    found = repaired(proto)
    same(found, feeds)
    assert not any(d.reason.startswith("its input") for d in found.of("h"))
    assert ("Clip" in found.kinds()) is (most == 127)
    assert [d.decision for d in found.of("h") if d.decision != "repaired"] == ["int8"] or (
        found.of("h")[-1].measured == -128
    )


def test_integers_that_are_moved():
    """Reshape, Transpose, MaxPool, Pad and Gather of integers work on numbers, exactly."""
    nodes = [
        node("QuantizeLinear", ["x", "xs", "xz"], "a"),
        node("MaxPool", ["a"], "p", kernel_shape=[2, 2], pads=[0, 0, 1, 1]),
        node("Transpose", ["p"], "t", perm=[0, 2, 3, 1]),
        node("Pad", ["t", "pads", "seven"], "d"),
        node("Pad", ["d", "pads"], "e"),
        node("Gather", ["e", "rows"], "g", axis=1),
        node("Reshape", ["g", "size"], "r"),
        node("DequantizeLinear", ["r", "xs", "xz"], "y"),
    ]
    known = {
        "xs": np.float32(0.02),
        "xz": np.uint8(77),
        "pads": np.int64([0, 1, 0, 0, 0, 0, 1, 0]),
        "seven": np.uint8(7),
        "rows": np.int64([0, 3, 9]),
        "size": np.int64([1, -1]),
    }
    found = repaired(model(nodes, {"x": IMAGE}, {"y": [1, None]}, known))
    # onnx's evaluator leaves out the last kernel window of a padded MaxPool.
    (got,), (right,) = on_onnxruntime(found.after, FEEDS), on_onnxruntime(found.before, FEEDS)
    np.testing.assert_array_equal(got, right)
    assert not found.warnings
    for name in ("p", "t", "d", "e", "r"):
        assert found.of(name)[-1].decision == "int8"
    types = {
        each.name: each.type.tensor_type.elem_type
        for each in onnx.shape_inference.infer_shapes(found.after).graph.value_info
    }
    assert TensorProto.UINT8 not in types.values()


def test_split_integers():
    nodes = [
        node("QuantizeLinear", ["x", "xs", "xz"], "a"),
        node("Split", ["a", "parts"], "one two", axis=1),
        node("DequantizeLinear", ["one", "xs", "xz"], "y"),
        node("DequantizeLinear", ["two", "xs", "xz"], "z"),
    ]
    known = {"xs": np.float32(0.02), "xz": np.uint8(77), "parts": np.int64([1, 2])}
    outputs = {"y": [1, 1, 8, 8], "z": [1, 2, 8, 8]}
    found = repaired(model(nodes, {"x": IMAGE}, outputs, known))
    same(found, FEEDS)
    assert found.of("one")[-1].decision == "int8"


def test_inputs_and_outputs_keep_their_types():
    nodes = [
        node("DequantizeLinear", ["x", "xs", "xz"], "xf"),
        node("Relu", ["xf"], "h"),
        node("QuantizeLinear", ["h", "ys", "yz"], "y"),
    ]
    known = {"xs": np.float32(0.02), "xz": np.uint8(77), "ys": np.float32(0.02), "yz": np.uint8(77)}
    types = {"x": np.uint8, "y": np.uint8}
    found = repaired(model(nodes, {"x": IMAGE}, {"y": IMAGE}, known, types=types))
    same(found, {"x": integers(np.uint8, *IMAGE, low=0, high=255)})
    assert found.of("h")[-1].decision == "int8"
    between = ["DequantizeLinear", "QuantizeLinear"]
    assert found.kinds() == [*between, "DequantizeLinear", "Relu", *between[::-1], between[1]]


def test_integers_that_are_an_output_too():
    nodes = [*pair("x", "xf", "x"), node("Relu", ["xf"], "h"), *pair("h", "y", "y")]
    known = {"xs": np.float32(0.02), "xz": np.uint8(77), "ys": np.float32(0.02), "yz": np.uint8(77)}
    outputs = {"y": IMAGE, "yq": IMAGE}
    proto = model(nodes, {"x": IMAGE}, outputs, known, types={"yq": np.uint8})
    found = repaired(proto)
    same(found, FEEDS)
    assert found.of("h")[-1].decision == "int8"


def test_unsigned_constants_that_are_no_weights():
    """An operand of Add may have any zero point; it is signed all the same."""
    nodes = [
        *pair("x", "xf", "x"),
        node("DequantizeLinear", ["c", "xs", "xz"], "cf"),
        node("Add", ["xf", "cf"], "h"),
        *pair("h", "y", "y"),
    ]
    known = {
        "xs": np.float32(0.02),
        "xz": np.uint8(77),
        "c": integers(np.uint8, 8, low=0, high=255),
        "ys": np.float32(0.04),
        "yz": np.uint8(99),
    }
    found = repaired(model(nodes, {"x": IMAGE}, {"y": IMAGE}, known))
    same(found, FEEDS)
    assert found.of("h")[-1].decision == "int8"
    assert found.constants()[found.reads("cf")[0]].dtype == np.int8


def test_within_branches():
    """Nodes of branches are repaired too; weights of the graph around them stay where they are."""
    inner = [
        node("DequantizeLinear", ["wq", "ws", "wz"], "wf"),
        node("MatMul", ["xf", "wf"], "h"),
        *pair("h", "t", "y"),
    ]
    shape = [helper.make_tensor_value_info("t", TensorProto.FLOAT, [5, 4])]
    then = helper.make_graph(inner, "then", [], shape)
    other = helper.make_graph(
        [node("Identity", ["plain"], "e")],
        "else",
        [],
        [helper.make_tensor_value_info("e", TensorProto.FLOAT, [5, 4])],
    )
    branch = helper.make_node("If", ["c"], ["y"], name="if", then_branch=then, else_branch=other)
    known = {
        "c": np.array(True),
        "plain": np.zeros((5, 4), np.float32),
        "wq": integers(np.uint8, 8, 4, zero=128),
        "ws": np.float32(0.01),
        "wz": np.uint8(128),
        "xs": np.float32(0.02),
        "xz": np.uint8(100),
        "ys": np.float32(0.05),
        "yz": np.uint8(120),
    }
    proto = model([*pair("x", "xf", "x"), branch], {"x": [5, 8]}, {"y": [5, 4]}, known)
    found = repaired(proto)
    same(found, {"x": floats(5, 8)})
    assert found.of("h")[-1].decision == "int8"


@pytest.mark.parametrize("axis", [None, 0], ids=["per-tensor", "per-channel"])
@pytest.mark.parametrize("stored", ["integers", "floats"])
def test_transposed_weights(axis, stored):
    """PyTorch exports a linear layer of more than two dimensions with its weight transposed."""
    size = () if axis is None else (4,)
    known = {
        "xs": np.float32(0.02),
        "xz": np.uint8(99),
        "ws": np.full(size, 0.01, np.float32),
        "wz": np.zeros(size, np.int8),
        "ys": np.float32(0.05),
        "yz": np.uint8(120),
    }
    along = {} if axis is None else {"axis": axis}
    if stored == "integers":
        known["wq"] = integers(np.int8, 4, 8)
        reading = [node("DequantizeLinear", ["wq", "ws", "wz"], "wf", **along)]
    else:
        known["w"] = floats(4, 8, scale=0.4)
        reading = pair("w", "wf", "w", **along)
    nodes = [
        *pair("x", "xf", "x"),
        *reading,
        node("Transpose", ["wf"], "wt", perm=[1, 0]),
        node("MatMul", ["xf", "wt"], "h"),
        *pair("h", "y", "y"),
    ]
    found = repaired(model(nodes, {"x": [2, 5, 8]}, {"y": [2, 5, 4]}, known))
    same(found, {"x": floats(2, 5, 8)})
    assert "Transpose" not in found.kinds()
    assert found.of("h")[-1].decision == "int8"


def test_functions_are_reported():
    inner = [node("DequantizeLinear", ["q", "s", "z"], "f"), node("Relu", ["f"], "r")]
    function = helper.make_function(
        "own", "Inner", ["q", "s", "z"], ["r"], inner, [helper.make_opsetid("", 21)]
    )
    nodes = [
        node("QuantizeLinear", ["x", "xs", "xz"], "a"),
        node("Inner", ["a", "xs", "xz"], "y", "own"),
    ]
    known = {"xs": np.float32(0.02), "xz": np.int8(9)}
    proto = model(nodes, {"x": IMAGE}, {"y": IMAGE}, known)
    proto.functions.append(function)
    proto.opset_import.append(helper.make_opsetid("own", 1))
    found = repaired(proto)
    assert not found.modified
    assert any(each.reason == "it stands in function 'Inner'" for each in found.decisions)


def test_weights_alone():
    """Activations are float: weights that can become symmetric do, others are reported."""
    nodes = [
        node("DequantizeLinear", ["a", "s", "za"], "af"),
        node("DequantizeLinear", ["b", "s", "zb"], "bf"),
        node("MatMul", ["x", "af"], "h"),
        node("MatMul", ["h", "bf"], "y"),
    ]
    known = {
        "a": integers(np.uint8, 8, 8, zero=128),
        "b": integers(np.uint8, 8, 8, zero=128),
        "s": np.float32(0.01),
        "za": np.uint8(128),
        "zb": np.uint8(90),
    }
    known["b"].flat[0] = 255
    found = repaired(model(nodes, {"x": [5, 8]}, {"y": [5, 8]}, known))
    same(found, {"x": floats(5, 8)})
    assert found.constants()[found.reads("af")[0]].dtype == np.int8
    assert found.constants()[found.reads("bf")[0]].dtype == np.uint8
    (only,) = found.of("bf")
    assert (only.measured, only.limit) == (-38, 0)
    assert len(found.warnings) == 1


@pytest.mark.parametrize("columns", [4, 16])
def test_a_scale_for_each_column_of_the_operand(columns):
    """No bias has the scale of such accumulators: it stays as it is, also where sizes agree."""
    known = {
        "xs": np.linspace(0.01, 0.03, 16, dtype=np.float32),
        "xz": np.full(16, 118, np.uint8),
        "wq": integers(np.uint8, 16, columns, zero=128),
        "ws": np.linspace(0.01, 0.02, columns, dtype=np.float32),
        "wz": np.full(columns, 128, np.uint8),
        "bq": np.arange(columns, dtype=np.int32) * 500 - 900,
        "bs": np.float32(3e-4),
    }
    nodes = [
        *pair("x", "xf", "x", axis=1),
        node("DequantizeLinear", ["wq", "ws", "wz"], "wf", axis=1),
        node("DequantizeLinear", ["bq", "bs"], "bf"),
        node("Gemm", ["xf", "wf", "bf"], "y"),
    ]
    found = repaired(model(nodes, {"x": [3, 16]}, {"y": [3, columns]}, known))
    same(found, {"x": floats(3, 16)})
    assert found.constants()[found.reads("bf")[0]].tolist() == known["bq"].tolist()
