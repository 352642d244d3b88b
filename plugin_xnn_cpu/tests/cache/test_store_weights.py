"""The pass `store-weights`: half the bytes, the same operators, the same results nearly."""

from __future__ import annotations

from types import SimpleNamespace

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from cache_kit import compiled, weights
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import narrowpass
from narrowpass import Bundle
from narrowpass.errors import NarrowpassError
from narrowpass_ir.io import ConvertedTensor, elements
from narrowpass_xnn_cpu.store_weights import StoreWeights

RNG = np.random.default_rng(8)
TYPES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
FLOAT8 = {
    "float8e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8e5m2": np.dtype(ml_dtypes.float8_e5m2),
}


def floats(*shape):
    return (RNG.standard_normal(shape) * 0.1).astype(np.float32)


def decoder(opset=18, **changed):
    """Build a tied embedding (its table is the LM head too), with a matmul between."""
    constants = {"table": floats(64, 48), "w": floats(48, 48), "b": floats(48), **changed}
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["e"]),
        helper.make_node("Gemm", ["e", "w", "b"], ["h"], transB=1),
        helper.make_node("Transpose", ["table"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["h", "t"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "decoder",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["N"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 64])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = 8
    return model


def build(model, text="store-weights"):
    return narrowpass.build(ir.from_proto(model), text)


def decisions(bundle):
    (report,) = bundle.reports
    (part,) = report.methods.values()
    return {item["node"]: SimpleNamespace(**item) for item in part.decisions}


def saved_model(bundle, path):
    bundle.save(path)
    return onnx.load(path / "main.onnx")


IDS = np.array([3, 0, 63, 3], np.int64)


@pytest.mark.parametrize("dtype", TYPES)
def test_weights_are_halved_and_biases_are_not(tmp_path, dtype):
    model = decoder()
    bundle = build(model, f"store-weights{{dtype={dtype}}}")
    stored = saved_model(bundle, tmp_path / "m.narrow")
    types = {tensor.name: tensor.data_type for tensor in stored.graph.initializer}
    narrow = getattr(TensorProto, dtype.upper())
    assert types == {"table": narrow, "w": narrow, "b": TensorProto.FLOAT}
    casts = [node for node in stored.graph.node if node.op_type == "Cast"]
    assert {node.input[0] for node in casts} == {"table", "w"}
    sizes = {info.nbytes for info in bundle.data.values()}
    assert sizes == {64 * 48 * 2, 48 * 48 * 2}  # the bias is so small that it is no data
    # Any tool computes the same; only rounding differs from the model before.
    right = ReferenceEvaluator(model).run(None, {"ids": IDS})[0]
    reference = ReferenceEvaluator(stored).run(None, {"ids": IDS})[0]
    program = compiled(Bundle.load(tmp_path / "m.narrow"), cache="memory")
    assert not any(plan.reason for plan in program.explain())
    got = program.run({"ids": IDS})["y"]
    np.testing.assert_allclose(got, reference, rtol=1e-5, atol=1e-5)
    unit = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    assert np.abs(got - right).max() <= 4 * unit * np.abs(right).max()
    # The table is used as it is stored; the matrices are packed as float32, as they would be.
    found = weights(program)
    assert found["raw_bytes"] == 64 * 48 * 2
    assert (
        found["methods"]["main"]["packed_bytes"]
        == weights(compiled(Bundle({"main": ir.from_proto(model)}), cache="memory"))["methods"][
            "main"
        ]["packed_bytes"]
    )


@pytest.mark.parametrize("dtype", FLOAT8)
def test_weights_of_8_bits_are_a_quarter(tmp_path, dtype):
    model = decoder()
    stored = saved_model(build(model, f"store-weights{{dtype={dtype}}}"), tmp_path / "m.narrow")
    assert stored.opset_import[0].version == 19
    types = {tensor.name: tensor.data_type for tensor in stored.graph.initializer}
    narrow = getattr(TensorProto, dtype.upper())
    assert types == {"table": narrow, "w": narrow, "b": TensorProto.FLOAT}
    rounded = {
        tensor.name: array.astype(FLOAT8[dtype]).astype(np.float32)
        for tensor in model.graph.initializer
        if (array := numpy_helper.to_array(tensor)).ndim == 2
    }
    # The weights alone are rounded: a model with rounded weights in float32 computes the same.
    b = numpy_helper.to_array(model.graph.initializer[2])
    expected = ReferenceEvaluator(decoder(**rounded, b=b)).run(None, {"ids": IDS})[0]
    program = compiled(Bundle.load(tmp_path / "m.narrow"), cache="memory")
    assert not any(plan.reason for plan in program.explain())
    np.testing.assert_allclose(program.run({"ids": IDS})["y"], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("op_type", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("dtype", TYPES)
def test_weights_of_recurrent_layers_are_halved(tmp_path, op_type, dtype):
    gates, hidden = {"LSTM": 4, "GRU": 3, "RNN": 1}[op_type], 40
    constants = {
        "w": floats(1, gates * hidden, 32),
        "r": floats(1, gates * hidden, hidden),
        "b": floats(1, 2 * gates * hidden),
    }
    node = helper.make_node(op_type, ["x", "w", "r", "b"], ["y"], hidden_size=hidden)
    graph = helper.make_graph(
        [node],
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["T", 2, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["T", 1, 2, hidden])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    bundle = build(model, f"store-weights{{dtype={dtype}}}")
    stored = saved_model(bundle, tmp_path / "m.narrow")
    types = {tensor.name: tensor.data_type for tensor in stored.graph.initializer}
    narrow = getattr(TensorProto, dtype.upper())
    assert types == {"w": narrow, "r": narrow, "b": TensorProto.FLOAT}
    x = floats(7, 2, 32)
    right = ReferenceEvaluator(model).run(None, {"x": x})[0]
    program = compiled(Bundle.load(tmp_path / "m.narrow"), cache="memory")
    assert not any(plan.reason for plan in program.explain())
    # The bfloat16 instruction rounds inputs, too; errors of the gates pass from step to step.
    unit = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    error = np.abs(program.run({"x": x})["y"] - right).max()
    assert 0 < error <= 8 * unit * np.abs(right).max()


def test_other_runtimes_load_it(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    saved_model(build(decoder()), tmp_path / "m.narrow")
    session = onnxruntime.InferenceSession(
        str(tmp_path / "m.narrow" / "main.onnx"), providers=["CPUExecutionProvider"]
    )
    program = compiled(Bundle.load(tmp_path / "m.narrow"), cache="memory")
    np.testing.assert_allclose(
        session.run(None, {"ids": IDS})[0], program.run({"ids": IDS})["y"], rtol=1e-5, atol=1e-5
    )


def test_fold_leaves_it_as_it_is_and_a_second_run_changes_nothing(tmp_path):
    pytest.importorskip("narrowpass_constant_folding")
    model = decoder()
    first = saved_model(build(model), tmp_path / "a.narrow")
    both = saved_model(build(model, "store-weights,fold"), tmp_path / "b.narrow")
    twice = saved_model(build(model, "store-weights,store-weights"), tmp_path / "c.narrow")
    types = [
        {tensor.name: tensor.data_type for tensor in model.graph.initializer}
        for model in (first, both)
    ]
    assert types[0] == types[1]
    assert twice.SerializeToString() == first.SerializeToString()


@pytest.mark.parametrize(
    ("dtype", "value", "reason"),
    [
        ("float16", 70000, "too large for float16"),
        ("float16", -65520, "too large for float16"),
        ("bfloat16", 3.3999e38, "too large for bfloat16"),
        ("float8e4m3fn", -449, "too large for float8e4m3fn"),
        ("float8e5m2", 60000, "too large for float8e5m2"),
    ],
)
def test_elements_that_do_not_fit_keep_their_weight(dtype, value, reason):
    matrix = floats(48, 48)
    matrix[5, 7] = value
    bundle = build(decoder(w=matrix), f"store-weights{{dtype={dtype}}}")
    found = decisions(bundle)
    assert found["w"].decision == "kept"
    assert reason in found["w"].reason
    assert found["w"].measured == pytest.approx(abs(value))
    assert found["w"].limit is not None
    assert found["table"].decision == dtype


def test_infinities_and_nan_do_not_keep_a_weight():
    matrix = floats(48, 48)
    matrix[0, :3] = np.inf, -np.inf, np.nan
    found = decisions(build(decoder(w=matrix)))
    assert found["w"].decision == "float16"


def test_infinities_keep_a_weight_from_a_type_without_them():
    matrix = floats(48, 48)
    matrix[0, 0] = np.inf
    found = decisions(build(decoder(w=matrix), "store-weights{dtype=float8e4m3fn}"))
    assert found["w"].decision == "kept"
    assert "infinite" in found["w"].reason
    found = decisions(build(decoder(w=matrix), "store-weights{dtype=float8e5m2}"))
    assert found["w"].decision == "float8e5m2"


@pytest.mark.parametrize(("dtype", "limit"), [("float8e4m3fn", 0.04), ("float8e5m2", 0.08)])
def test_the_tolerance_follows_the_type(dtype, limit):
    tiny = floats(48, 48) * np.float32(1e-4)
    found = decisions(build(decoder(w=tiny), f"store-weights{{dtype={dtype}}}"))
    assert (found["w"].decision, found["table"].decision) == ("kept", dtype)
    assert found["w"].measured > found["w"].limit == limit


def test_a_weight_that_is_lost_in_rounding_is_kept():
    tiny = floats(48, 48) * np.float32(1e-6)
    found = decisions(build(decoder(w=tiny)))
    assert (found["w"].decision, found["table"].decision) == ("kept", "float16")
    assert found["w"].measured > found["w"].limit == 4e-3
    bfloat = decisions(build(decoder(w=tiny), "store-weights{dtype=bfloat16}"))
    assert bfloat["w"].decision == "bfloat16"
    tolerant = decisions(build(decoder(w=tiny), "store-weights{tolerance=1}"))
    assert tolerant["w"].decision == "float16"


def test_inputs_and_outputs_keep_their_dtype():
    model = decoder()
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [48, 48]))
    model.graph.output.append(helper.make_tensor_value_info("table", TensorProto.FLOAT, [64, 48]))
    bundle = build(model)
    assert decisions(bundle) == {}


def test_a_weight_that_only_a_subgraph_reads():
    inner = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["z"])],
        "then",
        [],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, ["N", 48])],
    )
    other = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["u"])],
        "else",
        [],
        [helper.make_tensor_value_info("u", TensorProto.FLOAT, ["N", 48])],
    )
    node = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=other)
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 48]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 48])],
        [numpy_helper.from_array(floats(48, 48), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    bundle = build(model)
    assert decisions(bundle)["w"].decision == "float16"
    x = floats(2, 48)
    program = compiled(bundle, cache="memory")
    matrix = numpy_helper.to_array(graph.initializer[0])
    for condition, right in ((True, x @ matrix), (False, x)):
        got = program.run({"c": np.array(condition), "x": x})["y"]
        np.testing.assert_allclose(got, right, rtol=2e-3, atol=2e-3)


def test_an_operator_set_without_the_cast_is_upgraded():
    model = decoder(opset=11)
    bundle = build(model, "store-weights{dtype=bfloat16}")
    proto = ir.to_proto(bundle.methods["main"])
    assert [entry.version for entry in proto.opset_import] == [13]
    types = {tensor.name: tensor.data_type for tensor in proto.graph.initializer}
    assert types["w"] == types["table"] == TensorProto.BFLOAT16
    right = ReferenceEvaluator(model).run(None, {"ids": IDS})[0]
    got = ReferenceEvaluator(proto).run(None, {"ids": IDS})[0]
    np.testing.assert_allclose(got, right, rtol=2e-2, atol=2e-2 * np.abs(right).max())
    assert StoreWeights().dtype == "float16"


def test_an_operator_set_that_cannot_be_upgraded():
    model = decoder(opset=11)
    body = [helper.make_node("Relu", ["a"], ["b"])]
    imports = [helper.make_opsetid("", 11)]
    model.functions.append(helper.make_function("mine", "F", ["a"], ["b"], body, imports))
    model.opset_import.append(helper.make_opsetid("mine", 1))
    with pytest.raises(NarrowpassError, match="from operator set 13 on; the model has 11"):
        build(model, "store-weights{dtype=bfloat16}")


def test_a_model_without_large_weights_keeps_its_operator_set():
    model = decoder(opset=11, table=floats(8, 48), w=floats(8, 8), b=floats(8))
    model.graph.node[1].CopyFrom(helper.make_node("Identity", ["e"], ["h"]))
    bundle = build(model, "store-weights{dtype=bfloat16}")
    assert bundle.methods["main"].opset_imports[""] == 11


# Converted tensors


@pytest.mark.parametrize("dtype", TYPES)
def test_a_converted_tensor_in_any_piece(dtype):
    array = floats(7, 33)
    tensor = ConvertedTensor(ir.tensor(array, name="t"), getattr(ir.DataType, dtype.upper()))
    right = array.astype(TYPES[dtype])
    np.testing.assert_array_equal(tensor.numpy().view(np.uint16), right.view(np.uint16))
    whole = right.tobytes()
    assert (tensor.tobytes(), tensor.nbytes, tensor.size) == (whole, len(whole), 231)
    for start, size in ((0, 0), (0, 1), (1, 1), (1, 6), (3, 9), (461, 1), (0, 462)):
        assert tensor.read(start, size) == whole[start : start + size]
    with pytest.raises(ValueError, match="not inside"):
        tensor.read(460, 3)
    np.testing.assert_array_equal(elements(tensor, 5, 9).view("u2"), right.ravel()[5:9].view("u2"))


def test_only_floats_are_converted():
    with pytest.raises(TypeError, match="INT8"):
        ConvertedTensor(ir.tensor(floats(2)), ir.DataType.INT8)
    with pytest.raises(TypeError, match="INT64"):
        ConvertedTensor(ir.tensor(np.zeros(2, np.int64)), ir.DataType.FLOAT16)
