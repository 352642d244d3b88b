"""Quantized models at their edges: bytes that are no activations, nothing at all, huge bounds."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto
from qdq_graph import QdqGraph
from qdq_kit import off_by
from xnn_kit import compile_model

from narrowpass.errors import BackendError


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(2).standard_normal(shape).astype(np.float32)


def explained(model: ir.Model) -> Counter[str]:
    """Count the rows of `explain` of each node."""
    return Counter(plan.node for plan in compile_model(model).explain())


def nodes(model: ir.Model) -> Counter[str]:
    return Counter(node.name or "" for node in model.graph)


@pytest.mark.parametrize("fill", [None, 0, 7, 200, 255])
def test_bytes_around_unsigned_bytes(fill):
    """A fill of uint8 is a number from 0 to 255, and 0 where there is none."""
    graph = QdqGraph(unsigned=True)
    given = graph.input(["N", 3, 4], elements=TensorProto.UINT8)
    operands = [given, graph.constant(np.int64([0, 1, 2, 0, 0, 1]))]
    if fill is not None:
        operands.append(graph.constant(np.uint8(fill)))
    graph.output(graph.dequantize(graph.node("Pad", *operands), 0.1, -3))
    x = np.random.default_rng(1).integers(0, 256, (2, 3, 4)).astype(np.uint8)
    off_by(graph.model(), {"x": x})


def test_unsigned_bytes_that_are_read_as_numbers_too():
    graph = QdqGraph(unsigned=True)
    given = graph.input(["N", 4], elements=TensorProto.UINT8)
    cast = graph.node("Cast", given, to=TensorProto.FLOAT)
    graph.output(graph.node("Relu", graph.dequantize(given, 0.1, -3)))
    graph.output(cast)
    x = np.random.default_rng(1).integers(0, 256, (3, 4)).astype(np.uint8)
    off_by(graph.model(), {"x": x})


def test_mean_over_no_elements():
    """It is NaN, which becomes the least byte."""
    graph = QdqGraph()
    x = graph.quantize(graph.input(["N", 4]), 0.1)
    axes = graph.constant(np.int64([0]))
    y = graph.node("ReduceMean", x, axes, keepdims=0)
    graph.output(graph.dequantize(graph.node("QuantizeLinear", y, *graph.parameters(0.1, 3)), 1, 0))
    program = compile_model(graph.model())
    (result,) = program.run({"x": np.zeros((0, 4), np.float32)}).values()
    assert result.tolist() == [-128.0] * 4


def test_bounds_of_more_steps_than_there_are_numbers():
    largest = np.finfo(np.float32).max
    graph = QdqGraph()
    x = graph.quantize(graph.input(["N", 4]), 0.1)
    y = graph.node("MatMul", x, graph.weight((4, 5), None))
    y = graph.node("Clip", y, graph.constant(-largest), graph.constant(largest))
    graph.output(graph.quantize(y, 0.01))
    assert set(off_by(graph.model(), {"x": numbers(3, 4)})) <= {0, 1}


def test_scales_of_which_bytes_stand_for_infinity():
    graph = QdqGraph()
    x = graph.quantize(graph.input(["N", 4]), 1e37)
    graph.output(graph.quantize(graph.node("Neg", x), 2e37))
    assert set(off_by(graph.model(), {"x": numbers(3, 4) * 1e37})) <= {0, 1}


@pytest.mark.parametrize("quantized", [False, True], ids=["float", "int8"])
def test_transposed_convolution_with_an_empty_output(quantized):
    """It is refused, and other sizes are right after that."""
    graph = QdqGraph()
    x = graph.quantize(graph.input([1, 2, 3, "W"]), 0.1)
    y = graph.node("ConvTranspose", x, graph.weight((2, 3, 3, 1), 1), pads=[1] * 4, strides=[2, 2])
    graph.output(graph.quantize(y, 0.1) if quantized else y)
    program = compile_model(graph.model())
    ((_, first),) = program.run({"x": numbers(1, 2, 3, 4)}).items()
    for width in (1, 1):
        with pytest.raises(BackendError, match=r"output for an input of .* is empty"):
            program.run({"x": numbers(1, 2, 3, width)})
    ((_, again),) = program.run({"x": numbers(1, 2, 3, 4)}).items()
    assert np.array_equal(first, again)
    assert set(off_by(graph.model(), {"x": numbers(1, 2, 3, 4)})) <= {0, 1}


@pytest.mark.parametrize("op_type", ["Relu", "Transpose", "Conv", "Concat", "MaxPool"])
@pytest.mark.parametrize("also", [False, True], ids=["alone", "float read too"])
def test_each_node_is_explained_once(op_type, also):
    graph = QdqGraph()
    x = graph.quantize(graph.input(["N", 3, 5, 5]), 0.1, 3)
    if op_type == "Conv":
        y = graph.node("Conv", x, graph.weight((4, 3, 3, 3), 0))
    elif op_type == "Concat":
        y = graph.node("Concat", x, graph.quantize(graph.node("Relu", x), 0.2), axis=1)
    elif op_type == "MaxPool":
        y = graph.node("MaxPool", x, kernel_shape=[2, 2])
    else:
        y = graph.node(op_type, x)
    if also:
        graph.output(y)
    graph.output(graph.quantize(y, 0.05))
    model = graph.model()
    assert explained(model) == nodes(model)
    assert set(off_by(model, {"x": numbers(2, 3, 5, 5)})) <= {0, 1}


def test_errors_and_profiles_name_the_operator():
    graph = QdqGraph()
    x = graph.quantize(graph.input(["N", "C", 6]), 0.1)
    y = graph.node("Conv", x, graph.weight((2, 3, 3), 0))
    graph.output(graph.quantize(y, 0.1))
    program = compile_model(graph.model())
    names = [time.node for time in program.profile({"x": numbers(2, 3, 6)}, runs=1)]
    (conv,) = [name for name in names if name.startswith("Conv")]
    with pytest.raises(BackendError, match=f"node '{conv}': a convolution of 3 channels got 4"):
        program.run({"x": numbers(2, 4, 6)})
