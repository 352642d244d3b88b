"""Where the oracle is code of this project: listed, counted, and nowhere else."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import oracle_kit
import pytest
from onnx import TensorProto, helper
from oracle_kit import expected_outputs
from tolerances import ACCUMULATED, EXACT, ROUNDED, UNITS, tolerance_of
from xnn_kit import feeds_for, one_node

pytestmark = pytest.mark.anywhere

PROJECT = {
    "test_random_models.py": (1, "models of all types, which no other implementation has"),
    "test_hostile.py": (1, "damaged models: both must refuse them, or agree"),
}
"""Uses of the reference backend by file, with the reason."""


def uses(source: str) -> int:
    """Count where a file compares with, or imports, the reference backend."""
    names = {"ReferenceBackend", "NodeEvaluator", "Recurrent"}
    count = 0
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module == "narrowpass_reference":
            count += bool(names & {alias.name for alias in node.names})
        elif isinstance(node, ast.keyword) and node.arg == "oracle":
            count += isinstance(node.value, ast.Constant) and node.value.value == "project"
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "attempt":
            count += any(getattr(each, "value", "") == "reference" for each in node.args)
    return count


def test_the_reference_backend_is_an_oracle_only_where_listed():
    here = Path(__file__).parents[1]
    found = Counter(
        {
            path.name: uses(path.read_text(encoding="utf-8"))
            for path in here.rglob("*.py")
            if path.name != "oracle_kit.py"
        }
    )
    assert +found == Counter({name: count for name, (count, _) in PROJECT.items()})
    assert all(reason for _, reason in PROJECT.values())


def test_a_model_that_onnxruntime_refuses_falls_to_the_evaluator_of_onnx(monkeypatch):
    pytest.importorskip("onnxruntime")
    node = helper.make_node("Cast", ["x"], ["n"], to=TensorProto.INT4, saturate=0)
    wide = helper.make_node("Cast", ["n"], ["y"], to=TensorProto.FLOAT)
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    graph = helper.make_graph([node, wide], "g", infos[:1], infos[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    feeds = {"x": np.float32([1, -3])}
    np.testing.assert_array_equal(expected_outputs(model, feeds)["y"], feeds["x"])
    with pytest.raises(Exception, match="saturate"):
        expected_outputs(model, feeds, "onnxruntime")
    monkeypatch.setattr(oracle_kit, "LACKING", {})
    with pytest.raises(Exception, match="saturate"):
        expected_outputs(model, feeds)


def test_tolerances_follow_the_operator():
    assert tolerance_of(one_node("Transpose", [[2, 3]], perm=[1, 0])) is EXACT
    assert tolerance_of(one_node("Add", [[2], [2]])) is ROUNDED
    assert tolerance_of(one_node("MatMul", [[2, 3], [3, 2]])) is ACCUMULATED


@pytest.mark.parametrize("kind", ["float32", "float16", "float64"])
def test_units_are_those_of_numpy(kind):
    assert UNITS[kind] == np.finfo(kind).eps / 2


WRONG = {
    "Softmax": one_node("Softmax", [[2, 3, 4]], opset=11),
    "LogSoftmax": one_node("LogSoftmax", [[2, 3, 4]], opset=11),
    "Hardmax": one_node("Hardmax", [[2, 3, 4]], opset=11),
    "LRN": one_node("LRN", [[1, 12, 3, 3]], size=5, alpha=0.3),
    "ConvTranspose": one_node(
        "ConvTranspose", [[1, 6, 5, 5], np.ones((6, 2, 3, 3), np.float32)], group=3
    ),
    "DequantizeLinear": one_node(
        "DequantizeLinear",
        [np.int8([1, 2]), np.array(0.5, np.float32), np.array(0, np.int8)],
        opset=13,
    ),
}


@pytest.mark.skipif(onnx.defs.onnx_opset_version() != 28, reason="onnx 1.23 is what is listed")
@pytest.mark.parametrize("op_type", oracle_kit.WRONG_IN_ONNX)
def test_the_evaluator_of_onnx_is_wrong_where_listed(op_type):
    pytest.importorskip("onnxruntime")
    model = WRONG[op_type]
    feeds = feeds_for(model)
    assert oracle_kit.is_wrong_in_onnx(model)
    (right,) = oracle_kit.run_onnxruntime(model, feeds).values()
    try:
        (wrong,) = oracle_kit.run_onnx(model, feeds).values()
    except (RuntimeError, ValueError, IndexError):
        return
    assert wrong.shape != right.shape or not np.allclose(wrong, right, rtol=1e-3, atol=1e-3)
