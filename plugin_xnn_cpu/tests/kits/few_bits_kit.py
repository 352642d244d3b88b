"""Models with matrices of few bits in every form that tools write, and the matrices they stand for.

Builders return a model and its matrix [K, N], in float64 by numpy. Rows of float32 are compared at
1e-5 of the largest sum of magnitudes, for fp32 accumulation in another order. Rows that are
quantized in blocks are off by half a step in each element at most: max|block| / 254 times the
magnitudes of the block's weights.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

RNG = np.random.default_rng(23)
KINDS = {"int4": TensorProto.INT4, "uint4": TensorProto.UINT4}
KINDS |= {"int8": TensorProto.INT8, "uint8": TensorProto.UINT8}
OFFSETS = {"int4": -8, "uint4": 0, "int8": -128, "uint8": 0}
BITS = {"int4": 4, "uint4": 4, "int8": 8, "uint8": 8}


def initializer(name, array, kind=None):
    if kind is None:
        return numpy_helper.from_array(array, name)
    dtype = helper.tensor_dtype_to_np_dtype(KINDS[kind])
    return numpy_helper.from_array(array.astype(dtype), name)


def wrap(nodes, columns, outputs, initializers, opset=21, last="y", dtype=TensorProto.FLOAT):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", dtype, ["rows", columns])],
        [helper.make_tensor_value_info(last, dtype, ["rows", outputs])],
        initializers,
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def packed_bits(numbers, bits):
    """Pack integers along the last axis, low bits first."""
    single = np.unpackbits(numbers[..., None].astype(np.uint8), axis=-1, bitorder="little")
    single = single[..., :bits].reshape(*numbers.shape[:-1], -1)
    return np.packbits(single, axis=-1, bitorder="little")


def store_as_float16(nodes, initializers):
    """Store the scales ``s`` as float16, behind a Cast to float32."""
    (at,) = [at for at, tensor in enumerate(initializers) if tensor.name == "s"]
    array = numpy_helper.to_array(initializers[at])
    initializers[at] = numpy_helper.from_array(array.astype(np.float16), "stored")
    nodes.insert(0, helper.make_node("Cast", ["stored"], ["s"], to=TensorProto.FLOAT))


def nbits(
    bits=4,
    block=32,
    zeros=None,
    columns=96,
    outputs=40,
    bias=False,
    level=0,
    order=None,
    cast=False,
):
    """Build MatMulNBits; return it and the matrix [K, N]."""
    blocks = -(-columns // block)
    numbers = RNG.integers(0, 1 << bits, (outputs, blocks * block))
    scales = RNG.uniform(0.01, 0.02, (outputs, blocks)).astype(np.float32)
    scales = scales.astype(np.float16).astype(np.float32) if cast else scales
    points = np.full((outputs, blocks), float(1 << (bits - 1)))
    parts = {
        "b": packed_bits(numbers.reshape(outputs, blocks, block), bits),
        "s": scales,
    }
    names = ["x", "b", "s", "", "", ""]
    if zeros == "floats":
        points = RNG.uniform(0, 1 << bits, (outputs, blocks)).astype(np.float32).astype(float)
        parts["z"] = points.astype(np.float32)
    elif zeros == "packed":
        whole = RNG.integers(0, 1 << bits, (outputs, blocks))
        points, parts["z"] = whole.astype(float), packed_bits(whole, bits)
    if zeros:
        names[3] = "z"
    groups = np.arange(columns) // block
    if order is not None:
        groups = groups[order]
        parts["g"], names[4] = groups.astype(np.int32), "g"
    added = RNG.standard_normal(outputs).astype(np.float32) if bias else np.zeros(outputs)
    if bias:
        parts["c"], names[5] = added, "c"
    while not names[-1]:
        names.pop()
    sizes = {"K": columns, "N": outputs, "bits": bits, "block_size": block}
    node = helper.make_node(
        "MatMulNBits", names, ["y"], domain="com.microsoft", accuracy_level=level, **sizes
    )
    nodes, initializers = [node], [initializer(name, array) for name, array in parts.items()]
    if cast:
        store_as_float16(nodes, initializers)
    wide = (numbers[:, :columns] - points[:, groups]) * scales.astype(float)[:, groups]
    return wrap(nodes, columns, outputs, initializers), wide.T, added


def qdq(
    kind="int4",
    axis=0,
    block=32,
    zeros=False,
    half=False,
    gemm=False,
    columns=96,
    outputs=40,
    level=0,
    cast=False,
):
    """Build DequantizeLinear of a matrix and a MatMul or Gemm; `block` 0 is per channel."""
    bits, low = BITS[kind], OFFSETS[kind]
    numbers = RNG.integers(low, low + (1 << bits), (outputs, columns))
    blocks = -(-columns // block) if block else 1
    dtype = np.float16 if half else np.float32
    scales = RNG.uniform(0.01, 0.02, (outputs, blocks)).astype(dtype)
    scales = scales.astype(np.float16).astype(np.float32) if cast else scales
    points = RNG.integers(low, low + (1 << bits), (outputs, blocks)) if zeros else 0
    of = np.arange(columns) // (block or columns)
    wide = numbers - (points[:, of] if zeros else 0)
    wide = (wide * scales.astype(float)[:, of]).T

    def lying(array):
        array = array.T if axis == 0 else array
        return array if block else array.reshape(-1)

    parts = [initializer("q", numbers.T if axis == 0 else numbers, kind)]
    parts.append(initializer("s", lying(scales)))
    names = ["q", "s"]
    if zeros:
        parts.append(initializer("z", lying(points), kind))
        names.append("z")
    named = {"axis": axis if block else 1 - axis}
    if block:
        named["block_size"] = block
    nodes = [helper.make_node("DequantizeLinear", names, ["w"], **named)]
    last = "w"
    if half:
        nodes.append(helper.make_node("Cast", [last], ["f"], to=TensorProto.FLOAT))
        last = "f"
    if gemm:
        nodes.append(helper.make_node("Gemm", ["x", last], ["y"], transB=axis))
    else:
        if axis == 1:
            nodes.append(helper.make_node("Transpose", [last], ["t"], perm=[1, 0]))
            last = "t"
        nodes.append(helper.make_node("MatMul", ["x", last], ["y"]))
    if level == 4:
        nodes[-1].metadata_props.add(key="narrowpass.activations", value="dynamic")
    if cast:
        store_as_float16(nodes, parts)
    return wrap(nodes, columns, outputs, parts), wide, np.zeros(outputs)


NBITS = {
    f"MatMulNBits {bits} bits, zero points {zeros}": (nbits, {"bits": bits, "zeros": zeros})
    for bits, zeros in itertools.product((2, 3, 4, 8), (None, "packed", "floats"))
}
NBITS |= {
    f"MatMulNBits block {block}": (nbits, {"block": block, "columns": 300, "zeros": "packed"})
    for block in (16, 32, 64, 128, 256)
}
NBITS |= {
    "MatMulNBits bias": (nbits, {"bias": True}),
    "MatMulNBits g_idx": (nbits, {"order": np.random.default_rng(3).permutation(96)}),
    "MatMulNBits g_idx in order": (nbits, {"order": np.arange(96)}),
}
QDQ = {
    f"{kind} axis {axis} block {block} zeros {zeros} {'Gemm' if gemm else 'MatMul'}": (
        qdq,
        {"kind": kind, "axis": axis, "block": block, "zeros": zeros, "gemm": gemm},
    )
    for kind, axis, block, zeros, gemm in itertools.product(
        KINDS, (0, 1), (0, 32), (False, True), (False, True)
    )
}
QDQ |= {
    f"{kind} axis {axis} block {block} float16 scales": (
        qdq,
        {"kind": kind, "axis": axis, "block": block, "half": True},
    )
    for kind, axis, block in itertools.product(KINDS, (0, 1), (0, 16))
}
QDQ |= {
    f"{kind} per channel, {columns} inputs": (
        qdq,
        {"kind": kind, "block": 0, "columns": columns, "zeros": True},
    )
    for kind, columns in itertools.product(("int4", "uint4"), (1, 31, 33, 256, 320))
}
CAST = {
    f"MatMulNBits, cast scales, zero points {zeros}": (nbits, {"zeros": zeros, "cast": True})
    for zeros in (None, "packed", "floats")
}
CAST |= {
    f"{kind} axis {axis} block 32 zeros {zeros}, cast scales": (
        qdq,
        {"kind": kind, "axis": axis, "zeros": zeros, "cast": True},
    )
    for kind, axis, zeros in itertools.product(("int4", "uint4"), (0, 1), (False, True))
}
FORMS = NBITS | QDQ | CAST


def rows_of(rows, columns):
    return RNG.standard_normal((rows, columns)).astype(np.float32)


def expected(x, matrix, added):
    return x.astype(float) @ matrix + added, float((np.abs(x).astype(float) @ np.abs(matrix)).max())


def ort(model, x):
    """What onnxruntime computes; None where it does not run the form."""
    onnxruntime = pytest.importorskip("onnxruntime")
    try:
        options = onnxruntime.SessionOptions()
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        return session.run(None, {"x": x})[0]
    except Exception as error:  # it has no one class for what it refuses
        if not any(word in str(error) for word in ("NOT_IMPLEMENTED", "FAIL", "INVALID", "g_idx")):
            raise
        return None


def bound(x, matrix, block):
    """Half a step of each block's rows, times magnitudes of weights, beside fp32 accumulation."""
    rows, columns = x.shape
    count = -(-columns // block)
    wide = np.zeros((rows, count * block))
    wide[:, :columns] = np.abs(x)
    most = wide.reshape(rows, count, block).max(-1)
    weights = np.zeros((count * block, matrix.shape[1]))
    weights[:columns] = np.abs(matrix)
    each = most @ weights.reshape(count, block, -1).sum(1)
    return each / 254 * (1 + 1e-4) + 1e-5 * (np.abs(x).astype(float) @ np.abs(matrix)).max()


def embedding(kind, block, zeros, half=False):
    """Build DequantizeLinear of a table [70, 64] and a Gather; return it and the table."""
    low, dtype = OFFSETS[kind], np.float16 if half else np.float32
    numbers = RNG.integers(low, low + (1 << BITS[kind]), (70, 64))
    blocks = 64 // block if block else 1
    scales = RNG.uniform(0.01, 0.02, (70, blocks)).astype(dtype)
    points = RNG.integers(low, low + (1 << BITS[kind]), (70, blocks)) if zeros else 0
    each = 64 // blocks
    wide = numbers - (np.repeat(points, each, 1) if zeros else 0)
    wide = wide * np.repeat(scales.astype(float), each, 1)
    parts = [initializer("q", numbers, kind)]
    parts.append(initializer("s", scales if block else scales[:, 0]))
    if zeros:
        parts.append(initializer("z", points if block else points[:, 0], kind))
    named = {"axis": 1, "block_size": block} if block else {"axis": 0}
    return embedding_of(parts, named, half=half), wide


def embedding_of(parts, named, *, half=False):
    """Build DequantizeLinear of `parts` [70, 64], with attributes, and a Gather of rows ``i``."""
    names = [part.name for part in parts]
    nodes = [helper.make_node("DequantizeLinear", names, ["w"], **named)]
    nodes += [helper.make_node("Cast", ["w"], ["f"], to=TensorProto.FLOAT)] if half else []
    nodes.append(helper.make_node("Gather", ["f" if half else "w", "i"], ["y"]))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("i", TensorProto.INT64, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 64])],
        parts,
    )
    opset = helper.make_opsetid("", 21)
    return helper.make_model(graph, opset_imports=[opset], ir_version=10)
