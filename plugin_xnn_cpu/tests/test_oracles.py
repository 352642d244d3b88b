"""Where the oracle is code of this project: listed, counted, and nowhere else."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import numpy as np
import oracle_kit
import pytest
from onnx import TensorProto, helper
from oracle_kit import expected_outputs
from tolerances import ACCUMULATED, EXACT, ROUNDED, UNITS, tolerance_of
from xnn_kit import one_node

pytestmark = [pytest.mark.once, pytest.mark.anywhere]

PROJECT = {
    "test_random_graphs.py": (1, "models of all types, which no other implementation has"),
    "test_hostile.py": (1, "damaged models: both must refuse them, or agree"),
}
"""Uses of the reference backend by file, with the reason."""


def uses(source: str) -> int:
    """Count where a file compares with, or imports, the reference backend."""
    names = {"ReferenceBackend", "NodeEvaluator", "Recurrent"}
    count = 0
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module == "narrowpass.reference":
            count += bool(names & {alias.name for alias in node.names})
        elif isinstance(node, ast.keyword) and node.arg == "oracle":
            count += isinstance(node.value, ast.Constant) and node.value.value == "project"
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "attempt":
            count += any(getattr(each, "value", "") == "reference" for each in node.args)
    return count


def test_the_reference_backend_is_an_oracle_only_where_listed():
    here = Path(__file__).parent
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
