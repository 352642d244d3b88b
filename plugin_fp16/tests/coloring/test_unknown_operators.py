"""Data for models with operators that nothing here can run: all before them is measured."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from fp16_kit import FLOAT, HALF, constants, count, floats, model, nodes_of
from onnx import TensorProto, helper

import narrowpass
from narrowpass.errors import NarrowpassError

X = np.ones((3, 16), np.float32)


def build(proto, samples, text="fp16"):
    bundle = narrowpass.build(ir.from_proto(proto), text, target="reference", calibration=samples)
    narrowed = ir.to_proto(bundle.methods["main"])
    found = {item["node"]: item for item in bundle.reports[-1].methods["main"].decisions}
    return narrowed, found


def chain(*extra, domain="mine", scale=1.0):
    """Build a matmul, an operator of that domain, another matmul; and more nodes."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="first"),
        helper.make_node("Twice", ["h"], ["t"], domain=domain, name="unknown"),
        helper.make_node("MatMul", ["t", "v"], ["y"], name="second"),
        *extra,
    ]
    weights = {"w": np.eye(16, dtype=np.float32) * np.float32(scale), "v": floats(16, 16)}
    outputs = {"y": [3, 16]} | {node.output[0]: [3, 16] for node in extra if node.output[0] == "z"}
    proto = model(nodes, {"x": [3, 16]}, outputs, weights)
    proto.opset_import.append(helper.make_opsetid(domain, 1))
    return typed(proto)


def typed(proto):
    """Declare the operator's output: with an unknown type nothing becomes narrow."""
    proto.graph.value_info.append(helper.make_tensor_value_info("t", FLOAT, [3, 16]))
    return proto


def test_what_is_before_it_is_measured_and_what_is_behind_is_as_without_data():
    narrowed, found = build(chain(scale=30), [{"x": X}])
    assert found["first"]["measured"] == pytest.approx(30)
    assert found["first"]["decision"] == found["second"]["decision"] == "green, narrow"
    assert found["second"]["reason"] == (
        "not measured on the data: it depends on 'unknown' (mine.Twice), which cannot be run"
    )
    assert "measured" not in found["second"]
    assert constants(narrowed) == {"w": HALF, "v": HALF}
    assert count(narrowed) == 4


def test_a_value_before_it_that_is_too_large():
    narrowed, found = build(chain(scale=1e5 / 2), [{"x": X * 2}])
    assert found["first"]["decision"] == "red, wide"
    assert found["first"]["by"] == "data"
    assert constants(narrowed) == {"w": FLOAT, "v": HALF}


def test_a_branch_beside_it_is_measured():
    beside = helper.make_node("Mul", ["h", "h"], ["z"], name="beside")
    _, found = build(chain(beside, scale=300), [{"x": X}])
    assert found["beside"]["measured"] == pytest.approx(9e4)
    assert found["beside"]["decision"] == "red, wide"


def test_it_is_the_first_node():
    nodes = [
        helper.make_node("Twice", ["x"], ["t"], domain="mine", name="unknown"),
        helper.make_node("MatMul", ["t", "w"], ["y"], name="only"),
    ]
    proto = model(nodes, {"x": [3, 16]}, {"y": [3, 16]}, {"w": floats(16, 16)})
    proto.opset_import.append(helper.make_opsetid("mine", 1))
    _, found = build(typed(proto), [{"x": X}])
    assert found["only"]["decision"] == "green, narrow"
    assert "depends on 'unknown'" in found["only"]["reason"]


def branch(name, nodes, output):
    info = helper.make_tensor_value_info(output, FLOAT, [3, 16])
    return helper.make_graph(nodes, name, [], [info])


@pytest.mark.parametrize("where", ["branch", "function"])
def test_it_is_within(where):
    """No output of the If, or of the call, is available then; values before it are."""
    unknown = helper.make_node("Twice", ["h"], ["a"], domain="mine", name="unknown")
    functions = []
    if where == "branch":
        node = helper.make_node(
            "If",
            ["c"],
            ["t"],
            name="if",
            then_branch=branch("then", [unknown], "a"),
            else_branch=branch("else", [helper.make_node("Relu", ["h"], ["b"])], "b"),
        )
    else:
        node = helper.make_node("F", ["h"], ["t"], domain="own", name="call")
        functions.append(
            helper.make_function(
                "own",
                "F",
                ["h"],
                ["a"],
                [unknown],
                [helper.make_opsetid("", 20), helper.make_opsetid("mine", 1)],
            )
        )
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="first"),
        node,
        helper.make_node("MatMul", ["t", "w"], ["y"], name="second"),
    ]
    inputs = {"x": [3, 16]} | ({"c": []} if where == "branch" else {})
    proto = model(
        nodes, inputs, {"y": [3, 16]}, {"w": floats(16, 16)}, types={"c": TensorProto.BOOL}
    )
    proto.opset_import.extend([helper.make_opsetid("mine", 1), helper.make_opsetid("own", 1)])
    proto.functions.extend(functions)
    feeds = {"x": X} | ({"c": np.array(True)} if where == "branch" else {})
    narrowed, found = build(typed(proto), [feeds])
    assert found["first"]["measured"] > 0
    assert found["second"]["decision"] == "green, narrow"
    assert "Twice" in [node.op_type for node in nodes_of(narrowed.graph)] + [
        node.op_type for function in narrowed.functions for node in function.node
    ]
    onnx.checker.check_model(narrowed)


def test_a_tolerance_cannot_be_checked_then():
    with pytest.raises(NarrowpassError, match="Twice"):
        build(chain(), [{"x": X}], "fp16{tolerance=rel:1e-2}")


def test_a_branch_that_no_sample_enters_is_as_without_data():
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node(
            "If",
            ["c"],
            ["t"],
            then_branch=branch("then", [helper.make_node("Relu", ["h"], ["a"], "taken")], "a"),
            else_branch=branch("else", [helper.make_node("Neg", ["h"], ["b"], "never")], "b"),
        ),
        helper.make_node("MatMul", ["t", "w"], ["y"]),
    ]
    proto = model(
        nodes,
        {"x": [3, 16], "c": []},
        {"y": [3, 16]},
        {"w": floats(16, 16)},
        types={"c": TensorProto.BOOL},
    )
    narrowed, found = build(proto, [{"x": X, "c": np.array(True)}])
    assert found["taken"]["measured"] >= 0
    assert found["never"]["decision"] == "gray, narrow"
    assert "no sample enters" in found["never"]["reason"]
    assert count(narrowed) == 2
