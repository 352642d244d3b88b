"""MatMulInteger of two computed operands: equal to exact integers."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from xnn_kit import compile_model

KINDS = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8}
RNG = np.random.default_rng(8)


def model_of(kinds, zeros, *, cast):
    """Build Transpose(b), MatMulInteger and a Cast, with constant or computed zero points."""
    names, constants, inputs = ["a", "t"], [], []
    for name, kind in zip("ab", kinds, strict=True):
        inputs.append(helper.make_tensor_value_info(name, KINDS[kind], ["N", "R" + name, "K"]))
    for name, kind, zero in zip(("az", "bz"), kinds, zeros, strict=True):
        if zero == "input":
            inputs.append(helper.make_tensor_value_info(name, KINDS[kind], []))
        elif zero is not None:
            constants.append(numpy_helper.from_array(np.asarray(zero, kind), name))
        names.append("" if zero is None else name)
    nodes = [
        helper.make_node("Transpose", ["b"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMulInteger", names, ["i" if cast else "y"]),
    ]
    if cast:
        nodes.append(helper.make_node("Cast", ["i"], ["y"], to=TensorProto.FLOAT))
    kind = TensorProto.FLOAT if cast else TensorProto.INT32
    output = helper.make_tensor_value_info("y", kind, ["N", "Ra", "Rb"])
    graph = helper.make_graph(nodes, "g", inputs, [output], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def bytes_of(kind, *shape):
    return RNG.integers(0, 256, shape).astype(np.uint8).view(kind)


def exact(feeds, zeros):
    given = [
        feeds[name].astype(np.int64) - int(feeds.get(f"{name}z", 0 if zero is None else zero))
        for name, zero in zip("ab", [0 if z == "input" else z for z in zeros], strict=True)
    ]
    return given[0] @ given[1].transpose(0, 2, 1)


def feeds_of(kinds, zeros, depth):
    feeds = {"a": bytes_of(kinds[0], 2, 5, depth), "b": bytes_of(kinds[1], 2, 7, depth)}
    for name, kind, zero in zip(("az", "bz"), kinds, zeros, strict=True):
        if zero == "input":
            feeds[name] = np.asarray(100, kind)
    return feeds


@pytest.mark.parametrize("kinds", [("uint8", "uint8"), ("uint8", "int8"), ("int8", "int8")])
@pytest.mark.parametrize("zeros", [(None, None), (3, 120), ("input", None), ("input", "input")])
@pytest.mark.parametrize("depth", [1, 64, 258])
def test_accumulators_that_become_floats_are_exact(kinds, zeros, depth):
    feeds = feeds_of(kinds, zeros, depth)
    with compile_model(model_of(kinds, zeros, cast=True)) as program:
        assert all(plan.partition is not None for plan in program.explain())
        got = program.run(feeds)["y"]
    np.testing.assert_array_equal(got, exact(feeds, zeros))


@pytest.mark.parametrize("depth", [64, 258, 259, 5000])
@pytest.mark.parametrize("kinds", [("uint8", "uint8"), ("int8", "uint8")])
def test_accumulators_that_stay_integers_are_exact(kinds, depth):
    """Natively where float32 has all of them, and in numpy where it does not."""
    model = model_of(kinds, (7, 250 if kinds[1] == "uint8" else -3), cast=False)
    for value in model.graph.input[:2]:
        value.type.tensor_type.shape.dim[2].dim_value = depth
    feeds = feeds_of(kinds, (7, 250), depth)
    with compile_model(model) as program:
        kernels = {plan.op_type: plan for plan in program.explain()}
        found = kernels["MatMulInteger"]
        assert (found.partition is not None) == (depth <= 258)
        assert "reference" not in found.kernel
        got = program.run(feeds)["y"]
    np.testing.assert_array_equal(got, exact(feeds, (7, 250)))


def test_zero_points_of_rows_are_numpy():
    constants = [numpy_helper.from_array(np.arange(5, dtype=np.uint8), "az")]
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["a", "b", "az"], ["y"])],
        "g",
        [
            helper.make_tensor_value_info("a", TensorProto.UINT8, [5, 40]),
            helper.make_tensor_value_info("b", TensorProto.UINT8, [40, 3]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.INT32, [5, 3])],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    feeds = {"a": bytes_of("uint8", 5, 40), "b": bytes_of("uint8", 40, 3)}
    with compile_model(model) as program:
        got = program.run(feeds)["y"]
    right = (feeds["a"].astype(int) - np.arange(5)[:, None]) @ feeds["b"].astype(int)
    np.testing.assert_array_equal(got, right)
