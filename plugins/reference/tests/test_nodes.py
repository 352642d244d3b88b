from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from narrowpass.errors import BackendError
from narrowpass_reference import NodeEvaluator

F32 = np.float32

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
main (float[n] x, bool c) => (float[n] y, float[k] z)
<float[1] w = {2}, int64[1] s = {-1}> {
    [times] a = Mul (x, w)
    b = Neg (a)
    z = Reshape (w, s)
    y = If (c) <
        then_branch = yes () => (float[n] t) <float[1] v = {7}> { t0 = Add (b, w) t = Add (t0, v) },
        else_branch = no () => (float[n] e) { e = Identity (b) }
    >
}"""


@pytest.fixture
def model(parse):
    return parse(TEXT)


def test_one_node(model):
    mul = NodeEvaluator([model.graph[0]], model)
    assert mul.inputs == ("x",)
    assert mul.outputs == ("a",)
    given = mul.run({"x": np.array([1, 2], F32), "unrelated": None})
    np.testing.assert_array_equal(given["a"], np.array([2, 4], F32), strict=True)


def test_some_nodes_and_the_values_that_their_subgraphs_read(model):
    nodes = list(model.graph)
    part = NodeEvaluator([nodes[1], nodes[3]], model)
    assert set(part.inputs) == {"a", "c"}
    assert part.outputs == ("b", "y")
    a = np.array([1, 2], F32)
    given = part.run({"a": a, "c": np.array(True)}, outputs=["y"])
    assert list(given) == ["y"]
    np.testing.assert_array_equal(given["y"], -a + 2 + 7)
    np.testing.assert_array_equal(part.run({"a": a, "c": np.array(False)})["y"], -a)
    alone = NodeEvaluator([nodes[3]], model)
    assert set(alone.inputs) == {"b", "c"}
    np.testing.assert_array_equal(alone.run({"b": a, "c": np.array(True)})["y"], a + 9)


def test_initializers_are_bound_without_a_copy_and_can_be_overridden(model):
    weight = np.array([2], F32)
    model.graph.initializers["w"].const_value = ir.tensor(weight, name="w")
    reshape = NodeEvaluator([model.graph[2]], model)
    assert reshape.inputs == ()
    assert np.shares_memory(reshape.run({})["z"], weight)
    other = np.zeros(4, F32)
    np.testing.assert_array_equal(reshape.run({"w": other})["z"], other)
    np.testing.assert_array_equal(reshape.run({})["z"], weight)


def test_errors(model):
    mul = NodeEvaluator([model.graph[0]], model)
    with pytest.raises(BackendError, match="no value for 'x'"):
        mul.run({})
    with pytest.raises(BackendError, match="none of the nodes computes 'b'"):
        mul.run({"x": np.zeros(1, F32)}, outputs=["b"])
    with pytest.raises(
        BackendError, match=r"node 'times' \(Mul\) failed in the reference evaluator"
    ):
        mul.run({"x": np.zeros(1, np.int64)})
    odd = ir.Node("", "MaxRoiPool", [], name="odd")
    with pytest.raises(BackendError, match=r"node 'odd' \(MaxRoiPool\) has no implementation"):
        NodeEvaluator([odd], model)


def test_functions_of_the_model(parse):
    model = parse(
        """<ir_version: 10, opset_import: ["" : 20, "my" : 1]>
        main (float[2] x) => (float[2] y) { y = my.twice (x) }
        <opset_import: ["" : 20], domain: "my"> twice (x) => (y) { y = Add (x, x) }"""
    )
    given = NodeEvaluator([model.graph[0]], model).run({"x": np.array([1, 2], F32)})
    assert given["y"].tolist() == [2, 4]
