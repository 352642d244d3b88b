"""Models with Q/DQ: what becomes signed, what moves, and that the numbers stay the same."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from repair_kit import (
    XNNPACK,
    evaluated,
    floats,
    integers,
    model,
    node,
    on_onnxruntime,
    repaired,
)

IMAGE = [1, 3, 8, 8]


def same(found, feeds, *, steps=0, step=0.0):
    """Hold the result to that of the model as it was: equal, or within steps."""
    for got, right in zip(
        evaluated(found.after, feeds), evaluated(found.before, feeds), strict=True
    ):
        assert (got.dtype, got.shape) == (right.dtype, right.shape)
        if steps:
            assert np.abs(got - right).max() <= steps * step * 1.001
        else:
            np.testing.assert_array_equal(got, right)


def pair(source: str, to: str, which: str, *, zero: bool = True, **attributes):
    """Write QuantizeLinear and DequantizeLinear of one scale."""
    operands = [f"{which}s", *([f"{which}z"] if zero else [])]
    return [
        node("QuantizeLinear", [source, *operands], f"{to}q", **attributes),
        node("DequantizeLinear", [f"{to}q", *operands], to, **attributes),
    ]


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


FEEDS = {"x": np.random.default_rng(4).standard_normal(IMAGE).astype(np.float32)}


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
    # onnx's evaluator leaves out the last window of a padded MaxPool.
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


class TestWeights:
    """What is beyond [-127, 127] is halved where all of its channel is even, and else left."""

    def model(self, stored, zeros, *, bias=False):
        size = stored.shape[0]
        known = {
            "wq": stored,
            "ws": np.linspace(0.01, 0.02, size).astype(np.float32),
            "wz": np.asarray(zeros, stored.dtype),
            "bq": np.arange(size, dtype=np.int32) * 3 - 4,
            "bs": (np.float32(0.02) * np.linspace(0.01, 0.02, size).astype(np.float32)),
            "xs": np.float32(0.02),
            "xz": np.int8(3),
            "ys": np.float32(0.06),
            "yz": np.int8(4),
        }
        nodes = [
            *pair("x", "xf", "x"),
            node("DequantizeLinear", ["wq", "ws", "wz"], "wf", axis=0),
            *([node("DequantizeLinear", ["bq", "bs"], "bf", axis=0)] if bias else []),
            node("Conv", ["xf", "wf", *(["bf"] if bias else [])], "h"),
            *pair("h", "y", "y"),
        ]
        read = {name for each in nodes for name in each.input}
        inside = {name: value for name, value in known.items() if name in read}
        return model(nodes, {"x": IMAGE}, {"y": [1, size, 8, 8]}, inside)

    def test_even(self):
        stored = np.int8([[-128, 4, 6], [1, -3, 5]]).reshape(2, 3, 1, 1)
        found = repaired(self.model(stored, [0, 0]))
        same(found, FEEDS)
        kept = found.constants()[found.reads("wf")[0]]
        np.testing.assert_array_equal(kept.reshape(2, 3), [[-64, 2, 3], [1, -3, 5]])
        assert found.of("h")[-1].decision == "int8"

    def test_odd(self):
        stored = np.int8([[-128, 4, 7], [1, -3, 5]]).reshape(2, 3, 1, 1)
        found = repaired(self.model(stored, [0, 0]))
        assert not found.modified
        (only,) = found.of("h")
        assert (only.decision, only.measured, only.limit) == ("float", -128, -127)

    def test_even_with_a_bias_of_their_scale(self):
        stored = np.int8([[-128, 4, 6], [1, -3, 5]]).reshape(2, 3, 1, 1)
        found = repaired(self.model(stored, [0, 0], bias=True))
        assert not found.modified
        assert found.of("h")[-1].measured == -128

    def test_zero_points_that_go(self):
        stored = np.uint8([[250, 140, 131], [1, 120, 5]]).reshape(2, 3, 1, 1)
        found = repaired(self.model(stored, [130, 100]))
        same(found, FEEDS)
        kept = found.constants()[found.reads("wf")[0]]
        np.testing.assert_array_equal(kept.reshape(2, 3), [[120, 10, 1], [-99, 20, -95]])

    def test_zero_points_that_stay(self):
        stored = np.uint8([[250, 140, 131], [1, 120, 5]]).reshape(2, 3, 1, 1)
        found = repaired(self.model(stored, [100, 100]))
        same(found, FEEDS)
        (only,) = found.of("h")
        assert (only.measured, only.limit) == (-28, 0)
        assert only.reason.startswith("zero point of the weight")
        assert found.constants()["wq"].dtype == np.uint8

    def test_shared_by_two(self):
        proto = self.model(np.uint8([[250], [1]]).reshape(2, 1, 1, 1).repeat(3, axis=1), [128, 128])
        proto.graph.node.insert(-2, node("Conv", ["xf", "wf"], "k"))
        proto.graph.node.insert(-2, node("Add", ["h", "k"], "a"))
        proto.graph.node[-2].input[0] = "a"
        found = repaired(proto)
        same(found, FEEDS)
        assert [n.op_type for n in found.after.graph.node].count("DequantizeLinear") == 3


class TestBias:
    """Its scale is to be that of the sums: the integers change where the numbers can stay."""

    def model(self, bias, scale, zero=None):
        known = {
            "bq": bias,
            "bs": scale,
            **({"bz": zero} if zero is not None else {}),
            "wq": np.int8([[3, -5, 7], [1, 2, 3]]).reshape(2, 3, 1, 1),
            "ws": np.float32([2.0**-6, 2.0**-5]),
            "wz": np.int8([0, 0]),
            "xs": np.float32(2.0**-6),
            "xz": np.int8(3),
            "ys": np.float32(2.0**-5),
            "yz": np.int8(4),
        }
        operands = ["bq", "bs", *(["bz"] if zero is not None else [])]
        nodes = [
            *pair("x", "xf", "x"),
            node("DequantizeLinear", ["wq", "ws", "wz"], "wf", axis=0),
            node("DequantizeLinear", operands, "bf", axis=0),
            node("Conv", ["xf", "wf", "bf"], "h"),
            *pair("h", "y", "y"),
        ]
        return model(nodes, {"x": IMAGE}, {"y": [1, 2, 8, 8]}, known)

    def test_right(self):
        found = repaired(self.model(np.int32([5, -7]), np.float32([2.0**-12, 2.0**-11])))
        assert not found.modified

    @pytest.mark.parametrize(
        ("bias", "scale", "zero"),
        [
            (np.int32([5, -7]), np.float32(2.0**-10), None),
            (np.int8([5, -7]), np.float32(2.0**-10), None),
            (np.int32([5, -7]), np.float32(2.0**-10), np.int32(3)),
        ],
    )
    def test_exact(self, bias, scale, zero):
        found = repaired(self.model(bias, scale, zero))
        same(found, FEEDS)
        name = next(n for n in found.after.graph.node if n.name == "h").input[2]
        made = next(n for n in found.after.graph.node if n.output[0] == name)
        off = 0 if zero is None else 3
        np.testing.assert_array_equal(
            found.constants()[made.input[0]], [(5 - off) * 4, (-7 - off) * 2]
        )
        np.testing.assert_array_equal(found.constants()[made.input[1]], [2.0**-12, 2.0**-11])

    def test_not_exact(self):
        found = repaired(self.model(np.int32([5, -7]), np.float32(0.001)))
        assert not found.modified
        first = found.of("h")[0]
        assert first.reason.startswith("scale of the bias")
        assert first.measured == np.float32(0.001)
        assert len(found.warnings) == 1


class TestMoves:
    """Operators of one quantization: the conversion comes after them, or before Concat."""

    def between(self, made, x=0.02, y=0.05, *, dtype=np.int8, y_zero=-7, shape=IMAGE, more=None):
        nodes = [*pair("x", "xf", "x"), made, *pair("h", "y", "y")]
        known = {
            "xs": np.float32(x),
            "xz": dtype(3),
            "ys": np.float32(y),
            "yz": dtype(y_zero),
            **(more or {}),
        }
        return repaired(model(nodes, {"x": IMAGE}, {"y": [None] * len(shape)}, known))

    @pytest.mark.parametrize(
        "made",
        [
            node("MaxPool", ["xf"], "h", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
            node("Relu", ["xf"], "h"),
            node("Reshape", ["xf", "size"], "h"),
            node("Slice", ["xf", "from", "to"], "h"),
            node("Pad", ["xf", "pads"], "h"),
            node("Clip", ["xf", "low"], "h"),
            node("Resize", ["xf", "", "factor"], "h", mode="nearest"),
        ],
        ids=lambda made: made.op_type,
    )
    def test_after(self, made):
        more = {
            "size": np.int64([1, 3, 64, 1]),
            "from": np.int64([0, 1]),
            "to": np.int64([1, 3]),
            "pads": np.int64([0, 0, 1, 1, 0, 0, 1, 1]),
            "low": np.float32(0),
            "factor": np.float32([1, 1, 2, 2]),
        }
        kept = {name: value for name, value in more.items() if name in made.input}
        found = self.between(made, more=kept)
        same(found, FEEDS)
        assert [each.decision for each in found.of("h")] == ["repaired", "int8"]
        assert len(found.kinds()) == 7

    @pytest.mark.parametrize(("value", "moved"), [(0.02 * 4, True), (0.03, False)])
    def test_what_a_pad_adds_must_be_among_the_numbers(self, value, moved):
        more = {"pads": np.int64([0, 0, 1, 1, 0, 0, 1, 1]), "v": np.float32(value)}
        found = self.between(node("Pad", ["xf", "pads", "v"], "h"), more=more)
        same(found, FEEDS)
        assert (found.of("h")[-1].decision == "int8") is moved
        assert found.modified is moved

    def test_before_concat(self):
        nodes = [
            *pair("x", "xf", "x"),
            *pair("z", "zf", "y"),
            node("Concat", ["xf", "zf"], "h", axis=1),
            *pair("h", "y", "y"),
        ]
        known = {
            "xs": np.float32(0.02),
            "xz": np.int8(3),
            "ys": np.float32(0.05),
            "yz": np.int8(-7),
        }
        proto = model(nodes, {"x": IMAGE, "z": IMAGE}, {"y": [1, 6, 8, 8]}, known)
        found = repaired(proto)
        same(found, {**FEEDS, "z": floats(*IMAGE)})
        assert found.of("h")[-1].decision == "int8"
        assert len(found.kinds()) == len(nodes) + 2

    def test_q_dq_left_out_behind_them(self):
        """NNCF writes none behind MaxPool and Reshape: the product reads the same numbers."""
        nodes = [
            *pair("x", "xf", "x"),
            node("MaxPool", ["xf"], "p", kernel_shape=[8, 8]),
            node("Flatten", ["p"], "f"),
            node("DequantizeLinear", ["w", "ws"], "wf"),
            node("MatMul", ["f", "wf"], "h"),
            *pair("h", "y", "y"),
        ]
        known = {
            "xs": np.float32(0.02),
            "xz": np.uint8(33),
            "w": integers(np.int8, 3, 4),
            "ws": np.float32(0.01),
            "ys": np.float32(0.05),
            "yz": np.uint8(99),
        }
        found = repaired(model(nodes, {"x": IMAGE}, {"y": [1, 4]}, known))
        same(found, FEEDS)
        assert [found.of(name)[-1].decision for name in "pfh"] == ["int8"] * 3

    def test_floats_behind_them_stay(self):
        nodes = [
            *pair("x", "xf", "x"),
            node("MaxPool", ["xf"], "p", kernel_shape=[8, 8]),
            node("Exp", ["p"], "y"),
        ]
        known = {"xs": np.float32(0.02), "xz": np.int8(33)}
        found = repaired(model(nodes, {"x": IMAGE}, {"y": [1, 3, 1, 1]}, known))
        assert not found.modified
        assert found.of("p")[-1].reason == "its result is not quantized"

    def test_a_backend_that_asks_for_nothing(self):
        made = node("MaxPool", ["xf"], "h", kernel_shape=[3, 3])
        nodes = [*pair("x", "xf", "x"), made, *pair("h", "y", "y")]
        known = {
            "xs": np.float32(0.02),
            "xz": np.int8(3),
            "ys": np.float32(0.05),
            "yz": np.int8(-7),
        }
        proto = model(nodes, {"x": IMAGE}, {"y": [None] * 4}, known)
        assert not repaired(proto, {**XNNPACK, "same_quantization": ()}).modified


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


def test_functions_are_told_of():
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
    """Activations are float: weights that can become symmetric do, others are told of."""
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
