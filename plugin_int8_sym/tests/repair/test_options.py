"""The options of repair-quantized, and what a target that takes zero points gets."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from narrowpass import Backend, Context
from narrowpass.runtime.quantization import IntegerRange, QuantizationSpec
from narrowpass_int8_sym.repair_quantized import RepairQuantized

RNG = np.random.default_rng(4)


class Target(Backend):
    """A target that limits weights, and runs nothing."""

    name = "target"

    def __init__(self, low: int, *, zero_points: bool = False) -> None:
        self._spec = QuantizationSpec(
            weights=IntegerRange("int8", low, 127), weight_zero_points=zero_points
        )

    def supports(self, node: ir.Node) -> Any:
        """Nobody asks."""
        raise NotImplementedError

    def compile(self, bundle: Any, options: Any) -> Any:
        """Nobody asks."""
        raise NotImplementedError

    def quantization_spec(self) -> QuantizationSpec:
        """Return the decisions on weights."""
        return self._spec


def linear(weight: np.ndarray, zero: np.ndarray, count: int = 1) -> onnx.ModelProto:
    """Build a chain of MatMul between Q/DQ, by one weight [C, C] with a scale for each column."""
    size = weight.shape[1]
    scales = (0.01 * (1 + np.arange(size) / size)).astype(np.float32)
    constants = {
        "s": np.float32(0.02),
        "z": np.int8(3),
        "w": weight,
        "ws": scales,
        "wz": np.broadcast_to(zero, size).astype(weight.dtype),
    }
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q0"])]
    for index in range(count):
        nodes += [
            helper.make_node("DequantizeLinear", [f"q{index}", "s", "z"], [f"d{index}"]),
            helper.make_node("DequantizeLinear", ["w", "ws", "wz"], [f"w{index}"], axis=1),
            helper.make_node("MatMul", [f"d{index}", f"w{index}"], [f"y{index}"], f"mm{index}"),
            helper.make_node("QuantizeLinear", [f"y{index}", "s", "z"], [f"q{index + 1}"]),
        ]
    nodes.append(helper.make_node("DequantizeLinear", [f"q{count}", "s", "z"], ["y"]))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, len(weight)])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, size])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def repaired(
    model: onnx.ModelProto, target: Target, caplog: pytest.LogCaptureFixture, **options: Any
) -> tuple[onnx.ModelProto, Context, list[str]]:
    """Run the pass; return the model, what was reported, and the warnings."""
    ctx = Context(target=target)
    caplog.clear()
    with caplog.at_level("WARNING"):
        result = RepairQuantized(**options).run(ir.from_proto(model), ctx)
    return ir.to_proto(result.model), ctx, [record.getMessage() for record in caplog.records]


def outputs(model: onnx.ModelProto) -> np.ndarray:
    x = (RNG.integers(-100, 100, (2, 6)) * 0.02).astype(np.float32)
    return ReferenceEvaluator(model).run(None, {"x": x})[0]


def with_least(shape: tuple[int, int] = (6, 6)) -> np.ndarray:
    """Return weights of an observer with quant_min=-128: one of each channel is -128."""
    weight = RNG.integers(-127, 128, shape).astype(np.int8)
    weight[0], weight[1] = -128, 5
    return weight


def test_weights_of_minus_128_stay_where_the_target_takes_them(caplog):
    model = linear(with_least(), np.int8(0))
    _, ctx, warnings = repaired(model, Target(-128), caplog)
    assert [each.decision for each in ctx.decisions if each.node == "mm0"] == ["int8"]
    assert not warnings


def test_weights_of_minus_128_are_clamped_on_request_and_the_report_says_how_far(caplog):
    weight = with_least()
    model = linear(weight, np.int8(0))
    plain, ctx, warnings = repaired(model, Target(-127), caplog)
    assert "clamp-weights=true" in warnings[0]
    assert [each.decision for each in ctx.decisions if each.node == "mm0"] == ["float"]
    np.testing.assert_array_equal(outputs(plain).shape, (2, 6))
    rewritten, ctx, warnings = repaired(model, Target(-127), caplog, clamp_weights=True)
    assert not warnings
    assert [each.decision for each in ctx.decisions if each.node == "mm0"] == ["int8"]
    (clamped,) = [each.reason for each in ctx.decisions if "clamped" in each.reason]
    assert clamped.startswith("6 of 36 integers of its weight are clamped to [-127, 127]")
    stored = [numpy_helper.to_array(item) for item in rewritten.graph.initializer]
    (integers,) = [array for array in stored if array.shape == (6, 6)]
    np.testing.assert_array_equal(integers, np.maximum(weight, -127))


@pytest.mark.parametrize("zero", [np.uint8(100), np.arange(60, 66, dtype=np.uint8)])
def test_unsigned_weights_keep_their_numbers_where_the_target_takes_zero_points(zero, caplog):
    weight = RNG.integers(0, 256, (6, 6)).astype(np.uint8)
    weight[0], weight[1] = 255, 0
    model = linear(weight, zero)
    rewritten, ctx, warnings = repaired(model, Target(-128, zero_points=True), caplog)
    assert not warnings
    assert [each.decision for each in ctx.decisions if each.node == "mm0"] == ["int8"]
    x = (RNG.integers(-100, 100, (2, 6)) * 0.02).astype(np.float32)
    got, right = (ReferenceEvaluator(each).run(None, {"x": x})[0] for each in (rewritten, model))
    np.testing.assert_array_equal(got, right)
    kinds = {item.data_type for item in rewritten.graph.initializer if list(item.dims) == [6, 6]}
    assert kinds == {TensorProto.INT8}


def test_one_warning_names_a_reason_once_and_counts_the_operators(caplog):
    model = linear(with_least(), np.int8(0), count=5)
    _, ctx, warnings = repaired(model, Target(-127), caplog)
    assert len(warnings) == 1
    assert warnings[0].count("integer of the weight is -128") == 1
    assert "4 more" in warnings[0]
    assert ctx.counters["left"] == 5


def test_a_model_that_is_not_quantized_is_left_alone(caplog):
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    ctx = Context(target=Target(-127))
    result = RepairQuantized().run(ir.from_proto(model), ctx)
    assert not result.modified
    assert not ctx.decisions
    assert not caplog.records


def test_integers_at_run_time_are_kept_on_request(caplog):
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("MatMulInteger", ["q", "w", "z"], ["i"]),
        helper.make_node("Cast", ["i"], ["c"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["s", "ws"], ["m"]),
        helper.make_node("Mul", ["c", "m"], ["y"]),
    ]
    constants = {"w": RNG.integers(-127, 128, (6, 5)).astype(np.int8), "ws": np.float32(0.1)}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 5])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    kept, _, warnings = repaired(model, Target(-127), caplog, dynamic="keep")
    assert [node.op_type for node in kept.graph.node] == [node.op_type for node in nodes]
    assert not warnings
    rows, _, _ = repaired(model, Target(-127), caplog)
    assert "MatMul" in [node.op_type for node in rows.graph.node]
