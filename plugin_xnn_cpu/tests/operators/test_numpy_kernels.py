"""Elementwise operators, reductions, normalizations and losses in numpy, against onnx's evaluator.

Of float64, of what has no known rank, along computed axes, in training mode.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from xnn_kit import check, compile_model, one_node

RNG = np.random.default_rng(13)

UNARY = {
    "Acos": 18,
    "Acosh": 18,
    "Asin": 18,
    "Asinh": 18,
    "Atan": 18,
    "Atanh": 18,
    "Ceil": 18,
    "Celu": 12,
    "Cos": 18,
    "Cosh": 18,
    "Elu": 18,
    "Floor": 18,
    "HardSigmoid": 18,
    "HardSwish": 18,
    "LeakyRelu": 18,
    "Mish": 18,
    "Reciprocal": 18,
    "Relu": 18,
    "Round": 18,
    "Selu": 18,
    "Shrink": 18,
    "Sigmoid": 18,
    "Sin": 18,
    "Sinh": 18,
    "Softplus": 18,
    "Softsign": 18,
    "Tan": 18,
    "ThresholdedRelu": 18,
}


def numpy_alone(model, feeds, tolerance, **comparison):
    """Compare with the oracle; numpy ran the node called 'node'."""
    program = check(model, feeds, native=None, tolerance=tolerance, **comparison)
    (plan,) = (plan for plan in program.explain() if plan.node == "node")
    assert plan.kernel.startswith("numpy"), plan


def of_unknown_rank(kind, opset, **attributes):
    """Build a model whose node reads what has as many axes as a feed has elements."""
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["r"]),
        helper.make_node(kind, ["r"], ["n"], name="node", **attributes),
        helper.make_node("Reshape", ["n", "flat"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["a"]),
            helper.make_tensor_value_info("shape", TensorProto.INT64, ["b"]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["c"])],
        [onnx.numpy_helper.from_array(np.array([-1]), "flat")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


@pytest.mark.parametrize("kind", UNARY)
def test_functions_of_unknown_rank(kind):
    x = RNG.uniform(1, 3, 24) if kind == "Acosh" else RNG.uniform(-0.99, 0.99, 24)
    feeds = {"x": x.astype(np.float32), "shape": np.array([2, 3, 4])}
    numpy_alone(of_unknown_rank(kind, UNARY[kind]), feeds, 1e-6)


@pytest.mark.parametrize("kind", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("opset", [11, 13])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_softmax_of_unknown_rank(kind, opset, axis):
    feeds = {"x": RNG.standard_normal(24).astype(np.float32), "shape": np.array([2, 3, 4])}
    numpy_alone(of_unknown_rank(kind, opset, axis=axis), feeds, 1e-6)


@pytest.mark.parametrize("kind", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("opset", [11, 13])
def test_softmax_of_nothing(kind, opset):
    model = one_node(kind, [np.zeros((2, 0), np.float32)], opset, axis=1)
    check(model, {}, native=None, oracle="onnxruntime")  # onnx's evaluator fails for LogSoftmax


@pytest.mark.parametrize("order", [1, 2])
def test_norms_of_unknown_rank(order):
    x = RNG.standard_normal(24).astype(np.float32)
    x[:4] = 0
    feeds = {"x": x, "shape": np.array([2, 3, 4])}
    # onnx's evaluator divides by the 2-norm whatever the order is.
    oracle = "onnxruntime" if order == 1 else None
    numpy_alone(of_unknown_rank("LpNormalization", 18, p=order), feeds, 1e-6, oracle=oracle)


@pytest.mark.parametrize(
    "kind", ["Mean", "L1", "L2", "LogSum", "LogSumExp", "SumSquare", "Sum", "Prod", "Max", "Min"]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("axes", [[0], [-1], [0, 2], []])
@pytest.mark.parametrize("nothing", [0, 1])
def test_reductions_along_computed_axes(kind, dtype, axes, nothing):
    code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    attributes = {"keepdims": 1, "noop_with_empty_axes": nothing}
    graph = helper.make_graph(
        [helper.make_node(f"Reduce{kind}", ["x", "axes"], ["y"], name="node", **attributes)],
        "g",
        [
            helper.make_tensor_value_info("x", code, ["a", "b", "c"]),
            helper.make_tensor_value_info("axes", TensorProto.INT64, ["d"]),
        ],
        [helper.make_tensor_value_info("y", code, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    x = RNG.uniform(0.5, 1.5, (2, 3, 4)).astype(dtype)
    if not axes and nothing and kind.startswith("Log"):
        pytest.skip("the evaluator leaves the logarithm out")
    numpy_alone(model, {"x": x, "axes": np.array(axes, np.int64)}, 1e-6)


def node_model(kind, arrays, outputs, opset, **attributes):
    """Build a model of one node whose inputs are fed; ranks are known."""
    inputs = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(item.dtype), list(item.shape)
        )
        for name, item in arrays.items()
    ]
    names = [f"y{index}" for index in range(outputs)]
    graph = helper.make_graph(
        [helper.make_node(kind, list(arrays), names, name="node", **attributes)],
        "g",
        inputs,
        [onnx.ValueInfoProto(name=name) for name in names],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    return onnx.shape_inference.infer_shapes(model)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignored", [None, 2, -5])
@pytest.mark.parametrize("kind", ["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"])
def test_losses(kind, ignored, weighted, reduction):
    scores = RNG.standard_normal((3, 5, 4)).astype(np.float32)
    target = RNG.integers(0, 5, (3, 4))
    if ignored is not None:
        target[0, :2] = ignored
    arrays = {"x": scores, "t": target}
    if weighted:
        arrays["w"] = RNG.uniform(0.5, 2, 5).astype(np.float32)
    attributes = {"reduction": reduction}
    if ignored is not None:
        attributes["ignore_index"] = ignored
    outputs = 2 if kind.startswith("Soft") else 1
    # Scores around 1 cancel in their mean: the error is that of their size.
    numpy_alone(node_model(kind, arrays, outputs, 13, **attributes), arrays, 1e-6, least=1.0)


def test_a_class_out_of_range_is_an_error_that_names_the_node():
    from narrowpass.errors import BackendError

    arrays = {"x": np.zeros((1, 3), np.float32), "t": np.array([3])}
    program = compile_model(node_model("NegativeLogLikelihoodLoss", arrays, 1, 13))
    with pytest.raises(BackendError, match=r"'node'.*out of range of 3 classes"):
        program.run(arrays)


@pytest.mark.parametrize("axis", [1, -1])
def test_layer_normalization_with_its_mean(axis):
    shape = (3, 4, 5)
    arrays = {"x": RNG.standard_normal(shape).astype(np.float32)}
    arrays |= {name: RNG.standard_normal(shape[axis:]).astype(np.float32) for name in "sb"}
    numpy_alone(node_model("LayerNormalization", arrays, 3, 17, axis=axis), arrays, 1e-6)


def test_batch_normalization_in_training_mode():
    arrays = {"x": RNG.standard_normal((3, 4, 5)).astype(np.float32)}
    arrays |= {name: RNG.uniform(0.5, 2, 4).astype(np.float32) for name in "sbmv"}
    model = node_model("BatchNormalization", arrays, 3, 15, training_mode=1, momentum=0.7)
    numpy_alone(model, arrays, 1e-6)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("ratio", [0.0, 0.25, 0.75])
def test_dropout_with_its_mask(training, ratio):
    arrays = {
        "x": RNG.standard_normal((30, 4)).astype(np.float32),
        "r": np.array(ratio, np.float32),
        "t": np.array(training),
    }
    # Which elements are dropped is up to an implementation: here those of onnx's evaluator.
    oracle = "onnx" if training and ratio else None
    numpy_alone(node_model("Dropout", arrays, 2, 13, seed=3), arrays, 1e-6, oracle=oracle)


@pytest.mark.parametrize(
    "target", ["FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "INT4", "UINT4"]
)
@pytest.mark.parametrize("saturate", [0, 1])
def test_casts_to_narrow_types(target, saturate):
    code = getattr(TensorProto, target)
    x = np.float32([0, -0.0, 1.5, -1.5, 3, 7])
    if target.startswith("FLOAT8"):
        x = np.concatenate([x, np.float32([1e6, -1e6, np.inf, -np.inf, np.nan, 1e-9])])
    elif target.startswith("U"):
        x = np.abs(x)
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["x"], ["n"], name="node", to=code, saturate=saturate),
            helper.make_node("Cast", ["n"], ["y"], to=TensorProto.FLOAT),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["a"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["a"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    # onnxruntime rounds to INT4; onnx's evaluator truncates, as Cast does to wider integers.
    numpy_alone(model, {"x": x}, 0, oracle=None if target.startswith("FLOAT8") else "onnx")
