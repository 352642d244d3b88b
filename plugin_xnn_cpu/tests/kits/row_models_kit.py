"""Models of rows, x [N, C] to y, of each kind of matmul and convolution."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

DTYPES = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}


def rows_model(nodes, columns, constants, *, opset=21):
    """Build a model from x [N, columns] to y."""
    initializers = []
    for name, array in constants.items():
        if isinstance(array, onnx.TensorProto):
            initializers.append(array)
        else:
            initializers.append(numpy_helper.from_array(array, name))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", int(columns)])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        initializers,
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    return onnx.shape_inference.infer_shapes(model)


def floats(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def gemm(rng):
    c, o = rng.integers(3, 90, 2)
    constants = {"w": floats(rng, o, c), "b": floats(rng, o), "v": floats(rng, 33, o)}
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"], transB=1),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "v"], ["y"], transB=1),
    ]
    return rows_model(nodes, c, constants)


def matmul(rng):
    c, o = rng.integers(3, 200, 2)
    return rows_model([helper.make_node("MatMul", ["x", "w"], ["y"])], c, {"w": floats(rng, c, o)})


def convolution(rng, groups=1):
    channels = 4 * groups if groups == 1 else groups
    outputs = int(rng.integers(1, 20)) if groups == 1 else groups
    size = int(rng.integers(5, 9))
    constants = {
        "k": floats(rng, outputs, channels // groups, 3, 3),
        "b": floats(rng, outputs),
        "shape": np.array([-1, channels, size, size], np.int64),
    }
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["i"]),
        helper.make_node("Conv", ["i", "k", "b"], ["y"], group=groups, pads=[1, 1, 1, 1]),
    ]
    return rows_model(nodes, channels * size * size, constants)


def depthwise(rng):
    return convolution(rng, int(rng.integers(3, 20)))


def transposed(rng):
    constants = {"k": floats(rng, 3, 4, 2, 2), "shape": np.array([-1, 3, 5, 5], np.int64)}
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["i"]),
        helper.make_node("ConvTranspose", ["i", "k"], ["y"], strides=[2, 2]),
    ]
    return rows_model(nodes, 75, constants)


def int8(rng, activations=""):
    c, o = (int(size) for size in rng.integers(8, 200, 2))
    constants = {
        "q": rng.integers(-127, 128, (c, o)).astype(np.int8),
        "s": (rng.random(o) + 0.01).astype(np.float32),
        "b": floats(rng, o),
    }
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s"], ["w"], axis=1),
        helper.make_node("MatMul", ["x", "w"], ["m"], name="mm"),
        helper.make_node("Add", ["m", "b"], ["y"]),
    ]
    if activations:
        prop = onnx.StringStringEntryProto(key="narrowpass.activations", value=activations)
        nodes[1].metadata_props.append(prop)
    return rows_model(nodes, c, constants)


def int8_rows(rng):
    return int8(rng, "dynamic")


def half(rng, kind, c, o):
    array = floats(rng, c, o).astype(np.float16 if kind == "float16" else ml_dtypes.bfloat16)
    stored = helper.make_tensor("n", DTYPES[kind], (c, o), array.tobytes(), raw=True)
    nodes = [
        helper.make_node("Cast", ["n"], ["w"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    return rows_model(nodes, c, {"n": stored})


def float16(rng):
    return half(rng, "float16", 70, 130)


def float16_large(rng):
    return half(rng, "float16", 600, 1024)


def bfloat16(rng):
    return half(rng, "bfloat16", 72, 130)


def bfloat16_computed(rng):
    """A bfloat16 matmul, as the pass `fp16` emits it."""
    array = floats(rng, 64, 48).astype(ml_dtypes.bfloat16)
    stored = helper.make_tensor("w", TensorProto.BFLOAT16, (64, 48), array.tobytes(), raw=True)
    nodes = [
        helper.make_node("Cast", ["x"], ["n"], to=TensorProto.BFLOAT16),
        helper.make_node("MatMul", ["n", "w"], ["m"]),
        helper.make_node("Cast", ["m"], ["y"], to=TensorProto.FLOAT),
    ]
    return rows_model(nodes, 64, {"w": stored})


def int8_static(rng):
    """An int8 matmul with int8 rows and results, as the pass `int8` emits it."""
    c, o = (int(size) for size in rng.integers(8, 300, 2))
    constants = {
        "xs": np.float32(0.03),
        "z": np.int8(0),
        "q": rng.integers(-127, 128, (c, o)).astype(np.int8),
        "s": (rng.random(o) / 50 + 0.001).astype(np.float32),
        "b": floats(rng, o),
        "ys": np.float32(0.5),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "z"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "xs", "z"], ["xd"]),
        helper.make_node("DequantizeLinear", ["q", "s"], ["w"], axis=1),
        helper.make_node("MatMul", ["xd", "w"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["a"]),
        helper.make_node("QuantizeLinear", ["a", "ys", "z"], ["aq"]),
        helper.make_node("DequantizeLinear", ["aq", "ys", "z"], ["y"]),
    ]
    return rows_model(nodes, c, constants)


def nbits(rng, bits=4, block=32, activations=""):
    c, o = 288, 50
    blocks = -(-c // block)
    constants = {
        "q": rng.integers(0, 256, (o, blocks, block * bits // 8)).astype(np.uint8),
        "s": (rng.random((o, blocks)) + 0.01).astype(np.float32),
        "z": (rng.random((o, blocks)) * 16).astype(np.float32),
    }
    sizes = {"K": c, "N": o, "bits": bits, "block_size": block}
    names = ["x", "q", "s", "z"]
    node = helper.make_node("MatMulNBits", names, ["y"], domain="com.microsoft", **sizes)
    if activations:
        prop = onnx.StringStringEntryProto(key="narrowpass.activations", value=activations)
        node.metadata_props.append(prop)
    model = rows_model([node], c, constants)
    declared = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", o])
    model.graph.output[0].CopyFrom(declared)
    return model


def nbits_rows(rng):
    return nbits(rng, activations="dynamic")


def recurrent(rng, kind, gates, *, dynamic):
    """A row is a sequence of 5 time steps of 12 inputs; the result is its last state."""
    hidden = int(rng.integers(17, 40))
    scales = (rng.random(gates * hidden) / 300 + 0.001).astype(np.float32)
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["sequences"]),
        helper.make_node("Transpose", ["sequences"], ["steps"], perm=[1, 0, 2]),
        *(
            helper.make_node("DequantizeLinear", [f"{name}8", f"{name}s"], [name], axis=1)
            for name in ("w", "r")
        ),
        helper.make_node(kind, ["steps", "w", "r", "b"], ["", "last"], hidden_size=hidden),
        helper.make_node("Squeeze", ["last", "zero"], ["y"]),
    ]
    if dynamic:
        prop = onnx.StringStringEntryProto(key="narrowpass.activations", value="dynamic")
        nodes[-2].metadata_props.append(prop)
    constants = {
        "shape": np.array([-1, 5, 12], np.int64),
        "zero": np.array([0], np.int64),
        "w8": rng.integers(-127, 128, (1, gates * hidden, 12)).astype(np.int8),
        "r8": rng.integers(-127, 128, (1, gates * hidden, hidden)).astype(np.int8),
        "ws": scales,
        "rs": scales,
        "b": floats(rng, 1, 2 * gates * hidden) / 4,
    }
    return rows_model(nodes, 60, constants)


def lstm(rng):
    return recurrent(rng, "LSTM", 4, dynamic=False)


def lstm_int8(rng):
    return recurrent(rng, "LSTM", 4, dynamic=True)


def gru(rng):
    return recurrent(rng, "GRU", 3, dynamic=False)


def gru_int8(rng):
    return recurrent(rng, "GRU", 3, dynamic=True)


def rnn(rng):
    return recurrent(rng, "RNN", 1, dynamic=False)


def epilogues(rng):
    """A Gemm before each function that epilogues compute."""
    sizes = [int(size) for size in rng.integers(20, 90, 5)]
    constants = {
        f"w{i}": floats(rng, c, o) / np.float32(np.sqrt(c))
        for i, (c, o) in enumerate(itertools.pairwise(sizes))
    }
    nodes = [
        helper.make_node("Gemm", ["x", "w0"], ["a"]),
        helper.make_node("Gelu", ["a"], ["b"]),
        helper.make_node("Gemm", ["b", "w1"], ["c"]),
        helper.make_node("Gelu", ["c"], ["d"], approximate="tanh"),
        helper.make_node("Gemm", ["d", "w2"], ["e"]),
        helper.make_node("Sigmoid", ["e"], ["f"]),
        helper.make_node("Mul", ["e", "f"], ["g"]),
        helper.make_node("Gemm", ["g", "w3"], ["h"]),
        helper.make_node("HardSwish", ["h"], ["y"]),
    ]
    return rows_model(nodes, sizes[0], constants)


def row_functions(rng):
    """Softmax, layer normalization and reductions, each over a row."""
    c = int(rng.integers(70, 400))
    nodes = [
        helper.make_node("LayerNormalization", ["x", "s"], ["n"]),
        helper.make_node("Softmax", ["n"], ["p"]),
        helper.make_node("Elu", ["x"], ["e"]),
        helper.make_node("ReduceMean", ["e", "axis"], ["m"]),
        helper.make_node("ReduceL2", ["x", "axis"], ["l"]),
        helper.make_node("Gelu", ["x"], ["g"]),
        helper.make_node("LogSoftmax", ["g"], ["q"]),
        helper.make_node("Concat", ["n", "p", "m", "l", "q"], ["y"], axis=1),
    ]
    constants = {"s": floats(rng, c), "axis": np.array([1], np.int64)}
    return rows_model(nodes, c, constants)


MODELS = {
    build.__name__: build
    for build in (
        *(gemm, matmul, convolution, depthwise, transposed, int8, int8_rows, int8_static),
        *(float16, float16_large, bfloat16, bfloat16_computed, nbits, nbits_rows),
        *(lstm, lstm_int8, gru, gru_int8, rnn, epilogues),
    )
}
"""Models with matrices, by name."""
