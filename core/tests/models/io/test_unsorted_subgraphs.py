"""Files in which a subgraph reads what a later node computes, as onnxruntime's quantizers write."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper

from narrowpass_ir.errors import VerificationError
from narrowpass_ir.io import load_model


def model_of(*, cycle):
    """Create an If whose branches read the result of a node that stands behind it."""
    branches = {}
    for name, operator in (("then_branch", "Neg"), ("else_branch", "Abs")):
        node = helper.make_node(operator, ["late"], [name])
        output = helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])
        branches[name] = helper.make_graph([node], name, [], [output])
    nodes = [
        helper.make_node("If", ["c"], ["y"], "if", **branches),
        helper.make_node("Exp", ["y" if cycle else "x"], ["late"], "exp"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [2]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def test_nodes_that_a_subgraph_reads_are_put_before_it(tmp_path):
    onnx.save(model_of(cycle=False), tmp_path / "m.onnx")
    model = load_model(tmp_path / "m.onnx")
    assert [node.name for node in model.graph] == ["exp", "if"]


def test_a_cycle_through_a_subgraph_stays_an_error(tmp_path):
    onnx.save(model_of(cycle=True), tmp_path / "m.onnx")
    with pytest.raises(VerificationError, match="used before"):
        load_model(tmp_path / "m.onnx")
