"""Random graphs of constants: the same bits before and after, under onnx's evaluator."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from folding_kit import assert_same_bits, assert_stable
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx.reference import ReferenceEvaluator

from narrowpass import Context
from narrowpass_constant_folding.passes.fold import Fold

UNARY = ("Neg", "Abs", "Exp", "Identity", "Sqrt", "Relu", "Ceil", "IsNaN", "Shape")
BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Less")
VALUES = st.sampled_from([0.0, -0.0, 1.5, -2.0, np.nan, np.inf, -np.inf, 2.0**-100, 2.0**127])


@st.composite
def models(draw):
    """Build nodes over constants and one input, all of one shape, which may be empty."""
    shape = draw(st.sampled_from([(), (1,), (3,), (0,), (2, 3), (0, 2)]))
    arrays = draw(st.lists(hnp.arrays(np.float32, shape, elements=VALUES), min_size=1, max_size=3))
    floats = [f"c{index}" for index in range(len(arrays))] + ["x"]
    nodes, produced = [], []
    for index in range(draw(st.integers(1, 12))):
        op = draw(st.sampled_from(UNARY + BINARY))
        inputs = [draw(st.sampled_from(floats)) for _ in range(1 + (op in BINARY))]
        name = f"v{index}"
        nodes.append(onnx.helper.make_node(op, inputs, [name]))
        produced.append((name, op))
        if op not in ("IsNaN", "Shape", "Less"):
            floats.append(name)
    outputs = draw(st.lists(st.sampled_from(produced), min_size=1, max_size=4, unique=True))
    infos = []
    for name, op in outputs:
        kind = {"IsNaN": 9, "Less": 9, "Shape": 7}.get(op, 1)
        dims = (len(shape),) if op == "Shape" else shape
        infos.append(onnx.helper.make_tensor_value_info(name, kind, dims))
    graph = onnx.helper.make_graph(
        nodes,
        "g",
        [onnx.helper.make_tensor_value_info("x", 1, shape)],
        infos,
        [onnx.numpy_helper.from_array(array, f"c{i}") for i, array in enumerate(arrays)],
    )
    imports = [onnx.helper.make_opsetid("", 17)]
    proto = onnx.helper.make_model(graph, opset_imports=imports, ir_version=8)
    return proto, draw(hnp.arrays(np.float32, shape, elements=VALUES))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(models())
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_fold_keeps_bits(produced):
    proto, x = produced
    model = ir.from_proto(proto)
    ctx = Context()
    Fold().run(model, ctx)
    after = ir.to_proto(model)
    onnx.checker.check_model(after, full_check=True)
    assert after.graph.input == proto.graph.input
    assert after.graph.output == proto.graph.output
    assert ctx.counters["failed"] == 0
    expected = ReferenceEvaluator(proto).run(None, {"x": x})
    actual = ReferenceEvaluator(after).run(None, {"x": x})
    for got, due in zip(actual, expected, strict=True):
        assert_same_bits(got, due)
    assert_stable(model)
