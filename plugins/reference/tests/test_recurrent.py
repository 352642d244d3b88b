"""LSTM, GRU and RNN with all that the specification has, against onnxruntime."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from narrowpass.bundle import Bundle
from narrowpass.errors import BackendError
from narrowpass.runtime.backend import CompileOptions
from narrowpass_reference import Recurrent, ReferenceBackend

F32 = np.float32
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
FUNCTIONS = {"RNN": 1, "GRU": 2, "LSTM": 3}
OUTPUTS = {"RNN": 2, "GRU": 2, "LSTM": 3}
ACTIVATIONS = {  # name: the default alpha and beta of those that take them
    "Affine": (1.0, 0.0),
    "Elu": (1.0, None),
    "HardSigmoid": (0.2, 0.5),
    "LeakyRelu": (0.01, None),
    "Relu": (None, None),
    "ScaledTanh": (1.0, 1.0),
    "Sigmoid": (None, None),
    "Softplus": (None, None),
    "Softsign": (None, None),
    "Tanh": (None, None),
    "ThresholdedRelu": (1.0, None),
}


def arrays(op_type, rows=5, batch=3, size=4, hidden=3, directions=1, seed=0, dtype=F32):
    """Return X, W, R, B, sequence_lens, initial_h, initial_c and P."""
    rng = np.random.default_rng(seed)
    gates = GATES[op_type] * hidden
    shapes = [(rows, batch, size), (directions, gates, size), (directions, gates, hidden)]
    shapes += [(directions, 2 * gates), None, (directions, batch, hidden)]
    if op_type == "LSTM":
        shapes += [(directions, batch, hidden), (directions, 3 * hidden)]
    inputs = [
        rng.integers(0, rows + 1, batch).astype(np.int32)
        if shape is None
        else (rng.standard_normal(shape) * 0.7).astype(dtype)
        for shape in shapes
    ]
    inputs[0] *= dtype(3)
    return inputs


def model(op_type, inputs, opset=14, outputs=None, **attributes):
    names = ["" if value is None else f"x{index}" for index, value in enumerate(inputs)]
    outputs = [f"y{i}" for i in range(OUTPUTS[op_type])] if outputs is None else outputs
    node = helper.make_node(op_type, names, outputs, name="cell", **attributes)
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
            )
            for name, value in zip(names, inputs, strict=True)
            if name
        ],
        [onnx.ValueInfoProto(name=name) for name in outputs if name],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return onnx.shape_inference.infer_shapes(proto)


def feeds(inputs):
    return {f"x{index}": value for index, value in enumerate(inputs) if value is not None}


def ours(proto, inputs):
    program = ReferenceBackend().compile(Bundle({"main": ir.from_proto(proto)}), CompileOptions())
    return list(program.run(feeds(inputs)).values())


def theirs(proto, inputs):
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, feeds(inputs))


def compare(op_type, inputs, defaults=None, **attributes):
    """Compare with onnxruntime, which gets the `defaults` that are left out here."""
    attributes["hidden_size"] = inputs[2].shape[-1]
    proto = model(op_type, inputs, **attributes, **(defaults or {}))
    got = ours(model(op_type, inputs, **attributes), inputs)
    for one, other in zip(got, theirs(proto, inputs), strict=True):
        # Five steps through a scaled tanh, of slope 2.25, multiply what the first one rounds by 58.
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4, strict=True)


@st.composite
def cases(draw):
    op_type = draw(st.sampled_from(list(GATES)))
    direction = draw(st.sampled_from(["forward", "reverse", "bidirectional"]))
    directions = 2 if direction == "bidirectional" else 1
    sizes = draw(st.tuples(*[st.integers(1, 5)] * 4))
    inputs = arrays(op_type, *sizes, directions, seed=draw(st.integers(0, 1000)))
    for index in range(3, len(inputs)):
        if draw(st.booleans()):
            inputs[index] = None
    attributes = {"direction": direction}
    if draw(st.booleans()):
        count = FUNCTIONS[op_type] * directions
        # Those that grow without bounds would leave the range of float32.
        bounded = st.sampled_from(["HardSigmoid", "ScaledTanh", "Sigmoid", "Softsign", "Tanh"])
        names = draw(st.lists(bounded, min_size=count, max_size=count))
        numbers = st.floats(0.25, 1.5, width=16)
        for place, name in enumerate(("activation_alpha", "activation_beta")):
            taking = sum(ACTIVATIONS[function][place] is not None for function in names)
            values = draw(st.lists(numbers, min_size=taking, max_size=taking))
            if values:
                attributes[name] = values
        attributes["activations"] = names
    if draw(st.booleans()):
        attributes["clip"] = draw(st.floats(0.25, 2, width=16))
    if op_type == "GRU":
        attributes["linear_before_reset"] = draw(st.integers(0, 1))
    if op_type == "LSTM":
        attributes["input_forget"] = draw(st.integers(0, 1))
    return op_type, inputs, attributes


@settings(deadline=None, max_examples=150)
@given(cases())
def test_as_onnxruntime(case):
    op_type, inputs, attributes = case
    compare(op_type, inputs, **attributes)


@pytest.mark.parametrize("numbers", [None, (0.3, 0.7)], ids=["defaults", "numbers"])
@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("op_type", GATES)
def test_activations(op_type, name, numbers):
    """Each at each place. onnxruntime takes 0 for defaults that the specification has as 1."""
    inputs = arrays(op_type, rows=3)
    inputs[4] = None
    usual = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
    options = {
        key: [value]
        for key, value, used in zip(
            ("activation_alpha", "activation_beta"),
            numbers or ACTIVATIONS[name],
            ACTIVATIONS[name],
            strict=True,
        )
        if used is not None
    }
    for place in range(FUNCTIONS[op_type]):
        names = list(usual[op_type])
        names[place] = name
        if numbers:
            compare(op_type, inputs, activations=names, **options)
        else:
            compare(op_type, inputs, options, activations=names)


@pytest.mark.parametrize("op_type", GATES)
def test_numbers_go_to_the_functions_that_take_them(op_type):
    """Two directions: each has functions of its own, numbers are counted through both."""
    inputs = arrays(op_type, directions=2)
    count = FUNCTIONS[op_type]
    names = ["Sigmoid", "LeakyRelu", "Tanh"][:count] + ["HardSigmoid", "Elu", "ScaledTanh"][:count]
    attributes = {"activations": names, "activation_alpha": [0.4, 0.3, 0.2, 0.9][: count + 1]}
    if op_type == "RNN":
        attributes["activation_alpha"] = [0.3]
    if op_type == "GRU":
        attributes["activation_alpha"] = [0.4, 0.3, 0.2]
    attributes["activation_beta"] = [0.6, 0.5][: 2 if op_type == "LSTM" else 1]
    compare(op_type, inputs, direction="bidirectional", clip=3.0, **attributes)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op_type", GATES)
def test_lengths(op_type, direction):
    """Those of 0 have last states of 0, as in onnxruntime; the specification says nothing."""
    inputs = arrays(op_type, batch=4, directions=2 if direction == "bidirectional" else 1)
    inputs[4] = np.array([5, 0, 1, 3], np.int32)
    compare(op_type, inputs, direction=direction)
    inputs[0][1:, 2] = np.nan  # rows beyond the length
    last = ours(model(op_type, inputs, hidden_size=3, direction=direction), inputs)
    assert not any(np.isnan(value).any() for value in last)
    assert not last[0][1:, :, 2].any()
    assert not last[1][:, 1].any()


@pytest.mark.parametrize("op_type", GATES)
def test_batch_first(op_type):
    """onnxruntime has no layout 1 on CPUs: the call is one of layout 0, transposed."""
    inputs = arrays(op_type, directions=2)
    attributes = {"hidden_size": 3, "direction": "bidirectional"}
    expected = theirs(model(op_type, inputs, **attributes), inputs)
    turned = [
        np.ascontiguousarray(value.swapaxes(0, 1)) if index in (0, 5, 6) else value
        for index, value in enumerate(inputs)
    ]
    got = ours(model(op_type, turned, layout=1, **attributes), turned)
    np.testing.assert_allclose(got[0], expected[0].transpose(2, 0, 1, 3), rtol=2e-5, atol=2e-5)
    for one, other in zip(got[1:], expected[1:], strict=True):
        np.testing.assert_allclose(one, other.swapaxes(0, 1), rtol=2e-5, atol=2e-5, strict=True)


@pytest.mark.parametrize("op_type", GATES)
def test_no_rows(op_type):
    inputs = arrays(op_type, rows=0)
    inputs[4] = None
    y, *last = ours(model(op_type, inputs, hidden_size=3), inputs)
    assert y.shape == (0, 1, 3, 3)
    assert not any(value.any() for value in last)


@pytest.mark.parametrize("opset", [7, 14, 22])
def test_outputs_that_are_left_out(opset):
    inputs = arrays("LSTM")
    every = ours(model("LSTM", inputs, opset, hidden_size=3), inputs)
    (only,) = ours(model("LSTM", inputs, opset, ["", "", "last"], hidden_size=3), inputs)
    np.testing.assert_array_equal(only, every[2])
    (only,) = ours(model("LSTM", inputs, opset, ["y"], hidden_size=3), inputs)
    np.testing.assert_array_equal(only, every[0])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("op_type", GATES)
def test_narrow_floats_are_computed_in_float32(op_type, dtype):
    inputs = arrays(op_type, rows=20, dtype=dtype)
    wide = [value if value.dtype == np.int32 else value.astype(F32) for value in inputs]
    got = ours(model(op_type, inputs, opset=22, hidden_size=3), inputs)
    expected = ours(model(op_type, wide, opset=22, hidden_size=3), wide)
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(one, other.astype(dtype), strict=True)


def test_doubles_are_computed_in_float64():
    inputs = [value.astype(np.float64) for value in arrays("RNN")[:4]]
    x, (w,), (r,), (b,) = inputs
    h = np.zeros((3, 3))
    for row in x:
        h = np.tanh(row @ w.T + h @ r.T + b[:3] + b[3:])
    _, last = ours(model("RNN", inputs, hidden_size=3), inputs)
    np.testing.assert_allclose(last[0], h, rtol=1e-14, strict=True)


def test_attributes_of_a_function_s_call():
    text = """<ir_version: 8, opset_import: ["" : 14, "d" : 1]>
    main (float[2,1,1] x, float[1,1,1] w, float[1,1,1] r) => (float[2,1,1,1] y) {
        y = d.cell <c = 0.5> (x, w, r)
    }
    <domain: "d", opset_import: ["" : 14]>
    cell <c> (x, w, r) => (y) { y = RNN <hidden_size = 1, clip: float = @c> (x, w, r) }"""
    one = np.ones((1, 1, 1), F32)
    proto = onnx.parser.parse_model(text)
    x = np.full((2, 1, 1), 3, F32)
    program = ReferenceBackend().compile(Bundle({"main": ir.from_proto(proto)}), CompileOptions())
    (y,) = program.run({"x": x, "w": one, "r": one}).values()
    np.testing.assert_allclose(y.ravel(), [np.tanh(0.5)] * 2, rtol=1e-6)


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"activations": ["Sine"]}, "no activation 'Sine'"),
        ({"direction": "bidirectional", "activations": ["Tanh"]}, "takes 2 activations, not 1"),
        ({"direction": "sideways"}, "no direction 'sideways'"),
    ],
)
def test_what_is_wrong_is_named(attributes, said):
    inputs = arrays("RNN")
    with pytest.raises(BackendError, match=f"'cell'.*{said}"):
        ours(model("RNN", inputs, hidden_size=3, **attributes), inputs)


def test_lengths_beyond_the_rows_are_refused():
    inputs = arrays("GRU")
    inputs[4] = np.array([5, 6, 0], np.int32)
    with pytest.raises(BackendError, match=r"'cell'.*from 0 to 5, not \[5, 6, 0\]"):
        ours(model("GRU", inputs, hidden_size=3), inputs)


def test_the_function_alone():
    x, w, r, *_ = arrays("RNN")
    y, last = Recurrent("RNN", {"activations": [b"Relu"], "direction": b"reverse"})(x, w, r)
    np.testing.assert_array_equal(y[0], last, strict=True)
    np.testing.assert_allclose(y[-1, 0], np.maximum(x[-1] @ w[0].T, 0), rtol=1e-5)
