"""LSTM, GRU and RNN with weights of int8 whose rows and states are quantized at run time."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from cache_kit import compiled
from onnx import TensorProto, helper, numpy_helper
from onnxruntime_kit import run_onnxruntime
from xnn_kit import compile_model, skip_where_nan_is_lost

from narrowpass import Bundle
from narrowpass.framework.classify import ACTIVATIONS

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
CASES = {
    "LSTM": ("LSTM", {}),
    "LSTM, backwards": ("LSTM", {"direction": "reverse"}),
    "LSTM, both": ("LSTM", {"direction": "bidirectional"}),
    "LSTM, coupled": ("LSTM", {"input_forget": 1}),
    "GRU": ("GRU", {}),
    "GRU, both": ("GRU", {"direction": "bidirectional"}),
    "GRU, reset after": ("GRU", {"linear_before_reset": 1}),
    "RNN": ("RNN", {}),
}


def quantized_model(case, inputs=12, hidden=20, one_scale=False, dynamic=True, least=-128, **added):
    """Build a layer whose W and R are DequantizeLinear of int8, and one output for each result."""
    op_type, attributes = CASES[case][0], {**CASES[case][1], **added}
    rng = np.random.default_rng(5)
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    rows = GATES[op_type] * hidden
    nodes, constants = [], {}
    for name, columns in (("w", inputs), ("r", hidden)):
        shape = directions, rows, columns
        constants[f"{name}8"] = rng.integers(least, 128, shape, np.int8)
        scale = rng.uniform(0.5, 2, () if one_scale else rows) / (100 * np.sqrt(columns))
        constants[f"{name}s"] = scale.astype(np.float32)
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}8", f"{name}s"], [name], axis=1))
    constants["b"] = rng.standard_normal((directions, 2 * rows)).astype(np.float32) * 0.1
    count = 3 if op_type == "LSTM" else 2
    results = ["y", "h", "c"][:count]
    nodes.append(
        helper.make_node(
            op_type, ["x", "w", "r", "b", "lengths"], results, hidden_size=hidden, **attributes
        )
    )
    state = [directions, "N", hidden]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["T", "N", inputs]),
            helper.make_tensor_value_info("lengths", TensorProto.INT32, ["N"]),
        ],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["T"][: name == "y"] + state)
            for name in results
        ],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model = ir.from_proto(proto)
    if dynamic:
        for node in model.graph:
            if node.op_type == op_type:
                node.metadata_props[ACTIVATIONS] = "dynamic"
    return proto, model


def feeds(steps, batch, inputs=12, lengths=None):
    x = np.random.default_rng(6).standard_normal((steps, batch, inputs)).astype(np.float32)
    return {"x": x, "lengths": np.array(lengths or [steps] * batch, np.int32)}


def expected(proto, given):
    """Let onnxruntime compute with the numbers of the weights, without quantizing anything."""
    return run_onnxruntime(proto, given)


def check(program, proto, given, tolerance=0.02):
    """Compare: rows and states are off by up to a 250th of their largest magnitude."""
    for got, right in zip(program.run(given).values(), expected(proto, given), strict=True):
        assert got.shape == right.shape
        assert np.abs(got - right).max(initial=0) <= tolerance


def kernel_of(program):
    return next(p.kernel for p in program.explain() if "recurrence" in p.kernel)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("one_scale", [False, True])
def test_results_are_near_those_of_the_same_weights(case, one_scale):
    proto, model = quantized_model(case, one_scale=one_scale)
    program = compile_model(model)
    assert "recurrence int8" in kernel_of(program)
    for steps, batch in ((1, 1), (7, 1), (5, 3), (4, 6), (3, 9)):
        check(program, proto, feeds(steps, batch))
    check(program, proto, feeds(6, 3, lengths=[6, 0, 2]))


@pytest.mark.parametrize("case", ["LSTM, both", "GRU, both", "LSTM"])
def test_inputs_are_multiplied_as_bytes_with_the_scales_of_both_directions(case):
    # A weight of -128 would leave the GEMM of the inputs in float32.
    proto, model = quantized_model(case, least=-127)
    program = compile_model(model)
    assert any("in int8" in plan.kernel for plan in program.explain())
    check(program, proto, feeds(5, 3), tolerance=0.03)


@pytest.mark.parametrize("hidden", [1, 3, 4, 15, 16, 17, 33, 64])
def test_any_number_of_hidden_units(hidden):
    for case in ("LSTM, both", "GRU", "GRU, reset after"):
        proto, model = quantized_model(case, hidden=hidden)
        check(compile_model(model), proto, feeds(4, 5))


@pytest.mark.parametrize("case", CASES)
def test_threads_change_nothing(case):
    _, model = quantized_model(case, hidden=160)
    given = feeds(5, 4)
    right = compile_model(model).run(given)
    for threads in (2, 3, 4):
        found = compile_model(model, threads=threads).run(given)
        for name, array in right.items():
            np.testing.assert_array_equal(found[name], array)


def test_without_the_property_states_stay_floats():
    proto, model = quantized_model("LSTM", dynamic=False)
    program = compile_model(model)
    assert "recurrence int8" not in kernel_of(program)
    check(program, proto, feeds(5, 2), tolerance=1e-5)


def test_nan_spreads_in_its_sequence_alone():
    skip_where_nan_is_lost()
    _, model = quantized_model("LSTM")
    program = compile_model(model)
    given = feeds(5, 3)
    right = program.run(given)
    given["x"][2, 1, 4] = np.nan
    found = program.run(given)
    assert np.isnan(found["y"][2:, 0, 1]).all()
    np.testing.assert_array_equal(found["y"][:2], right["y"][:2])
    np.testing.assert_array_equal(found["y"][:, :, [0, 2]], right["y"][:, :, [0, 2]])


def test_states_that_grow_beyond_any_scale_are_nan():
    # A weight of -128 keeps the GEMM of the inputs in float32: its gates are infinite here.
    proto, model = quantized_model("RNN", activations=["Affine"], activation_alpha=[1.0])
    given = feeds(4, 2)
    given["x"][1, 0, 0] = np.inf
    found = compile_model(model).run(given)["y"]
    assert not np.isfinite(found[1:, 0, 0]).any()
    assert np.isfinite(found[:, 0, 1]).all()
    assert np.abs(found[0] - expected(proto, given)[0][0]).max() < 0.02


def test_states_of_zeros():
    proto, model = quantized_model("RNN")
    given = feeds(3, 2)
    given["x"][:] = 0
    check(compile_model(model), proto, given)


def test_no_steps_and_no_sequences():
    proto, model = quantized_model("LSTM")
    program = compile_model(model)
    assert program.run(feeds(3, 0))["y"].shape == (3, 1, 0, 20)
    assert not program.run(feeds(0, 2))["h"].any()
    check(program, proto, feeds(2, 2))


def test_cached_packed_weights_return_the_same_bits(tmp_path):
    _, model = quantized_model("GRU, both")
    given = feeds(4, 2)
    Bundle({"main": model}).save(tmp_path / "m.narrow")
    found = [
        compiled(Bundle.load(tmp_path / "m.narrow"), tmp_path / "cache", cache=True).run(given)
        for _ in range(2)
    ]
    alone = compile_model(model).run(given)
    for name, array in alone.items():
        np.testing.assert_array_equal(found[0][name], array)
        np.testing.assert_array_equal(found[1][name], array)


@pytest.mark.parametrize("unsigned", [False, True])
@pytest.mark.parametrize("channels", [False, True])
@pytest.mark.parametrize("both", [False, True])
def test_zero_points_of_dynamic_quantize_lstm_are_taken_away(unsigned, channels, both):
    """Each direction has scales and zero points of its own; the oracle computes with numbers."""
    rng = np.random.default_rng(9)
    directions, hidden, size = 1 + both, 21, 10
    rows = 4 * hidden
    shape = (directions, rows) if channels else (directions,)
    kind = np.uint8 if unsigned else np.int8
    middle = 128 if unsigned else 0
    stored, real = {}, {}
    for name, columns in (("w", size), ("r", hidden)):
        whole = rng.integers(middle - 127, middle + 127, (directions, columns, rows)).astype(kind)
        scale = (rng.uniform(0.5, 2, shape) / (100 * np.sqrt(columns))).astype(np.float32)
        zero = rng.integers(middle - 60, middle + 60, shape).astype(kind)
        stored |= {name: whole, f"{name}_scale": scale, f"{name}_zero": zero}
        away = whole.astype(np.int32) - zero.reshape(directions, 1, -1).astype(np.int32)
        numbers = away.astype(np.float32) * scale.reshape(directions, 1, -1)
        real[name] = np.ascontiguousarray(numbers.transpose(0, 2, 1))
    bias = (0.1 * rng.standard_normal((directions, 2 * rows))).astype(np.float32)
    named = {"hidden_size": hidden, "direction": "bidirectional" if both else "forward"}
    zeros = ["w_scale", "w_zero", "r_scale", "r_zero"]
    quantized = helper.make_node(
        "DynamicQuantizeLSTM",
        ["x", "w", "r", "b", "", "", "", "", *zeros],
        ["y"],
        domain="com.microsoft",
        **named,
    )

    def model(node, constants):
        graph = helper.make_graph(
            [node],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["T", "N", size])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(a, name) for name, a in {**constants, "b": bias}.items()],
        )
        domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=domains, ir_version=8)

    plain = model(helper.make_node("LSTM", ["x", "w", "r", "b"], ["y"], **named), real)
    given = {"x": rng.standard_normal((7, 3, size)).astype(np.float32)}
    with compile_model(model(quantized, stored)) as program:
        assert "recurrence int8" in kernel_of(program)
        check(program, plain, given, tolerance=0.03)
