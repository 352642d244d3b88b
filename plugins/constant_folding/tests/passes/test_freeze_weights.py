"""Weights that are inputs, too, and become constants."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from folding_kit import parse
from onnx.reference import ReferenceEvaluator

from narrowpass import Context
from narrowpass_constant_folding.passes.freeze_weights import FreezeWeights
from narrowpass_testing import run_pass

WEIGHTS = {"w": np.arange(12, dtype=np.float32).reshape(4, 3), "b": np.ones(3, np.float32)}


def old(ir_version: int = 3) -> onnx.ModelProto:
    """Return a model as IR version 3 has it: its weights are inputs."""
    proto = parse(
        "g (float[2,4] x) => (float[2,3] y) { h = MatMul (x, w) y = Add (h, b) }",
        opset=8,
        initializers=WEIGHTS,
    )
    for name, array in WEIGHTS.items():
        given = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, array.shape)
        proto.graph.input.append(given)
    proto.ir_version = ir_version
    return proto


def frozen(proto: onnx.ModelProto, **options):
    """Run the pass under all checks; return the model, whether it was modified, and the context."""
    ctx = Context()
    result = run_pass(FreezeWeights(**options), ir.from_proto(proto), ctx=ctx)
    return ir.to_proto(result.model), result.modified, ctx


def inputs(proto: onnx.ModelProto) -> list[str]:
    return [value.name for value in proto.graph.input]


@pytest.mark.parametrize(("before", "after"), [(3, 4), (8, 8)])
def test_weights_are_removed_from_the_inputs(before, after):
    proto = old(before)
    after_pass, modified, ctx = frozen(proto)
    onnx.checker.check_model(after_pass, full_check=True)
    assert (inputs(after_pass), after_pass.ir_version, modified) == (["x"], after, True)
    assert {item.node: item.decision for item in ctx.decisions} == {"w": "frozen", "b": "frozen"}
    assert ctx.counters["frozen"] == 2
    feeds = {"x": np.eye(2, 4, dtype=np.float32)}
    right, got = (ReferenceEvaluator(each).run(None, feeds)[0] for each in (proto, after_pass))
    np.testing.assert_array_equal(got, right)


def test_kept_weights_stay_inputs():
    after_pass, _, _ = frozen(old(), keep=("b*",))
    assert inputs(after_pass) == ["x", "b"]


def test_a_second_run_changes_nothing():
    after_pass, _, _ = frozen(old())
    _, modified, ctx = frozen(after_pass)
    assert not modified
    assert not ctx.decisions


def test_an_unmatched_keep_item_is_reported(caplog):
    frozen(old(), keep=("nobody",))
    assert "keep item 'nobody' selects no input" in caplog.text
