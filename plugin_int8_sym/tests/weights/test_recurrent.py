"""W and R of LSTM, GRU and RNN in bytes, where activations are quantized at run time or nowhere."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from int8_kit import build, constants, floats, model, rewritten, verdicts
from onnx import helper
from onnxruntime_kit import run_onnxruntime

import narrowpass
from narrowpass.framework.classify import ACTIVATIONS

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
INPUTS, HIDDEN, STEPS, BATCH = 24, 20, 6, 3
MODES = ("weight-only", "dynamic")


def layer(op_type, directions=1, inputs=None, **constants):
    """Build a model of one layer; rows of gates differ by factors of up to some hundreds."""
    gates = GATES[op_type] * HIDDEN
    rows = np.float32(10.0) ** floats(1, gates, 1, scale=0.5)
    weights = {
        "w": floats(directions, gates, INPUTS, scale=0.1) * rows,
        "r": floats(directions, gates, HIDDEN, scale=0.1) * rows,
        **constants,
    }
    direction = "bidirectional" if directions == 2 else "forward"
    node = helper.make_node(
        op_type, ["x", "w", "r"], ["y"], hidden_size=HIDDEN, direction=direction
    )
    given = {"x": ["T", BATCH, INPUTS], **(inputs or {})}
    weights = {name: array for name, array in weights.items() if name not in given}
    return model([node], given, {"y": ["T", directions, BATCH, HIDDEN]}, weights), weights


def run(proto, x):
    """Let onnxruntime run a model as it stands; onnx's evaluator has no second direction."""
    return run_onnxruntime(proto, {"x": x})[0]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("op_type", GATES)
def test_both_weights_are_bytes_with_a_scale_for_each_row_of_gates(op_type, directions, mode):
    proto, weights = layer(op_type, directions)
    stored = rewritten(proto, f"int8-sym{{mode={mode}}}")
    after = constants(stored)
    for name, weight in weights.items():
        scales = np.abs(weight).max(axis=(0, 2)) / np.float32(127)
        np.testing.assert_allclose(after[f"{name}.scale"], scales, rtol=1e-6)
        expected = np.rint(weight / after[f"{name}.scale"][None, :, None])
        np.testing.assert_array_equal(after[f"{name}.int8"], expected)
        assert name not in after
    x = floats(STEPS, BATCH, INPUTS)
    right = run(proto, x)
    # States are at most 1; rounding moves the gates by some steps of a 254th of their weights.
    assert np.abs(run(stored, x) - right).max() < 0.05
    assert not np.array_equal(run(stored, x), right)


@pytest.mark.parametrize("mode", MODES)
def test_the_report_has_the_layer_and_the_mode_is_passed_to_the_backend(mode):
    bundle = build(layer("LSTM")[0], f"int8-sym{{mode={mode}}}")
    (verdict,) = verdicts(bundle).values()
    assert (verdict["op_type"], verdict["decision"]) == ("LSTM", "int8")
    (node,) = (n for n in bundle.methods["main"].graph if n.op_type == "LSTM")
    assert node.metadata_props.get(ACTIVATIONS) == ("dynamic" if mode == "dynamic" else None)


def test_one_scale_where_that_is_asked_for():
    proto, weights = layer("GRU")
    after = constants(rewritten(proto, "int8-sym{mode=weight-only,weights=per-tensor}"))
    for name, weight in weights.items():
        assert after[f"{name}.scale"] == pytest.approx(np.abs(weight).max() / 127)


def test_weights_that_two_layers_read_are_stored_once():
    proto, _ = layer("RNN")
    second = helper.make_node("RNN", ["x", "w", "r"], ["z"], hidden_size=HIDDEN, name="second")
    proto.graph.node.append(second)
    proto.graph.output.append(helper.make_tensor_value_info("z", 1, ["T", 1, BATCH, HIDDEN]))
    stored = rewritten(proto, "int8-sym{mode=weight-only}")
    assert sum(node.op_type == "DequantizeLinear" for node in stored.graph.node) == 2


@pytest.mark.parametrize("name", ["w", "r"])
def test_a_computed_weight_leaves_the_layer_and_says_so(name):
    shape = [1, 4 * HIDDEN, INPUTS if name == "w" else HIDDEN]
    proto, _ = layer("LSTM", inputs={name: shape})
    (verdict,) = verdicts(build(proto, "int8-sym{mode=weight-only}")).values()
    assert verdict["decision"] == "float"
    assert verdict["reason"] == f"its weight {name.upper()} is computed"


def test_a_red_layer_stays_float():
    proto, weights = layer("LSTM")
    bundle = build(proto, "int8-sym{mode=dynamic,red=[op:LSTM]}")
    (verdict,) = verdicts(bundle).values()
    assert (verdict["decision"], verdict["by"]) == ("float", "option red=op:LSTM")
    assert set(bundle.methods["main"].graph.initializers) == set(weights)


def test_a_layer_that_costs_too_much_stays_float():
    proto, _ = layer("LSTM")
    samples = [{"x": floats(STEPS, BATCH, INPUTS)} for _ in range(2)]
    bundle = narrowpass.build(
        ir.from_proto(proto),
        "int8-sym{mode=weight-only,tolerance=rel:1e-9}",
        calibration=samples,
        target="reference",
    )
    (verdict,) = verdicts(bundle).values()
    assert (verdict["decision"], verdict["by"]) == ("float", "verification")
