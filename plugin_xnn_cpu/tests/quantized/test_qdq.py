"""Operators between DequantizeLinear and QuantizeLinear, each computed with bytes.

The oracle is onnx's evaluator on the model as it is, which computes with floats between. Int32
accumulators are exact here and rounded there, and scales are multiplied in another order, so that
ties may round the other way: at most one step, on few elements. Lookup tables, data movement and
conversions are equal.
"""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto
from qdq_graph import QdqGraph
from qdq_kit import off_by
from xnn_kit import compile_model

from narrowpass.errors import BackendError

UNSIGNED = pytest.mark.parametrize("unsigned", [False, True], ids=["int8", "uint8"])


def kernels(model) -> dict[str, str]:
    """Return the kernel of each operator; none has a reason to run elsewhere."""
    plans = compile_model(model).explain()
    assert not [plan for plan in plans if plan.reason]
    return {plan.op_type: plan.kernel for plan in plans}


def check(
    graph: QdqGraph, shape, *, equal: bool = False, scale: float = 1.0, positive: bool = False
) -> None:
    """Compare a model with one input with onnx's evaluator."""
    x = (graph.rng.standard_normal(shape) * scale).astype(np.float32)
    x = np.abs(x) + np.float32(0.1) if positive else x
    steps = off_by(graph.model(), {"x": x})
    assert set(steps) <= ({0} if equal else {0, 1})
    assert steps[1] <= 0.002 * sum(steps.values()) + 1


CONVOLUTIONS = {
    "plain": ((2, 8, 9, 7), (6, 8, 3, 3), {}),
    "pointwise": ((1, 16, 5, 5), (24, 16, 1, 1), {}),
    "stem": ((1, 3, 17, 17), (16, 3, 7, 7), {"strides": [2, 2], "pads": [3, 3, 3, 3]}),
    "strided": ((1, 5, 11, 8), (7, 5, 3, 3), {"strides": [2, 1], "pads": [1, 0, 1, 2]}),
    "dilated": ((1, 4, 12, 12), (4, 4, 3, 3), {"dilations": [2, 3]}),
    "grouped": ((1, 12, 6, 6), (8, 3, 3, 3), {"group": 4, "pads": [1, 1, 1, 1]}),
    "depthwise": ((1, 19, 9, 9), (19, 1, 3, 3), {"group": 19, "pads": [1, 1, 1, 1]}),
    "depthwise, 5 x 5": ((1, 8, 9, 9), (8, 1, 5, 5), {"group": 8, "strides": [2, 2]}),
    "depthwise, twice": ((1, 6, 7, 7), (12, 1, 3, 3), {"group": 6}),
    "line": ((2, 6, 20), (9, 6, 5), {"pads": [2, 2]}),
    "same": ((1, 4, 7, 7), (4, 4, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
}


@UNSIGNED
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(name, unsigned):
    shape, kernel, attributes = CONVOLUTIONS[name]
    graph = QdqGraph(unsigned=unsigned)
    x = graph.quantize(graph.input(["N", *shape[1:]]), 0.03, -7)
    y = graph.node("Conv", x, graph.weight(kernel, 0), **attributes)
    graph.output(graph.quantize(y, 0.11, 5))
    found = kernels(graph.model())
    assert found["Conv"].endswith("convolution int8")
    assert found["QuantizeLinear"] in ("quantize", found["Conv"])
    check(graph, shape)


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("activation", ["", "Relu", "Clip"])
@pytest.mark.parametrize("bias", ["none", "int32", "float"])
def test_bias_and_activation(bias, activation, per_channel):
    graph = QdqGraph()
    x = graph.quantize(graph.input([1, 8, 6, 6]), 0.03, 3)
    weight = graph.weight((5, 8, 3, 3), 0 if per_channel else None)
    operands = [x, weight]
    if bias == "int32":
        stored = graph.constant(graph.rng.integers(-(2**12), 2**12, 5).astype(np.int32))
        operands.append(graph.node("DequantizeLinear", stored, graph.constant(np.float32(3e-4))))
    elif bias == "float":
        operands.append(graph.constant(graph.rng.standard_normal(5).astype(np.float32)))
    y = graph.node("Conv", *operands)
    if activation == "Relu":
        y = graph.node("Relu", y)
    elif activation == "Clip":
        low, high = graph.constant(np.float32(-0.5)), graph.constant(np.float32(1.5))
        y = graph.node("Clip", y, low, high)
    graph.output(graph.quantize(y, 0.05, -20))
    assert kernels(graph.model())["Conv"] in ("convolution int8", "xnn convolution int8")
    check(graph, (1, 8, 6, 6))


@UNSIGNED
@pytest.mark.parametrize("groups", [1, 2])
def test_transposed_convolution(groups, unsigned):
    graph = QdqGraph(unsigned=unsigned)
    x = graph.quantize(graph.input([1, 8, 5, 6]), 0.03, 3)
    weight = graph.weight((8, 3, 3, 3), 1 if groups == 1 else None)
    y = graph.node("ConvTranspose", x, weight, group=groups, strides=[2, 2], pads=[1, 1, 0, 0])
    graph.output(graph.quantize(y, 0.1, 0))
    assert kernels(graph.model())["ConvTranspose"] == "xnn deconvolution int8"
    check(graph, (1, 8, 5, 6))


@UNSIGNED
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("result", ["bytes", "floats"])
def test_product(result, turned, unsigned):
    graph = QdqGraph(unsigned=unsigned)
    x = graph.quantize(graph.input(["N", 24]), 0.03, 9)
    weight = graph.weight((10, 24) if turned else (24, 10), 0 if turned else 1)
    bias = graph.constant(graph.rng.standard_normal(10).astype(np.float32))
    y = graph.node("Gemm", x, weight, bias, transB=int(turned))
    graph.output(graph.quantize(y, 0.05, -3) if result == "bytes" else y)
    assert kernels(graph.model())["Gemm"] in ("fully connected int8", "xnn fully connected int8")
    check(graph, (7, 24))


@pytest.mark.parametrize("result", ["bytes", "floats"])
def test_matmul_of_batches_with_a_bias(result):
    graph = QdqGraph()
    x = graph.quantize(graph.input([2, "S", 16]), 0.03, 9)
    y = graph.node("MatMul", x, graph.weight((16, 12), 1))
    y = graph.node("Add", y, graph.constant(graph.rng.standard_normal(12).astype(np.float32)))
    y = graph.node("Relu", y)
    graph.output(graph.quantize(y, 0.05, -128) if result == "bytes" else y)
    assert kernels(graph.model())["MatMul"] in ("fully connected int8", "xnn fully connected int8")
    check(graph, (2, 5, 16))


@UNSIGNED
@pytest.mark.parametrize("activation", [False, True])
@pytest.mark.parametrize("shapes", [((2, 5, 4, 4),) * 2, ((2, 5, 4, 4), (5, 1, 1))], ids=str)
@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul"])
def test_binary_operators_run_in_int8(op_type, shapes, activation, unsigned):
    graph = QdqGraph(unsigned=unsigned)
    first = graph.quantize(graph.input(shapes[0]), 0.03, 4)
    second = graph.quantize(graph.input(shapes[1], "x2"), 0.02, -9)
    y = graph.node(op_type, first, second)
    y = graph.node("Relu", y) if activation else y
    graph.output(graph.quantize(y, 0.05, -3))
    feeds = {
        name: graph.rng.standard_normal(shape).astype(np.float32)
        for name, shape in zip(("x", "x2"), shapes, strict=True)
    }
    assert kernels(graph.model())[op_type].startswith("xnn ")
    assert "int8" in kernels(graph.model())[op_type]
    steps = off_by(graph.model(), feeds)
    assert set(steps) <= {0, 1}
    # XNNPACK adds with multipliers of 20 bits: somewhat more halves fall the other way.
    assert steps[1] <= 0.02 * sum(steps.values()) + 1


@UNSIGNED
@pytest.mark.parametrize("op_type", ["GlobalAveragePool", "ReduceMean", "ReduceMean, kept"])
def test_means(op_type, unsigned):
    graph = QdqGraph(unsigned=unsigned)
    x = graph.quantize(graph.input([2, 9, 5, 6]), 0.03, 4)
    if op_type == "GlobalAveragePool":
        y = graph.node(op_type, x)
    else:
        axes = graph.constant(np.int64([2, 3]))
        y = graph.node("ReduceMean", x, axes, keepdims=int(op_type != "ReduceMean"))
    graph.output(graph.quantize(y, 0.01, -3))
    found = kernels(graph.model())[op_type.partition(",")[0]]
    assert found.startswith("xnn reduce mean int8")
    check(graph, (2, 9, 5, 6), scale=2)


FUNCTIONS = [
    "Abs", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Log", "Neg",
    "Reciprocal", "Relu", "Sigmoid", "Softplus", "Sqrt", "Tanh",
]  # fmt: skip


@UNSIGNED
@pytest.mark.parametrize("op_type", FUNCTIONS)
def test_functions_of_bytes_become_lookup_tables(op_type, unsigned):
    """A table has 256 entries. Infinities saturate; those of onnx's evaluator are arbitrary."""
    graph = QdqGraph(unsigned=unsigned)
    positive = op_type in ("Log", "Reciprocal", "Sqrt")
    zero_point = -128 if positive else 3
    x = graph.quantize(graph.input([3, 7]), 0.03, zero_point)
    graph.output(graph.quantize(graph.node(op_type, x), 0.02, -5))
    assert kernels(graph.model())[op_type] == "table"
    check(graph, (3, 7), equal=True, positive=positive)


@pytest.mark.parametrize("form", ["gelu", "tanh-gelu", "hard-swish", "silu", "normalized"])
def test_elementwise_regions_become_one_lookup_table(form):
    graph = QdqGraph()
    x = graph.quantize(graph.input([4, 33]), 0.05, 3)

    def number(value: float) -> str:
        return graph.constant(np.float32(value))

    if form == "gelu":
        e = graph.node("Erf", graph.node("Div", x, number(2**0.5)))
        y = graph.node("Mul", graph.node("Mul", x, graph.node("Add", e, number(1))), number(0.5))
    elif form == "tanh-gelu":
        cube = graph.node("Mul", graph.node("Mul", graph.node("Mul", x, x), x), number(0.044715))
        inner = graph.node("Mul", graph.node("Add", x, cube), number(0.7978845608))
        y = graph.node("Add", graph.node("Tanh", inner), number(1))
        y = graph.node("Mul", graph.node("Mul", x, number(0.5)), y)
    elif form == "hard-swish":
        y = graph.node("Clip", graph.node("Add", x, number(3)), number(0), number(6))
        y = graph.node("Div", graph.node("Mul", x, y), number(6))
    elif form == "silu":
        y = graph.node("Mul", x, graph.node("Sigmoid", x))
    else:
        y = graph.node("Div", graph.node("Sub", x, number(0.4)), graph.constant(np.float32([0.2])))
    graph.output(graph.quantize(y, 0.04, -7))
    found = kernels(graph.model())
    assert {kernel for op, kernel in found.items() if "Linear" not in op} == {"table"}
    check(graph, (4, 33), equal=True, scale=2)


MOVES = {
    "Reshape": ([np.int64([0, -1])], {}),
    "Flatten": ([], {"axis": 2}),
    "Transpose": ([], {"perm": [0, 2, 3, 1]}),
    "Slice": ([np.int64([1]), np.int64([9]), np.int64([2]), np.int64([2])], {}),
    "Unsqueeze": ([np.int64([0])], {}),
    "Expand": ([np.int64([2, 2, 8, 6, 4])], {}),
    "Tile": ([np.int64([1, 2, 1, 3])], {}),
    "DepthToSpace": ([], {"blocksize": 2}),
    "SpaceToDepth": ([], {"blocksize": 2}),
    "MaxPool": ([], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}),
    "Pad": ([np.int64([0, 0, 1, 2, 0, 0, 3, 0])], {}),
    "Resize": (
        ["", np.float32([1, 1, 2, 2])],
        {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    ),
}


@UNSIGNED
@pytest.mark.parametrize("result", [(0.03, 4), (0.05, -9)], ids=["kept", "requantized"])
@pytest.mark.parametrize("op_type", MOVES)
def test_data_movement(op_type, result, unsigned):
    operands, attributes = MOVES[op_type]
    graph = QdqGraph(unsigned=unsigned)
    x = graph.quantize(graph.input([2, 8, 6, 4]), 0.03, 4)
    rest = [item if isinstance(item, str) else graph.constant(item) for item in operands]
    graph.output(graph.quantize(graph.node(op_type, x, *rest, **attributes), *result))
    model = graph.model()
    names = [kernel for op, kernel in kernels(model).items() if "Linear" not in op]
    assert names
    assert not any("dequantize" in plan.kernel for plan in compile_model(model).explain()[:-1])
    check(graph, (2, 8, 6, 4), equal=True)


@UNSIGNED
@pytest.mark.parametrize("same", [True, False])
def test_concatenation(same, unsigned):
    graph = QdqGraph(unsigned=unsigned)
    x = graph.input([2, 8, 6, 4])
    second = graph.quantize(graph.node("Abs", x), *((0.03, 4) if same else (0.02, -50)))
    y = graph.node("Concat", graph.quantize(x, 0.03, 4), second, axis=1)
    graph.output(graph.quantize(y, 0.03, 4))
    assert "copy" in kernels(graph.model())["Concat"]
    check(graph, (2, 8, 6, 4), equal=True)


def test_split_returns_bytes():
    graph = QdqGraph()
    x = graph.quantize(graph.input([2, 8, 3]), 0.03, 4)
    parts = graph.node("Split", x, outputs=2, axis=1, num_outputs=2)
    for part in parts:
        graph.output(graph.quantize(part, 0.03, 4))
    kernels(graph.model())
    check(graph, (2, 8, 3), equal=True)


def test_padding_with_a_value_that_no_byte_represents():
    graph = QdqGraph()
    x = graph.quantize(graph.input([2, 3]), 0.03, 4)
    pads, value = graph.constant(np.int64([0, 1, 0, 1])), graph.constant(np.float32(0.041))
    graph.output(graph.quantize(graph.node("Pad", x, pads, value), 0.02, 0))
    assert kernels(graph.model())["Pad"] == "xnn pad"
    check(graph, (2, 3), equal=True)


def test_bytes_go_through_moves_to_a_product():
    """Exporters write no QuantizeLinear between what only moves."""
    graph = QdqGraph()
    x = graph.quantize(graph.input([2, 8, 3, 3]), 0.03, 4)
    y = graph.node("Flatten", graph.node("Transpose", x, perm=[0, 2, 3, 1]))
    graph.output(graph.node("MatMul", y, graph.weight((72, 5), 1)))
    found = kernels(graph.model())
    assert found["MatMul"] in ("fully connected int8", "xnn fully connected int8")
    assert not any("dequantize" in kernel for kernel in found.values())
    check(graph, (2, 8, 3, 3))


def test_float_readers_of_bytes_get_dequantized_values():
    """A value that both kinds of operators read: both are right."""
    graph = QdqGraph()
    x = graph.quantize(graph.input([1, 4, 6, 6]), 0.03, 4)
    graph.output(graph.quantize(graph.node("Conv", x, graph.weight((4, 4, 1, 1), 0)), 0.1, 0))
    graph.output(graph.node("Sin", graph.node("Transpose", x, perm=[3, 2, 1, 0])))
    check(graph, (1, 4, 6, 6))


def test_bytes_at_the_borders():
    """Inputs and outputs of int8 and uint8 keep their types."""
    for elements, dtype in ((TensorProto.INT8, np.int8), (TensorProto.UINT8, np.uint8)):
        graph = QdqGraph(unsigned=dtype == np.uint8)
        graph.input([2, 5])
        x = graph.node("QuantizeLinear", "x", *graph.parameters(0.03, 4))
        graph.output(graph.node("Transpose", x), elements)
        y = graph.node("Tanh", graph.dequantize(x, 0.03, 4))
        graph.output(graph.node("QuantizeLinear", y, *graph.parameters(0.01, 0)), elements)
        model = graph.model()
        program = compile_model(model)
        results = program.run({"x": np.linspace(-1, 1, 10, dtype=np.float32).reshape(2, 5)})
        assert [array.dtype for array in results.values()] == [dtype, dtype]
        check(graph, (2, 5), equal=True)


@pytest.mark.parametrize("axis", [0, None])
@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_rows_of_an_embedding(dtype, axis):
    """Only the rows that are looked up become floats; the others stay bytes."""
    graph = QdqGraph()
    kind = TensorProto.INT64 if dtype == np.int64 else TensorProto.INT32
    indices = graph.input([2, 3], "i", kind)
    graph.output(graph.node("Gather", graph.weight((20, 33), axis), indices))
    model = graph.model()
    assert kernels(model)["Gather"] == "gather int8"
    off_by(model, {"i": np.array([[0, 19, -1], [7, -20, 3]], dtype)})
    with pytest.raises(BackendError, match="Gather"):
        compile_model(model).run({"i": np.array([[0, 20, -1], [7, -20, 3]], dtype)})


@pytest.mark.parametrize("of_rows", [True, False])
def test_rows_of_a_table_and_their_scales(of_rows):
    """The form in which rows are gathered before they become floats."""
    graph = QdqGraph()
    rows = graph.input([2, 3], "i", TensorProto.INT64)
    table = graph.constant(graph.rng.integers(-127, 128, (20, 33)).astype(np.int8))
    cast = graph.node("Cast", graph.node("Gather", table, rows), to=TensorProto.FLOAT)
    numbers = graph.rng.uniform(0.01, 0.02, (20, 1) if of_rows else ()).astype(np.float32)
    scale = graph.constant(numbers)
    scale = graph.node("Gather", scale, rows) if of_rows else scale
    graph.output(graph.node("Mul", cast, scale))
    model = graph.model()
    assert set(kernels(model).values()) == {"gather int8"}
    off_by(model, {"i": np.array([[0, 19, -1], [7, -20, 3]])})
