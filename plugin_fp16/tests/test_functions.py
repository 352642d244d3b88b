"""Functions of a model: they change once, as all their calls allow."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from fp16_kit import (
    FLOAT,
    HALF,
    check,
    compare,
    constants,
    count,
    floats,
    model,
    rewritten,
    run,
    verdicts,
)
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import narrowpass

X = floats(3, 16)
SHAPES = {"x": [3, 16]}, {"y": [3, 16]}


def function(name, inputs, outputs, nodes, opset=20, attributes=()):
    return helper.make_function(
        "mine",
        name,
        inputs,
        outputs,
        nodes,
        [helper.make_opsetid("", opset), helper.make_opsetid("mine", 1)],
        list(attributes),
    )


def call(name, inputs, outputs, **attributes):
    return helper.make_node(name, inputs, outputs, domain="mine", **attributes)


def with_functions(proto, *functions):
    proto.functions.extend(functions)
    proto.opset_import.append(helper.make_opsetid("mine", 1))
    return proto


DENSE = function(
    "Dense",
    ["a", "w"],
    ["b"],
    [
        helper.make_node("MatMul", ["a", "w"], ["p"], name="matmul"),
        helper.make_node("Relu", ["p"], ["b"], name="relu"),
    ],
)


def casts_in(proto):
    return [sum(node.op_type == "Cast" for node in f.node) for f in proto.functions]


def test_a_body_is_narrow_for_all_calls():
    nodes = [call("Dense", ["x", "w"], ["h"]), call("Dense", ["h", "v"], ["y"])]
    weights = {"w": floats(16, 16), "v": floats(16, 16)}
    narrowed = check(with_functions(model(nodes, *SHAPES, weights), DENSE), {"x": X})
    assert constants(narrowed) == {"w": HALF, "v": HALF}
    assert (count(narrowed), casts_in(narrowed)) == (2, [0])


def test_the_report_names_nodes_of_functions():
    nodes = [call("Dense", ["x", "w"], ["y"])]
    proto = with_functions(model(nodes, *SHAPES, {"w": floats(16, 16)}), DENSE)
    found = {name: item["decision"] for name, item in verdicts(run(proto)).items()}
    assert found == {
        "n0": "gray, narrow",
        "Dense/matmul": "green, narrow",
        "Dense/relu": "gray, narrow",
    }


def test_nodes_of_functions_are_selected_as_they_are_reported():
    nodes = [call("Dense", ["x", "w"], ["y"])]
    proto = with_functions(model(nodes, *SHAPES, {"w": floats(16, 16)}), DENSE)
    found = verdicts(run(proto, "fp16{red=[Dense/matmul]}"))
    assert found["Dense/matmul"]["by"] == "option red"


def test_casts_stand_within_where_something_is_red():
    body = [
        helper.make_node("MatMul", ["a", "w"], ["p"]),
        helper.make_node("Exp", ["p"], ["e"]),
        helper.make_node("MatMul", ["e", "w"], ["b"]),
    ]
    inner = function("Odd", ["a", "w"], ["b"], body)
    nodes = [call("Odd", ["x", "w"], ["h"]), call("Odd", ["h", "w"], ["y"])]
    weight = floats(16, 16, scale=0.05)
    narrowed = check(with_functions(model(nodes, *SHAPES, {"w": weight}), inner), {"x": X})
    assert (count(narrowed), casts_in(narrowed)) == (2, [2])


def test_calls_with_other_types_leave_it_wide():
    """One body cannot be narrow for some calls and float64 for others."""
    twice = function("Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])])
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        call("Twice", ["h"], ["t"]),
        helper.make_node("MatMul", ["t", "w"], ["y"]),
        call("Twice", ["d"], ["z"]),
    ]
    proto = model(
        nodes,
        {"x": [3, 16], "d": [2]},
        {"y": [3, 16], "z": [2]},
        {"w": floats(16, 16)},
        types={"d": TensorProto.DOUBLE, "z": TensorProto.DOUBLE},
    )
    narrowed = check(with_functions(proto, twice), {"x": X, "d": np.array([1e300, 2.0])})
    assert (casts_in(narrowed), count(narrowed)) == ([0], 4)


def test_functions_that_call_functions():
    outer = function(
        "Twofold",
        ["a", "w"],
        ["c"],
        [call("Dense", ["a", "w"], ["b"]), call("Dense", ["b", "w"], ["c"])],
    )
    nodes = [call("Twofold", ["x", "w"], ["y"])]
    proto = with_functions(model(nodes, *SHAPES, {"w": floats(16, 16)}), DENSE, outer)
    narrowed = check(proto, {"x": X})
    assert (count(narrowed), casts_in(narrowed)) == (2, [0, 0])


def test_a_call_within_a_loop():
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["on"]),
            call("Dense", ["s", "w"], ["t"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("s", FLOAT, [3, 16]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("t", FLOAT, [3, 16]),
        ],
    )
    nodes = [helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)]
    weights = {"w": floats(16, 16), "n": np.array(4, np.int64)}
    narrowed = check(with_functions(model(nodes, *SHAPES, weights), DENSE), {"x": X})
    assert (count(narrowed), casts_in(narrowed)) == (2, [0])
    assert constants(narrowed)["w"] == HALF


def test_attributes_that_follow_from_the_call_keep_a_node_wide():
    softmax = helper.make_node("Softmax", ["p"], ["b"], name="softmax")
    softmax.attribute.append(
        onnx.AttributeProto(name="axis", type=onnx.AttributeProto.INT, ref_attr_name="axis")
    )
    body = [helper.make_node("MatMul", ["a", "w"], ["p"]), softmax]
    inner = function("Head", ["a", "w"], ["b"], body, attributes=["axis"])
    nodes = [call("Head", ["x", "w"], ["y"], axis=1)]
    proto = with_functions(model(nodes, *SHAPES, {"w": floats(16, 16)}), inner)
    narrowed = check(proto, {"x": X}, reference=False)  # which passes `axis` on to MatMul
    assert verdicts(run(proto))["Head/softmax"]["reason"] == "its attributes follow from the call"
    assert constants(narrowed)["w"] == HALF


@pytest.mark.parametrize(("number", "stored"), [(0.5, HALF), (1e6, FLOAT)])
def test_constants_within(number, stored):
    tensor = numpy_helper.from_array(np.full([16], number, np.float32))
    body = [
        helper.make_node("Constant", [], ["c"], value=tensor),
        helper.make_node("MatMul", ["a", "w"], ["p"]),
        helper.make_node("Add", ["p", "c"], ["b"]),
    ]
    inner = function("Shifted", ["a", "w"], ["b"], body)
    nodes = [call("Shifted", ["x", "w"], ["y"])]
    proto = with_functions(model(nodes, *SHAPES, {"w": floats(16, 16)}), inner)
    narrowed = check(proto, {"x": X})
    (constant,) = [n for f in narrowed.functions for n in f.node if n.op_type == "Constant"]
    assert constant.attribute[0].t.data_type == stored


def test_an_index_that_a_function_computes_stays_exact():
    half = function(
        "Halved",
        ["a", "b"],
        ["c"],
        [helper.make_node("Mul", ["a", "b"], ["c"], name="multiply")],
    )
    nodes = [
        helper.make_node("Reshape", ["x", "all"], ["flat"]),
        helper.make_node("MatMul", ["flat", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"], name="relu"),
        call("Halved", ["r", "k"], ["m"]),
        helper.make_node("Cast", ["m"], ["i"], to=TensorProto.INT64),
        helper.make_node("Identity", ["i"], ["y"]),
    ]
    proto = model(
        nodes,
        {"x": [3, 16]},
        {"y": [1, 4]},
        {
            "all": np.array([1, 48]),
            "w": floats(48, 4),
            "k": np.array(3000, np.float32),
        },
        types={"y": TensorProto.INT64},
    )
    found = verdicts(run(with_functions(proto, half)))
    assert found["Halved/multiply"]["reason"] == "an index or a size follows from it"
    assert found["relu"]["decision"] == "red, wide"


def test_with_data_values_within_are_seen():
    nodes = [call("Dense", ["x", "w"], ["h"]), helper.make_node("MatMul", ["h", "w"], ["y"])]
    weight = floats(16, 16)
    proto = with_functions(model(nodes, *SHAPES, {"w": weight}), DENSE)
    bundle = narrowpass.build(
        ir.from_proto(proto), "fp16", target="reference", calibration=[{"x": X}]
    )
    found = verdicts(bundle)
    assert found["Dense/matmul"]["decision"] == "green, narrow"
    assert found["Dense/matmul"]["measured"] == pytest.approx(np.abs(X @ weight).max(), rel=1e-5)
    assert found["n1"]["decision"] == "green, narrow"


def test_a_function_of_another_set_is_not_entered():
    """A model has one version of Cast, which would be written into it."""
    body = [helper.make_node("Add", ["a", "a"], ["b"], name="sum")]
    old = function("Old", ["a"], ["b"], body, opset=18)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        call("Old", ["h"], ["t"]),
        helper.make_node("MatMul", ["t", "w"], ["y"]),
    ]
    proto = with_functions(model(nodes, *SHAPES, {"w": floats(16, 16)}), old)
    found = verdicts(run(proto))["Old/sum"]
    assert found["reason"] == "'Old' has operators of another set than the model"
    assert count(rewritten(proto)) == 4


def test_a_function_that_returns_its_input():
    same = function(
        "Both",
        ["a", "w"],
        ["a", "b"],
        [helper.make_node("MatMul", ["a", "w"], ["b"])],
    )
    nodes = [call("Both", ["x", "w"], ["p", "q"]), helper.make_node("Add", ["p", "q"], ["y"])]
    proto = with_functions(model(nodes, *SHAPES, {"w": floats(16, 16)}), same)
    narrowed = rewritten(proto)  # onnxruntime takes no such function
    right = ReferenceEvaluator(proto).run(None, {"x": X})
    compare(ReferenceEvaluator(narrowed).run(None, {"x": X}), right, 5e-3)
