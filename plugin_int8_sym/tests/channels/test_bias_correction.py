"""Bias correction restores the mean of each output channel."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from equalize_kit import node, numbers, shaped
from int8_kit import model
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from narrowpass import Samples
from narrowpass_int8_sym.bias_correction import mean_shifts, own_bias, subtract_from_bias
from narrowpass_int8_sym.weighted_nodes import WeightedNode, weighted_node_of
from narrowpass_int8_sym.weights import quantized

FEEDS_4D = [{"x": np.abs(numbers(1, 4, 7, 7, seed=n)) + 0.5} for n in range(3)]
FEEDS_2D = [{"x": np.abs(numbers(5, 4, seed=n)) + 0.5} for n in range(3)]


def weighted_nodes(ir_model):
    nodes = enumerate(ir_model.graph.all_nodes())
    return {
        n: found for n, each in nodes if isinstance(found := weighted_node_of(each), WeightedNode)
    }


def with_rounded_weights(proto, per_channel):
    """Return a model with dequantized weights."""
    copied = onnx.ModelProto()
    copied.CopyFrom(proto)
    tensors = {tensor.name: tensor for tensor in copied.graph.initializer}
    for weighted in weighted_nodes(ir.from_proto(proto)).values():
        weight = numpy_helper.to_array(tensors[weighted.weight.name])
        axis = weighted.axis if per_channel else None
        whole, scales = quantized(ir.Tensor(weight), axis, "w")
        shape = [-1 if number == axis else 1 for number in range(weight.ndim)]
        wide = whole.numpy() * (scales if axis is None else scales.reshape(shape))
        tensors[weighted.weight.name].CopyFrom(
            numpy_helper.from_array(wide.astype(np.float32), weighted.weight.name)
        )
    return copied


def channel_means(proto, feeds, axis):
    found = [ReferenceEvaluator(proto).run(None, feed)[0] for feed in feeds]
    rows = [np.moveaxis(array, axis, -1).reshape(-1, array.shape[axis]) for array in found]
    return np.concatenate(rows).astype(np.float64).mean(axis=0)


def conv(**attributes):
    groups = attributes.get("group", 1)
    constants = {"w": numbers(6, 4 // groups, 3, 3), "b": numbers(6, seed=1)}
    return [node("Conv", ["x", "w", "b"], "y", **attributes)], constants, FEEDS_4D, 1


def gemm(bias, **attributes):
    weight = numbers(6, 4) if attributes.get("transB") else numbers(4, 6)
    constants = {"w": weight} | ({} if bias is None else {"b": numbers(*bias, seed=1)})
    return [node("Gemm", ["x", *constants], "y", **attributes)], constants, FEEDS_2D, -1


def matmul(first):
    constants = {"w": numbers(4, 6), "b": numbers(6, seed=1)}
    inputs = ["b", "h"] if first else ["h", "b"]
    return [node("MatMul", ["x", "w"], "h"), node("Add", inputs, "y")], constants, FEEDS_2D, -1


def transposed():
    constants = {"w": numbers(4, 3, 3, 3)}
    nodes = [node("ConvTranspose", ["x", "w"], "y", strides=[2, 2])]
    return nodes, constants, FEEDS_4D, 1


CASES = {
    "Conv": conv(),
    "borders and strides": conv(pads=[2, 1, 2, 1], strides=[2, 2]),
    "dilations": conv(pads=[2, 2, 2, 2], dilations=[2, 2]),
    "groups": conv(group=2),
    "ConvTranspose": transposed(),
    "Gemm": gemm((6,)),
    "Gemm of factors": gemm((1, 6), alpha=0.5, beta=2.0, transB=1),
    "Gemm and a number": gemm((1,)),
    "Gemm alone": gemm(None, beta=0.5),
    "MatMul": matmul(first=False),
    "MatMul after": matmul(first=True),
}


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_means_are_right_again(case, per_channel):
    nodes, constants, feeds, axis = case
    dims = {"x": list(feeds[0]["x"].shape)}
    proto = shaped(model(nodes, dims, {"y": None}, constants))
    ir_model = ir.from_proto(proto)
    text = ir.to_proto(ir_model).SerializeToString()
    shifts = mean_shifts(
        ir_model,
        weighted_nodes(ir_model),
        Samples("data", lambda: feeds),
        None,
        per_channel=per_channel,
    )
    assert ir.to_proto(ir_model).SerializeToString() == text
    for number, weighted in weighted_nodes(ir_model).items():
        subtract_from_bias(weighted, own_bias(ir_model, weighted), shifts[number])
    corrected = ir.to_proto(ir_model)
    onnx.checker.check_model(corrected, full_check=True)
    right = channel_means(proto, feeds, axis)
    wrong = channel_means(with_rounded_weights(proto, per_channel), feeds, axis)
    got = channel_means(with_rounded_weights(corrected, per_channel), feeds, axis)
    moved = np.abs(wrong - right).max()
    assert moved > 1e-4
    # What is left is rounding of float32 accumulators.
    assert np.abs(got - right).max() < 1e-3 * moved + 1e-6 * np.abs(right).max()


UNFIT = {
    "no bias": [node("MatMul", ["x", "w"], "h"), node("Relu", ["h"], "y")],
    "another sum": [node("MatMul", ["x", "w"], "h"), node("Add", ["h", "x2"], "y")],
    "a bias that is computed": [node("Neg", ["b"], "c"), node("Gemm", ["x", "w", "c"], "y")],
}


@pytest.mark.parametrize("nodes", UNFIT.values(), ids=UNFIT)
def test_matmuls_without_a_bias_of_their_own_are_left(nodes):
    constants = {"w": numbers(4, 6)}
    inputs = {"x": [5, 4], "x2": [5, 6], "b": [6]}
    proto = model(nodes, inputs, {"y": None}, constants)
    ir_model = ir.from_proto(proto)
    text = ir.to_proto(ir_model).SerializeToString()
    (weighted,) = weighted_nodes(ir_model).values()
    assert isinstance(own_bias(ir_model, weighted), str)
    assert ir.to_proto(ir_model).SerializeToString() == text


def test_a_bias_of_two_matmuls_is_copied():
    nodes = [node("Gemm", ["x", "w", "b"], "y"), node("Gemm", ["x", "v", "b"], "z")]
    constants = {"w": numbers(4, 6), "v": numbers(4, 6, seed=1), "b": numbers(6, seed=2)}
    ir_model = ir.from_proto(model(nodes, {"x": [5, 4]}, {"y": None, "z": None}, constants))
    first, second = weighted_nodes(ir_model).values()
    subtract_from_bias(first, own_bias(ir_model, first), np.ones(6))
    assert np.array_equal(second.node.inputs[2].const_value.numpy(), constants["b"])
    assert np.array_equal(first.node.inputs[2].const_value.numpy(), constants["b"] - 1)
