"""LSTM, GRU and RNN in numpy, against onnxruntime."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from oracle_kit import run_onnxruntime
from xnn_kit import check, compile_model

from narrowpass.errors import BackendError

RNG = np.random.default_rng(5)
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def model(op_type, *, bias, states, direction="forward", **attributes) -> onnx.ModelProto:
    """Build a model of one node over sequences of 7 rows of 3, batches of 2, 5 hidden units."""
    count = 2 if direction == "bidirectional" else 1
    gates = GATES[op_type] * 5
    weights = {"w": (count, gates, 3), "r": (count, gates, 5)}
    names = ["x", "w", "r", "", ""]
    if bias:
        weights["b"] = (count, 2 * gates)
        names[3] = "b"
    if states:
        weights["h"] = (count, 2, 5)
        names.append("h")
        if op_type == "LSTM":
            weights["c"] = (count, 2, 5)
            names.append("c")
    outputs = ["y", "y_h", "y_c"][: 3 if op_type == "LSTM" else 2]
    node = helper.make_node(
        op_type, names, outputs, hidden_size=5, direction=direction, **attributes
    )
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [7, 2, 3])],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [
            numpy_helper.from_array(RNG.standard_normal(shape).astype(np.float32), name)
            for name, shape in weights.items()
        ],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    return onnx.shape_inference.infer_shapes(proto)


def check_against_onnxruntime(proto: onnx.ModelProto) -> None:
    feeds = {"x": RNG.standard_normal((7, 2, 3)).astype(np.float32) * 3}
    program = check(proto, feeds, native=None, oracle="onnxruntime")
    assert any("recurrence" in plan.kernel for plan in program.explain())


@pytest.mark.parametrize("op_type", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("states", [False, True])
def test_recurrent(op_type, direction, bias, states):
    check_against_onnxruntime(model(op_type, bias=bias, states=states, direction=direction))


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_gru_that_resets_after_the_product(direction):
    check_against_onnxruntime(
        model("GRU", bias=True, states=True, direction=direction, linear_before_reset=1)
    )


CELLS = {
    "lengths": ("LSTM", {"direction": "bidirectional"}, [7, 3]),
    "lengths, backwards": ("GRU", {"direction": "reverse"}, [0, 5]),
    "clip": ("LSTM", {"clip": 0.5}, None),
    "coupled": ("LSTM", {"input_forget": 1}, None),
    "Relu": ("RNN", {"activations": ["Relu"]}, [2, 7]),
    "HardSigmoid": (
        "GRU",
        {"activations": ["HardSigmoid", "Softsign"], "activation_alpha": [0.3]},
        None,
    ),
}


@pytest.mark.parametrize("case", CELLS)
def test_attributes_and_lengths(case):
    op_type, attributes, lengths = CELLS[case]
    proto = model(op_type, bias=True, states=True, **attributes)
    if lengths:
        proto.graph.node[0].input[4] = "n"
        proto.graph.initializer.append(numpy_helper.from_array(np.array(lengths, np.int32), "n"))
    check_against_onnxruntime(proto)


def test_outputs_without_a_name():
    proto = model("LSTM", bias=True, states=True)
    proto.graph.node[0].output[:] = ["", "y_h"]
    for value in list(proto.graph.output):
        if value.name != "y_h":
            proto.graph.output.remove(value)
    check_against_onnxruntime(proto)


def test_peepholes():
    proto = model("LSTM", bias=True, states=True)
    proto.graph.node[0].input.append("p")
    p = RNG.standard_normal((1, 15)).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(p, "p"))
    check_against_onnxruntime(proto)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("op_type", GATES)
def test_narrow_floats_are_rounded_at_the_outputs(op_type, dtype):
    """They are computed in float32; a value between two narrow ones may go to either."""
    check_narrow(model(op_type, bias=True, states=False), op_type, dtype)


def with_moved_gates(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Store W and R without directions, their gates in another order; nodes put them right."""
    nodes = []
    for name in "wr":
        (tensor,) = (t for t in proto.graph.initializer if t.name == name)
        array = numpy_helper.to_array(tensor)[0]
        tensor.CopyFrom(numpy_helper.from_array(np.roll(array, 5, axis=0), f"{name}_stored"))
        for part, span in (("head", [0, 5]), ("tail", [5, len(array)])):
            for place, value in zip(("start", "end"), span, strict=True):
                constant = numpy_helper.from_array(np.array([value]), f"{name}_{part}_{place}")
                proto.graph.initializer.append(constant)
            given = [f"{name}_stored", f"{name}_{part}_start", f"{name}_{part}_end"]
            nodes.append(helper.make_node("Slice", given, [f"{name}_{part}"]))
        parts = [f"{name}_tail", f"{name}_head"]
        nodes.append(helper.make_node("Concat", parts, [f"{name}_rows"], axis=0))
        nodes.append(helper.make_node("Unsqueeze", [f"{name}_rows", "zero"], [name]))
    proto.graph.initializer.append(numpy_helper.from_array(np.array([0]), "zero"))
    nodes += proto.graph.node
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    return onnx.shape_inference.infer_shapes(proto)


@pytest.mark.parametrize("dtype", ["float", "float16", "bfloat16"])
@pytest.mark.parametrize("op_type", ["GRU", "LSTM"])
def test_weights_whose_gates_are_moved_by_nodes(op_type, dtype):
    """PyTorch exports them so."""
    proto = with_moved_gates(model(op_type, bias=True, states=False))
    if dtype == "float":
        check_against_onnxruntime(proto)
    else:
        check_narrow(proto, op_type, dtype)


def check_narrow(wide: onnx.ModelProto, op_type: str, dtype: str) -> None:
    narrow = ir.from_proto(wide)
    kind = ir.DataType[dtype.upper()]
    floats = [t for t in narrow.graph.initializers.values() if t.dtype == ir.DataType.FLOAT]
    for tensor in floats:
        array = tensor.const_value.numpy().astype(kind.numpy())
        tensor.const_value = ir.tensor(array, name=tensor.name)
        tensor.dtype = kind
    for value in (*narrow.graph.inputs, *(v for node in narrow.graph for v in node.outputs)):
        value.dtype = kind
    narrow.graph.opset_imports[""] = 22
    x = RNG.standard_normal((7, 2, 3)).astype(kind.numpy())
    program = compile_model(narrow)
    assert any(f"recurrence {op_type}" in plan.kernel for plan in program.explain())
    for tensor in wide.graph.initializer:
        if tensor.data_type != TensorProto.FLOAT:
            continue
        rounded = narrow.graph.initializers[tensor.name].const_value.numpy().astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(rounded, tensor.name))
    expected = run_onnxruntime(wide, {"x": x.astype(np.float32)})
    for one, other in zip(program.run({"x": x}).values(), expected.values(), strict=True):
        assert one.dtype == kind.numpy()
        unit = float(ml_dtypes.finfo(one.dtype).eps)
        np.testing.assert_allclose(one.astype(np.float32), other, rtol=unit, atol=1e-6)


def test_an_activation_that_there_is_not():
    proto = model("RNN", bias=True, states=False, activations=["Sine"])
    with pytest.raises(BackendError, match="no activation 'Sine'"):
        compile_model(proto)
