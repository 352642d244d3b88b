"""Calls of functions, and operators that ONNX infers no shape of, against onnx and onnxruntime.

Small integers: results are exact.
"""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnxruntime_kit import session_of
from xnn_kit import compile_model


def agree(model, feeds):
    session = session_of(model, optimized=True)
    with compile_model(model) as program:
        assert not [plan for plan in program.explain() if plan.reason]
        got = program.run(feeds)
    for output, value in zip(session.get_outputs(), session.run(None, feeds), strict=True):
        assert got[output.name].dtype == value.dtype
        np.testing.assert_array_equal(got[output.name], value)


def floats(name, *shape):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


@pytest.mark.parametrize("calls", [1, 2])
def test_a_function_of_another_operator_set_keeps_its_meaning(calls):
    """Axes of ReduceMax are an attribute in set 17 and an input in set 18."""
    body = [
        helper.make_node("ReduceMax", ["a"], ["m"], axes=[1], keepdims=1),
        helper.make_node("Sub", ["a", "m"], ["b"]),
    ]
    imports = [helper.make_opsetid("", 17)]
    function = helper.make_function("local", "Below", ["a"], ["b"], body, imports)
    nodes = [
        helper.make_node("Below", ["x"], ["y0"], domain="local"),
        helper.make_node("Below", ["y0"], ["y1"], domain="local"),
    ][:calls]
    axes = numpy_helper.from_array(np.array([0], np.int64), "axes")
    nodes.append(helper.make_node("ReduceMax", [f"y{calls - 1}", "axes"], ["z"], keepdims=0))
    graph = helper.make_graph(nodes, "g", [floats("x", "n", 4)], [floats("z", 4)], [axes])
    model = helper.make_model(
        graph,
        functions=[function],
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("local", 1)],
        ir_version=8,
    )
    for rows in (1, 3):
        x = np.random.default_rng(rows).integers(-9, 10, (rows, 4)).astype(np.float32)
        # onnxruntime refuses operators of two versions that differ.
        (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
        with compile_model(model) as program:
            assert not [plan for plan in program.explain() if plan.reason]
            np.testing.assert_array_equal(program.run({"x": x})["z"], expected)


def test_readers_of_an_ensemble_of_trees_have_a_rank():
    """Its output has no shape in the file, as lightgbm's converter writes it."""
    tree = {
        "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [1, 0, 0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"], "nodes_values": [0.5, 0.0, 0.0],
        "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0],
        "target_treeids": [0, 0], "target_nodeids": [1, 2], "target_ids": [0, 0],
        "target_weights": [2.0, -3.0], "n_targets": 1,
    }  # fmt: skip
    nodes = [
        helper.make_node("TreeEnsembleRegressor", ["x"], ["t"], domain="ai.onnx.ml", **tree),
        helper.make_node("Neg", ["t"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [floats("x", "n", 2)], [floats("y", "n", 1)])
    imports = [helper.make_opsetid("", 8), helper.make_opsetid("ai.onnx.ml", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=6)
    agree(model, {"x": np.array([[0, 0.5], [1, 0.75], [2, -4]], np.float32)})


@pytest.mark.parametrize("shape", [(5, 1), (2, 3, 1), (1,), (0, 1)])
def test_gather_nd_by_the_first_axis_is_native(shape):
    indices = np.random.default_rng(0).integers(-4, 4, shape)
    infos = [floats("x", 4, 3), helper.make_tensor_value_info("i", TensorProto.INT64, shape)]
    node = helper.make_node("GatherND", ["x", "i"], ["y"], name="node")
    graph = helper.make_graph([node], "g", infos, [floats("y", *shape[:-1], 3)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    feeds = {"x": np.arange(12, dtype=np.float32).reshape(4, 3), "i": indices}
    agree(model, feeds)
    with compile_model(model) as program:
        assert [plan.kernel for plan in program.explain() if "GatherND" in plan.kernel] == []


@pytest.mark.parametrize("batch", [0, 1])
def test_gather_nd_of_several_axes_stays(batch):
    indices = np.array([[[0, 1]], [[1, -1]]]) if not batch else np.array([[[1]], [[-1]]])
    infos = [floats("x", 2, 3, 2)]
    infos.append(helper.make_tensor_value_info("i", TensorProto.INT64, indices.shape))
    node = helper.make_node("GatherND", ["x", "i"], ["y"], name="node", batch_dims=batch)
    graph = helper.make_graph([node], "g", infos, [floats("y", 2, 1, 2)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    agree(model, {"x": np.arange(12, dtype=np.float32).reshape(2, 3, 2), "i": indices})
