"""What is built, loaded and run while calls fail, and what it computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

X = np.random.default_rng(5).standard_normal((3, 96)).astype(np.float32)


def model(seed: int) -> ir.Model:
    """Return two matmuls whose weights are larger than the smallest malloc that fails."""
    rng = np.random.default_rng(seed)
    weights = {"a": rng.standard_normal((96, 256)), "b": rng.standard_normal((256, 80))}
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "b"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 96])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 80])],
        [numpy_helper.from_array(w.astype(np.float32), n) for n, w in weights.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    proto.graph.doc_string = str(seed)
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto))


def expected(seed: int) -> Any:
    """Return what the model computes, by numpy."""
    given = model(seed).graph.initializers
    a, b = (given[name].const_value.numpy() for name in "ab")  # type: ignore[union-attr]
    return np.maximum(X @ a, 0) @ b


IMAGE = np.random.default_rng(6).standard_normal((1, 8, 12, 12)).astype(np.float32)
NETWORK = """
<ir_version: 9, opset_import: ["" : 20]>
network (float[1, 8, 12, 12] x) => (float[1, 10] y)
<float[16, 8, 3, 3] k, float[16, 1, 3, 3] d, float[16] b,
 float[144, 10] w, float[10] s, float[16, 16, 2, 2] l, float[1, 48, 16] i, float[1, 48, 16] h>
{
    c = Conv <pads = [1, 1, 1, 1]> (x, k, b)
    r = Relu (c)
    e = Conv <pads = [1, 1, 1, 1], group = 16> (r, d)
    g = Gelu (e)
    j = Add (r, g)
    jt = ConvTranspose <strides = [2, 2]> (j, l)
    ja = Sigmoid (jt)
    jr = Constant <value = float[4] {1.0, 1.0, 0.5, 0.5}> ()
    js = Resize <mode = "linear"> (ja, "", jr)
    jm = MatMul (js, j)
    jx = Tanh (jm)
    jz = Constant <value = int64[3] {9, 16, 16}> ()
    jg = Reshape (jx, jz)
    jn, jh = GRU <hidden_size = 16> (jg, i, h)
    jk = Constant <value = int64[4] {1, 16, 12, 12}> ()
    jf = Reshape (jn, jk)
    p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (jf)
    q = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (p)
    t = Transpose <perm = [0, 2, 3, 1]> (q)
    f = Flatten (t)
    fw = MatMul (f, w)
    ax = Constant <value = int64[1] {1}> ()
    fm = ReduceMean (fw, ax)
    fd = Sub (fw, fm)
    fq = Mul (fd, fw)
    m = PRelu (fq, s)
    n = LayerNormalization (m, s)
    u, z, o = DynamicQuantizeLinear (n)
    v = DequantizeLinear (u, z, o)
    y = Softmax (v)
}
"""


def network() -> onnx.ModelProto:
    """Return a model of many kernels: convolutions, pooling, matmuls, norms, quantization."""
    rng = np.random.default_rng(7)
    proto = onnx.parser.parse_model(NETWORK)
    for value in proto.graph.value_info:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        weight = (0.3 * rng.standard_normal(shape)).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(weight, value.name))
    del proto.graph.value_info[:]
    onnx.checker.check_model(proto)
    return proto
