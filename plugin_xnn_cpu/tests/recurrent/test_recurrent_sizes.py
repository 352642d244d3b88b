"""Native LSTM, GRU and RNN of all sizes, lengths and types of weights.

Against onnxruntime, or where that lacks what is asked, against onnx's evaluator with the project's
formulas in numpy. States are at most 1 in magnitude: the tolerance is 2e-6 absolute, for GEMMs in
float32 in another order and an error of 1e-7 of each activation, over 9 steps.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from oracle_kit import run_onnxruntime
from xnn_kit import compile_model, skip_where_nan_is_lost

from narrowpass.errors import BackendError

RNG = np.random.default_rng(7)
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
TOLERANCE = 2e-6


def weights_of(op_type, directions, inputs, hidden, *, bias=True):
    rows = GATES[op_type] * hidden
    recurrent = RNG.standard_normal((directions, GATES[op_type], hidden, hidden)) / hidden**0.5
    # A gate of norm 1 does not raise the error of the state from step to step.
    recurrent /= np.maximum(np.linalg.norm(recurrent, 2, axis=(2, 3), keepdims=True), 1)
    weights = {
        "w": RNG.standard_normal((directions, rows, inputs)) / inputs**0.5,
        "r": recurrent.reshape(directions, rows, hidden),
    }
    if bias:
        weights["b"] = RNG.standard_normal((directions, 2 * rows)) / 4
    return {name: array.astype(np.float32) for name, array in weights.items()}


def model_of(op_type, weights, *, lengths=False, states=False, outputs=None, **attributes):
    """Build a model whose steps and batch are free."""
    hidden = weights["r"].shape[2]
    directions = weights["r"].shape[0]
    attributes.setdefault("direction", "bidirectional" if directions == 2 else "forward")
    names = ["x", "w", "r", "b" if "b" in weights else "", "lengths" if lengths else ""]
    leading = ["n", "t"] if attributes.get("layout") else ["t", "n"]
    infos = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [*leading, weights["w"].shape[2]])
    ]
    if lengths:
        infos.append(helper.make_tensor_value_info("lengths", TensorProto.INT32, ["n"]))
    for name in ("h", "c")[: 2 if op_type == "LSTM" else 1] if states else ():
        names.append(name)
        shape = ["n", directions, hidden] if attributes.get("layout") else [directions, "n", hidden]
        infos.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
    results = outputs or ["y", "y_h", "y_c"][: 3 if op_type == "LSTM" else 2]
    node = helper.make_node(op_type, names, results, name="node", hidden_size=hidden, **attributes)
    declared = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * (4 if name == "y" else 3))
        for name in results
        if name
    ]
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph([node], "g", infos, declared, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def by_onnxruntime(model, feeds):
    return list(run_onnxruntime(model, feeds).values())


def assert_native(program):
    assert all("recurrence" in plan.kernel for plan in program.explain()), program.explain()


def compare(model, feeds, expected, threads=1, tolerance=TOLERANCE):
    with compile_model(model, threads=threads) as program:
        assert_native(program)
        for one, other in zip(program.run(feeds).values(), expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=tolerance)


@pytest.mark.parametrize("op_type", GATES)
@pytest.mark.parametrize("hidden", [1, 5, 8, 16, 17, 40])
@pytest.mark.parametrize("batch", [1, 2, 3, 4, 9])
def test_hidden_units_and_batches(op_type, hidden, batch):
    for directions, after in ((1, 0), (2, 1)):
        weights = weights_of(op_type, directions, 3, hidden)
        more = {"linear_before_reset": after} if op_type == "GRU" else {}
        model = model_of(op_type, weights, **more)
        feeds = {"x": RNG.standard_normal((9, batch, 3)).astype(np.float32)}
        compare(model, feeds, by_onnxruntime(model, feeds))


@pytest.mark.parametrize("op_type", GATES)
@pytest.mark.parametrize("threads", [2, 3, 5])
@pytest.mark.parametrize("directions", [1, 2])
def test_threads_that_divide_a_step(op_type, threads, directions):
    """There are as many units as threads divide in each step."""
    weights = weights_of(op_type, directions, 16, 288)
    model = model_of(op_type, weights)
    feeds = {"x": RNG.standard_normal((5, 4, 16)).astype(np.float32)}
    expected = by_onnxruntime(model, feeds)
    compare(model, feeds, expected, threads, tolerance=5e-6)
    with compile_model(model) as one, compile_model(model, threads=threads) as several:
        for a, b in zip(one.run(feeds).values(), several.run(feeds).values(), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


@pytest.mark.parametrize("op_type", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_lengths_and_states_that_change_from_run_to_run(op_type, direction):
    directions = 2 if direction == "bidirectional" else 1
    weights = weights_of(op_type, directions, 3, 20)
    model = model_of(op_type, weights, lengths=True, states=True, direction=direction)
    with compile_model(model, threads=2) as program:
        assert_native(program)
        for steps, lengths in ((9, [9, 0, 4]), (4, [1, 4]), (9, [3, 9, 9])):
            batch = len(lengths)
            feeds = {
                "x": RNG.standard_normal((steps, batch, 3)).astype(np.float32),
                "lengths": np.array(lengths, np.int32),
            }
            for name in ("h", "c")[: 2 if op_type == "LSTM" else 1]:
                state = RNG.standard_normal((directions, batch, 20)) / 2
                feeds[name] = state.astype(np.float32)
            expected = by_onnxruntime(model, feeds)
            for one, other in zip(program.run(feeds).values(), expected, strict=True):
                np.testing.assert_allclose(one, other, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("op_type", GATES)
def test_a_batch_that_comes_first(op_type):
    """onnxruntime has no layout 1: its layout 0 on transposed operands is the oracle."""
    weights = weights_of(op_type, 2, 3, 20)
    model = model_of(op_type, weights, states=True, layout=1)
    feeds = {"x": RNG.standard_normal((4, 7, 3)).astype(np.float32)}
    for name in ("h", "c")[: 2 if op_type == "LSTM" else 1]:
        feeds[name] = RNG.standard_normal((4, 2, 20)).astype(np.float32)
    time_major = model_of(op_type, weights, states=True)
    swapped = {name: np.swapaxes(array, 0, 1).copy() for name, array in feeds.items()}
    y, *states = by_onnxruntime(time_major, swapped)
    # [steps, directions, batch, hidden] and [directions, batch, hidden], with the batch first.
    expected = [y.transpose(2, 0, 1, 3), *(np.swapaxes(state, 0, 1) for state in states)]
    compare(model, feeds, expected)


@pytest.mark.parametrize("outputs", [["y"], ["", "y_h"], ["", "", "y_c"], ["y", "", "y_c"]])
def test_outputs_that_are_left_out(outputs):
    weights = weights_of("LSTM", 1, 3, 20)
    model = model_of("LSTM", weights, outputs=outputs)
    feeds = {"x": RNG.standard_normal((7, 2, 3)).astype(np.float32)}
    compare(model, feeds, by_onnxruntime(model, feeds))


@pytest.mark.parametrize("op_type", GATES)
@pytest.mark.parametrize("shape", [(0, 2, 3), (3, 0, 3)])
def test_empty_sequences_and_batches(op_type, shape):
    model = model_of(op_type, weights_of(op_type, 1, 3, 20))
    with compile_model(model) as program:
        y, state, *_ = program.run({"x": np.zeros(shape, np.float32)}).values()
    assert y.shape == (shape[0], 1, shape[1], 20)
    np.testing.assert_array_equal(state, np.zeros((1, shape[1], 20)))


@pytest.mark.parametrize("op_type", GATES)
def test_nan_stays_in_its_sequence(op_type):
    skip_where_nan_is_lost()
    model = model_of(op_type, weights_of(op_type, 1, 3, 20))
    x = RNG.standard_normal((5, 3, 3)).astype(np.float32)
    x[2, 1] = np.nan
    with compile_model(model) as program:
        y = program.run({"x": x})["y"]
    assert np.isnan(y[2:, :, 1]).all()
    assert np.isfinite(y[:2]).all()
    assert np.isfinite(y[:, :, [0, 2]]).all()


def test_lengths_that_are_too_large_are_an_error():
    model = model_of("GRU", weights_of("GRU", 1, 3, 20), lengths=True)
    feeds = {"x": np.zeros((5, 2, 3), np.float32), "lengths": np.array([3, 6], np.int32)}
    with compile_model(model) as program, pytest.raises(BackendError, match="node"):
        program.run(feeds)


@pytest.mark.parametrize("op_type", GATES)
@pytest.mark.parametrize("per_channel", [False, True])
def test_weights_of_int8(op_type, per_channel):
    """The oracle computes with the dequantized weights."""
    weights = weights_of(op_type, 1, 24, 40)
    model = model_of(op_type, weights)
    for name in ("w", "r"):
        array = weights[name]
        axes = (0, 2) if per_channel else None
        scale = (np.abs(array).max(axis=axes) / 127).astype(np.float32)
        shaped = scale.reshape(1, -1, 1) if per_channel else scale
        stored = np.clip(np.rint(array / shaped), -127, 127).astype(np.int8)
        index = [tensor.name for tensor in model.graph.initializer].index(name)
        model.graph.initializer[index].CopyFrom(numpy_helper.from_array(stored, f"{name}_stored"))
        model.graph.initializer.append(numpy_helper.from_array(scale, f"{name}_scale"))
        node = helper.make_node(
            "DequantizeLinear", [f"{name}_stored", f"{name}_scale"], [name], axis=1
        )
        model.graph.node.insert(0, node)
    onnx.checker.check_model(model)
    feeds = {"x": RNG.standard_normal((9, 2, 24)).astype(np.float32)}
    expected = by_onnxruntime(model, feeds)
    with compile_model(model) as program:
        plans = [plan for plan in program.explain() if plan.op_type == op_type]
        assert all("recurrence" in plan.kernel for plan in plans)
        for one, other in zip(program.run(feeds).values(), expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)
