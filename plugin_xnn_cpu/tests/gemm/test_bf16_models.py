"""Models with weights of bfloat16 on each code of ours, against the same weights in wider types."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from bf16_kit import EPSILON, executing
from onnx import TensorProto, helper, numpy_helper
from oracle_kit import expected_outputs
from xnn_kit import compile_model

from narrowpass_xnn_cpu.native import target
from narrowpass_xnn_cpu.native.table.matmul import bf16_reject_reason

pytestmark = pytest.mark.usefixtures("bf16_code")

KINDS = {"bfloat16": TensorProto.BFLOAT16, "float32": TensorProto.FLOAT}


class Maker:
    """Builds a model twice: in bfloat16, and with the same weights in float32."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(7)
        self._weights: dict[str, np.ndarray] = {}
        self._nodes: list[onnx.NodeProto] = []

    def weight(self, *shape: int, scale: float = 1.0) -> str:
        """Return the name of a new weight; the last axis of `shape` is not reduced."""
        name = f"w{len(self._weights)}"
        values = self._rng.standard_normal(shape) * scale
        self._weights[name] = values.astype(ml_dtypes.bfloat16)
        return name

    def add(self, kind: str, *inputs: str, **attributes: object) -> str:
        """Add a node; return the name of its output."""
        name = f"v{len(self._nodes)}"
        node = helper.make_node(kind, inputs, [name], name=name, **attributes)
        self._nodes.append(node)
        return name

    def model(self, dtype: str, shape: list[int | str], output: str) -> ir.Model:
        """Return the model with all its values of `dtype`."""
        value = helper.make_tensor_value_info
        wide = np.float32 if dtype == "float32" else ml_dtypes.bfloat16
        constants = [numpy_helper.from_array(w.astype(wide), n) for n, w in self._weights.items()]
        graph = helper.make_graph(
            self._nodes,
            "g",
            [value("x", KINDS[dtype], shape)],
            [value(output, KINDS[dtype], None)],
            constants,
        )
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])
        return ir.from_proto(proto)


def images(m: Maker) -> str:
    """A stem, a residual block with a projection, groups, a depthwise one, and a classifier."""
    same = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    x = m.add("Conv", "x", m.weight(20, 3, 3, 3, scale=0.2), m.weight(20), strides=[2, 2], **same)
    x = m.add("Relu", x)
    y = m.add("Conv", x, m.weight(36, 20, 1, 1, scale=0.2), strides=[2, 2])
    z = m.add("Conv", x, m.weight(36, 20, 3, 3, scale=0.08), strides=[2, 2], **same)
    x = m.add("Relu", m.add("Add", y, z))
    x = m.add("Conv", x, m.weight(36, 18, 3, 3, scale=0.08), m.weight(36), group=2, **same)
    x = m.add("Conv", x, m.weight(36, 1, 3, 3, scale=0.3), group=36, **same)
    x = m.add("Flatten", m.add("GlobalAveragePool", x))
    return m.add("Gemm", x, m.weight(10, 36, scale=0.2), m.weight(10), transB=1)


def tokens(m: Maker) -> str:
    """A block of a transformer with one head."""
    size = 24
    normal = m.add("LayerNormalization", "x", m.weight(size), m.weight(size))
    q, k, v = (m.add("MatMul", normal, m.weight(size, size, scale=0.2)) for _ in range(3))
    scores = m.add("MatMul", q, m.add("Transpose", k, perm=[0, 2, 1]))
    mixed = m.add("MatMul", m.add("Softmax", scores, axis=-1), v)
    x = m.add("Add", "x", m.add("MatMul", mixed, m.weight(size, size, scale=0.2)))
    normal = m.add("LayerNormalization", x, m.weight(size), m.weight(size))
    wide = m.add("Add", m.add("MatMul", normal, m.weight(size, 70, scale=0.2)), m.weight(70))
    narrow = m.add("MatMul", m.add("Gelu", wide), m.weight(70, size, scale=0.1))
    return m.add("Add", x, narrow)


MODELS = {
    "images": (images, ["n", 3, 17, 15], [(1, 3, 17, 15), (2, 3, 17, 15)]),
    "tokens": (tokens, ["n", "t", 24], [(1, 5, 24), (2, 3, 24), (1, 1, 24)]),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_run_natively_and_within_rounding(name):
    """Within twice the bfloat16 rounding of a result of the model in float32."""
    construct, shape, shapes = MODELS[name]
    maker = Maker()
    output = construct(maker)
    program = compile_model(maker.model("bfloat16", shape, output))
    plans = {plan.node: plan for plan in program.explain()}
    assert not [plan for plan in plans.values() if plan.reason]
    reported = [plan.kernel for plan in plans.values() if plan.op_type in ("Conv", "Gemm")]
    if name == "images":
        *convolutions, classifier = reported
        pairs = target.current().has_bf16_dot
        depthwise = convolutions.pop()
        assert depthwise.removeprefix("xnn ") == "depthwise convolution in float32"
        assert all(("in bfloat16" in kernel) is pairs for kernel in convolutions)
        # XNNPACK has a kernel too, for processors with AVX512-BF16, where ours is the plain one.
        ours = classifier == "fully connected in bfloat16"
        assert ours is not bf16_reject_reason(None, target.current())
    wide = ir.to_proto(maker.model("float32", shape, output))
    rng = np.random.default_rng(1)
    for size in shapes:
        x = rng.standard_normal(size).astype(ml_dtypes.bfloat16)
        with executing():
            (got,) = program.run({"x": x}).values()
        (expected,) = expected_outputs(wide, {"x": x.astype(np.float32)}).values()
        assert got.dtype == ml_dtypes.bfloat16
        error = np.abs(got.astype(np.float32) - expected).max() / np.abs(expected).max()
        assert 0 < error < 2 * EPSILON


def test_the_error_is_not_above_that_of_pytorch():
    """Both against float64, for a matmul with GELU."""
    torch = pytest.importorskip("torch")
    maker = Maker()
    matrix, bias, second = (maker.weight(*s, scale=0.2) for s in ((64, 90), (90,), (90, 40)))
    hidden = maker.add("Gelu", maker.add("Add", maker.add("MatMul", "x", matrix), bias))
    output = maker.add("MatMul", hidden, second)
    program = compile_model(maker.model("bfloat16", [12, 64], output))
    x = np.random.default_rng(2).standard_normal((12, 64)).astype(ml_dtypes.bfloat16)
    (got,) = program.run({"x": x}).values()

    def compute(dtype):
        given = [maker._weights[name].astype(np.float32) for name in (matrix, bias, second)]
        m, b, s = (torch.from_numpy(array).to(dtype) for array in given)
        rows = torch.from_numpy(x.astype(np.float32)).to(dtype)
        return (torch.nn.functional.gelu(rows @ m + b) @ s).to(torch.float64).numpy()

    exact = compute(torch.float64)
    ours, theirs = (
        np.abs(y - exact).mean() for y in (got.astype(np.float64), compute(torch.bfloat16))
    )
    assert ours <= theirs * 1.05
