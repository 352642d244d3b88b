"""Mixtures of experts: com.microsoft's MoE in float32, and of 4 bits, which stay packed.

The oracle is onnxruntime, and float64 by numpy for the third matrix, which its kernel lacks:
1e-5 of the largest magnitude, for fp32 accumulation in another order.
"""

from __future__ import annotations

import numpy as np
import pytest
from few_bits_kit import initializer
from onnx import TensorProto, helper, numpy_helper
from xnn_kit import compile_model

from narrowpass.errors import BackendError

onnxruntime = pytest.importorskip("onnxruntime")  # conftest.py stops CI without it

RNG = np.random.default_rng(41)
EXPERTS, WIDTH, HIDDEN = 4, 64, 96


def mixture(*, bias=False, gated=False, narrow=False, block=32, rank=2, **attributes):
    """Build a MoE of random weights; return it and the weights in float32.

    Args:
        bias: whether both matmuls have one.
        gated: whether there is a third matrix.
        narrow: whether weights are of 4 bits in blocks.
        block: of these.
        rank: of the rows.
        attributes: of the node.
    """
    shapes = {"w1": (EXPERTS, HIDDEN, WIDTH), "w2": (EXPERTS, WIDTH, HIDDEN)}
    shapes |= {"w3": (EXPERTS, HIDDEN, WIDTH)} if gated else {}
    wide, initializers, nodes = {}, [], []
    for name, shape in shapes.items():
        numbers = RNG.integers(-8, 8, shape)
        scales = RNG.uniform(0.01, 0.03, (*shape[:2], shape[2] // block)).astype(np.float32)
        wide[name] = (numbers * np.repeat(scales, block, 2)).astype(np.float32)
        if narrow:
            initializers.append(initializer(f"{name}.q", numbers, "int4"))
            initializers.append(numpy_helper.from_array(scales, f"{name}.s"))
            given = [f"{name}.q", f"{name}.s"]
            nodes.append(
                helper.make_node("DequantizeLinear", given, [name], axis=2, block_size=block)
            )
        else:
            initializers.append(numpy_helper.from_array(wide[name], name))
    if bias:
        for name, width in (("b1", HIDDEN), ("b2", WIDTH)):
            wide[name] = RNG.standard_normal((EXPERTS, width)).astype(np.float32)
            initializers.append(numpy_helper.from_array(wide[name], name))
    one, two = ("b1", "b2") if bias else ("", "")
    inputs = ["x", "p", "w1", one, "w2", two, "w3" if gated else ""]
    while not inputs[-1]:
        inputs.pop()
    nodes.append(helper.make_node("MoE", inputs, ["y"], domain="com.microsoft", **attributes))
    dims = ["batch", "rows", WIDTH][3 - rank :]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, dims),
            helper.make_tensor_value_info("p", TensorProto.FLOAT, ["tokens", EXPERTS]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, dims)],
        initializers,
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10), wide


def feeds(rows, rank=2):
    x = RNG.standard_normal((rows, WIDTH)).astype(np.float32)
    p = RNG.standard_normal((rows, EXPERTS)).astype(np.float32)
    return {"x": x.reshape(1, rows, WIDTH) if rank == 3 else x, "p": p}


def agree(got, right):
    np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-5 * np.abs(right).max())


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "identity"])
@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("normalized", [0, 1])
def test_against_onnxruntime(normalized, k, activation, narrow):
    for bias, rank in ((False, 2), (True, 3)):
        model, _ = mixture(
            bias=bias,
            narrow=narrow,
            rank=rank,
            activation_type=activation,
            k=k,
            normalize_routing_weights=normalized,
        )
        session = onnxruntime.InferenceSession(model.SerializeToString())
        with compile_model(model, threads=2) as program:
            kernels = [p.kernel for p in program.explain()]
            stacked = {kernel for kernel in kernels if "of 4 matrices" in kernel}
            assert bool(stacked) == narrow, kernels
            assert all(kernel.endswith("in int4 (weights)") for kernel in stacked)
            for rows in (1, 7):
                given = feeds(rows, rank)
                agree(program.run(given)["y"], session.run(None, given)[0])


def test_a_third_matrix():
    """SiLU(x · w1) times x · w3, of the two most probable experts."""
    model, wide = mixture(gated=True, narrow=True, activation_type="silu", k=2)
    given = feeds(5)
    x, p = (given[name].astype(float) for name in ("x", "p"))
    odds = np.exp(p) / np.exp(p).sum(-1, keepdims=True)
    right = np.zeros_like(x)
    for row in range(5):
        for expert in np.argsort(-odds[row])[:2]:
            gate, up = wide["w1"][expert] @ x[row], wide["w3"][expert] @ x[row]
            right[row] += odds[row, expert] * (
                wide["w2"][expert] @ (gate / (1 + np.exp(-gate)) * up)
            )
    with compile_model(model) as program:
        agree(program.run(given)["y"], right)


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"activation_type": "swiglu"}, "its activation_type is 'swiglu'"),
        ({"use_sparse_mixer": 1, "k": 2}, "its router is a sparse mixer"),
    ],
)
def test_what_is_not_expanded(attributes, reason):
    model, _ = mixture(**attributes)
    with pytest.raises(BackendError, match=reason):
        compile_model(model)
