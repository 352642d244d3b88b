"""What passes that quantize learn of the backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.defs
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from xnn_kit import compile_model

from narrowpass import Accept
from narrowpass.runtime.quantization import NodeQuantization, Parameters
from narrowpass_ir.movement import DATA_MOVEMENT
from narrowpass_planning.weights.weight import Quantized, Weight
from narrowpass_xnn_cpu.backend import XnnCpuBackend
from narrowpass_xnn_cpu.native.problems.matmul import Matmul, PerToken
from narrowpass_xnn_cpu.native.problems.quantization import LEAST_WEIGHT, UnfitError
from narrowpass_xnn_cpu.native.xnnpack import matmul as xnn_matmul

SPEC = XnnCpuBackend().quantization_spec()
NAMES = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain}


def test_ranges_of_integers():
    assert (SPEC.weights.low, SPEC.weights.high) == (LEAST_WEIGHT, 127)
    assert (SPEC.activations.low, SPEC.activations.high) == (-128, 127)
    assert SPEC.smallest_scale == np.finfo(np.float32).tiny


def test_operators_are_those_of_onnx():
    assert SPEC.operators.keys() | SPEC.per_token.operators <= NAMES
    assert SPEC.operator("Softmax") is None


def test_bounds_of_scale_ratios():
    """The figures that XNNPACK asserts; 2^-12 for each scale is what PyTorch's presets do."""
    bounds = {name: SPEC.bound(name) for name in SPEC.bounded}
    assert all(0 < bound.low < 1 < bound.high for bound in bounds.values())
    assert bounds["Conv"].low == 2.0**-12 * 2.0**-12 / 256
    assert bounds["Conv"].high == 256
    assert (bounds["Add"].low, bounds["Mul"].low) == (1 / 1024, 1 / 65536)


def moving(op_type: str, rng: np.random.Generator) -> tuple[onnx.ModelProto, np.ndarray]:
    """Build a node of `DATA_MOVEMENT` between Q/DQ of one scale."""
    attributes: dict[str, Any] = {}
    shape = {"Squeeze": [2, 1, 6, 4]}.get(op_type, [2, 4, 6, 4])
    more: dict[str, np.ndarray] = {}
    integers = {
        "Expand": [[2, 4, 6, 4]],
        "Gather": [[1, 0]],
        "Pad": [[0, 0, 1, 1, 0, 0, 1, 1]],
        "Reshape": [[2, -1]],
        "Slice": [[1], [3], [2]],
        "Squeeze": [[1]],
        "Tile": [[1, 2, 1, 1]],
        "Unsqueeze": [[0]],
    }
    for index, array in enumerate(integers.get(op_type, [])):
        more[f"i{index}"] = np.array(array, np.int64)
    names = ["xf", *more]
    if op_type == "Resize":
        more["scales"] = np.float32([1, 1, 2, 2])
        names = ["xf", "", "scales"]
    attributes |= {
        "Concat": {"axis": 1},
        "DepthToSpace": {"blocksize": 2},
        "MaxPool": {"kernel_shape": [2, 2]},
        "SpaceToDepth": {"blocksize": 2},
        "Split": {"axis": 1, "num_outputs": 1},
    }.get(op_type, {})
    if op_type == "Concat":
        names = ["xf", "xf"]
    constants = {"s": np.float32(0.05), "z": np.int8(3), **more}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["xf"]),
        helper.make_node(op_type, names, ["m"], name="moved", **attributes),
        helper.make_node("QuantizeLinear", ["m", "s", "z"], ["p"]),
        helper.make_node("DequantizeLinear", ["p", "s", "z"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return model, rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("op_type", sorted(DATA_MOVEMENT - {"Upsample"}))
def test_data_movement_operators_move_bytes(op_type):
    """Upsample ended with operator set 9, before there were Q/DQ."""
    model, x = moving(op_type, np.random.default_rng(3))
    expected = ReferenceEvaluator(model).run(None, {"x": x})[0]
    with compile_model(model) as program:
        rows = {plan.node: plan for plan in program.explain()}
        np.testing.assert_array_equal(program.run({"x": x})["y"], expected)
    assert rows["moved"].dtype == "int8", rows["moved"]
    assert not rows["moved"].reason


def proposed(op_type: str, scales: dict[str, float]) -> tuple[onnx.ModelProto, NodeQuantization]:
    """Build a node between Q/DQ with the scales of x, y and a second operand w, and propose it.

    The second operand of a MatMul is a weight; other operators read it at run time.
    """
    binary = op_type in ("Add", "Mul")
    count = 2 if binary or op_type == "MatMul" else 1
    quantize = helper.make_node("QuantizeLinear", ["v", "sw", "z"], ["w"])
    second = [helper.make_node("DequantizeLinear", ["w", "sw", "z"], ["wf"])]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "sx", "z"], ["qx"]),
        helper.make_node("DequantizeLinear", ["qx", "sx", "z"], ["xf"]),
        *([quantize, *second] if binary else second if count == 2 else []),
        helper.make_node(op_type, ["xf", "wf"][:count], ["m"], name="asked"),
        helper.make_node("QuantizeLinear", ["m", "sy", "z"], ["p"]),
        helper.make_node("DequantizeLinear", ["p", "sy", "z"], ["y"]),
    ]
    constants = {"z": np.int8(0), **{f"s{name}": np.float32(s) for name, s in scales.items()}}
    if op_type == "MatMul":
        constants["w"] = np.random.default_rng(5).integers(-127, 128, (8, 8)).astype(np.int8)
    x, v, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [8, 8]) for name in "xvy")
    initializers = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    inputs = [x, v] if binary else [x]
    graph = helper.make_graph(nodes, "g", inputs, [y], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    operands = [Parameters(scales[name], 0) for name in ("xw" if binary else "x")]
    weights = np.float32(scales["w"]) if op_type == "MatMul" else None
    return model, NodeQuantization(tuple(operands), Parameters(scales["y"], 0), weights)


@pytest.mark.parametrize("op_type", ["Add", "MatMul", "Mul", "Sigmoid", "Softmax", "Transpose"])
@pytest.mark.parametrize("output", [1e-7, 1e-5, 1e-3, 0.05, 1.0, 1e4, 1e9])
def test_answers_on_proposals_agree_with_compilation(op_type, output):
    """`supports_quantized` accepts what `explain` shows in int8 afterwards, and nothing else."""
    same = op_type == "Transpose"
    scales = {"x": 0.05, "w": 0.01, "y": 0.05 if same else output}
    model, proposal = proposed(op_type, scales)
    node = next(n for n in ir.from_proto(model).graph if n.name == "asked")
    backend = XnnCpuBackend()
    answer = backend.supports_quantized(node, proposal)
    with compile_model(model) as program:
        (plan,) = (plan for plan in program.explain() if plan.node == "asked")
    requantized = plan.dtype == "int8" and " in float32: " not in plan.kernel
    assert isinstance(answer, Accept) == requantized, (answer, plan)


def product(matrix: np.ndarray, scale: float, zero: int = 0, *, rows: bool = False) -> None:
    stored = Quantized(
        Weight.of(matrix), Weight.of(np.float32([scale])), Weight.of(np.int8([zero])), 0
    )
    xnn_matmul.create(Matmul(stored, None, operand=PerToken() if rows else None))


@pytest.mark.parametrize("rows", [False, True], ids=["weights", "rows too"])
def test_what_is_within_them_is_taken_and_what_is_not_is_not(rows):
    low, high = SPEC.weights.low, SPEC.weights.high
    matrix, smallest = np.full((3, 4), low, np.int8), SPEC.smallest_scale
    matrix[0] = high
    product(matrix, smallest, rows=rows)
    for changed in (
        (matrix, float(np.nextafter(np.float32(smallest), np.float32(0)))),
        (matrix, np.inf),
        (matrix, 1.0, 1),  # XNNPACK's own operators take no zero points
    ):
        with pytest.raises(UnfitError):
            product(*changed, rows=rows)


def test_the_most_channels_of_rows():
    most = SPEC.per_token.max_depth
    assert most is not None
    assert most * 255 * 128 < 2**31 <= (most + 1) * 255 * 128
    product(np.ones((1, most), np.int8), 1.0, rows=True)
    with pytest.raises(UnfitError, match="32 bits"):
        product(np.ones((1, most + 1), np.int8), 1.0, rows=True)
