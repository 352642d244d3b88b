"""Weights in bytes: what is stored, for which operators, and how near the results are."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from int8_kit import build, constants, floats, model, rewritten, verdicts
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnxruntime_kit import session_of

import narrowpass
from narrowpass.errors import NarrowpassError
from narrowpass.framework.classify import ACTIVATIONS
from narrowpass_int8_sym.weights import QuantizedTensor, magnitudes

IMAGE = {"x": [1, 4, 6, 6]}
OPERATORS = {
    "MatMul": (helper.make_node("MatMul", ["x", "w"], ["y"]), {"x": [3, 16]}, (16, 8), 1),
    "Gemm": (helper.make_node("Gemm", ["x", "w"], ["y"]), {"x": [3, 16]}, (16, 8), 1),
    "Gemm, the other way round": (
        helper.make_node("Gemm", ["x", "w"], ["y"], transB=1),
        {"x": [3, 16]},
        (8, 16),
        0,
    ),
    "Conv": (helper.make_node("Conv", ["x", "w"], ["y"]), IMAGE, (8, 4, 3, 3), 0),
    "Conv, depthwise": (
        helper.make_node("Conv", ["x", "w"], ["y"], group=4),
        IMAGE,
        (4, 1, 3, 3),
        0,
    ),
    "Conv of a line": (helper.make_node("Conv", ["x", "w"], ["y"]), {"x": [1, 4, 9]}, (8, 4, 3), 0),
    "ConvTranspose": (
        helper.make_node("ConvTranspose", ["x", "w"], ["y"]),
        IMAGE,
        (4, 5, 3, 3),
        1,
    ),
    "ConvTranspose, grouped": (
        helper.make_node("ConvTranspose", ["x", "w"], ["y"], group=2),
        IMAGE,
        (4, 3, 3, 3),
        None,
    ),
}


def single(name):
    node, inputs, shape, axis = OPERATORS[name]
    rank = 2 if "Mat" in name or "Gemm" in name else len(shape)
    copy = helper.make_node(node.op_type, list(node.input), ["y"])
    copy.attribute.extend(node.attribute)
    weight = floats(*shape) * np.float32(10.0) ** floats(
        *[n if i == axis else 1 for i, n in enumerate(shape)]
    )
    return model([copy], inputs, {"y": [f"d{i}" for i in range(rank)]}, {"w": weight}), weight, axis


def evaluated(proto, feeds, name):
    """Run a model on onnx's evaluator; on onnxruntime what that fails on."""
    if name == "ConvTranspose, grouped":
        return session_of(proto).run(None, feeds)[0]
    return ReferenceEvaluator(proto).run(None, feeds)[0]


@pytest.mark.parametrize("kind", ["per-channel", "per-tensor"])
@pytest.mark.parametrize("name", OPERATORS)
def test_each_operator(name, kind):
    proto, weight, axis = single(name)
    rewritten_model = rewritten(proto, f"int8-sym{{mode=weight-only,weights={kind}}}")
    stored, scale = constants(rewritten_model)["w.int8"], constants(rewritten_model)["w.scale"]
    assert (stored.dtype, scale.dtype) == (np.int8, np.float32)
    if kind == "per-tensor" or axis is None:
        assert scale.shape == ()
        assert np.abs(stored).max() == 127
        full = scale
    else:
        assert scale.shape == (weight.shape[axis],)
        others = tuple(i for i in range(weight.ndim) if i != axis)
        np.testing.assert_array_equal(np.abs(stored).max(axis=others), 127)
        full = scale.reshape([-1 if i == axis else 1 for i in range(weight.ndim)])
    # Half a step, and what float32 rounds of the quotient.
    assert (np.abs(stored * full - weight) <= full * 0.5001).all()
    feeds = {"x": floats(*[int(n) for n in OPERATORS[name][1]["x"]])}
    right, got = (evaluated(p, feeds, name) for p in (proto, rewritten_model))
    terms = np.abs(feeds["x"]).max() * float(np.max(full)) * 0.51 * weight.size
    assert np.abs(got - right).max() <= terms
    if kind == "per-channel":
        assert np.corrcoef(got.ravel(), right.ravel())[0, 1] > 0.999


def test_rows_are_asked_to_be_quantized():
    proto, _, _ = single("MatMul")
    rewritten_model = ir.from_proto(rewritten(proto))
    asked = {node.op_type: node.metadata_props.get(ACTIVATIONS) for node in rewritten_model.graph}
    assert asked == {"DequantizeLinear": None, "MatMul": "dynamic"}
    rewritten_model = ir.from_proto(rewritten(proto, "int8-sym{mode=weight-only}"))
    assert all(ACTIVATIONS not in node.metadata_props for node in rewritten_model.graph)


def test_convolutions_stay_float_in_dynamic_mode():
    proto, _, _ = single("Conv")
    bundle = build(proto)
    assert verdicts(bundle)["n0"]["reason"] == "activations of Conv are not quantized at run time"
    assert rewritten(proto).SerializeToString() == rewritten(proto, "").SerializeToString()


def test_a_shared_weight_is_stored_once_for_each_axis():
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("MatMul", ["a", "w"], ["b"]),
        helper.make_node("Gemm", ["b", "w"], ["y"], transB=1),
    ]
    proto = model(nodes, {"x": [3, 16]}, {"y": [3, 16]}, {"w": floats(16, 16)})
    rewritten_model = rewritten(proto)
    assert sorted(constants(rewritten_model)) == ["w.int8", "w.int8.1", "w.scale", "w.scale.1"]
    assert [node.op_type for node in rewritten_model.graph.node].count("DequantizeLinear") == 2


def test_a_weight_that_others_read_as_float_stays_beside():
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Add", ["a", "w"], ["y"]),
    ]
    rewritten_model = rewritten(
        model(nodes, {"x": [16, 16]}, {"y": [16, 16]}, {"w": floats(16, 16)})
    )
    assert sorted(constants(rewritten_model)) == ["w", "w.int8", "w.scale"]


def test_weights_of_constant_nodes():
    from onnx import numpy_helper

    tensor = numpy_helper.from_array(floats(16, 8))
    nodes = [
        helper.make_node("Constant", [], ["w"], value=tensor),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    rewritten_model = rewritten(model(nodes, {"x": [3, 16]}, {"y": [3, 8]}, {}))
    assert [node.op_type for node in rewritten_model.graph.node] == ["DequantizeLinear", "MatMul"]


def test_channels_of_zeros_and_of_tiny_numbers():
    weight = floats(16, 4)
    weight[:, 1] = 0
    weight[:, 2] *= 1e-30
    weight[:, 3] = np.float32(1e-44)
    proto = model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        {"x": [3, 16]},
        {"y": [3, 4]},
        {"w": weight},
    )
    found = constants(rewritten(proto))
    assert found["w.scale"][1] == 1
    assert (found["w.int8"][:, 1] == 0).all()
    assert np.isfinite(found["w.scale"]).all()
    assert (found["w.scale"] > 0).all()
    assert np.abs(found["w.int8"][:, 2]).max() == 127


def test_the_least_scale_of_the_policy_floor():
    weight = floats(16, 4)
    weight[:, 1] *= 1e-6
    proto = model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        {"x": [3, 16]},
        {"y": [3, 4]},
        {"w": weight},
    )
    found = constants(rewritten(proto, "int8-sym{scale-policy=floor}"))
    assert found["w.scale"][1] == 2.0**-12
    assert (found["w.int8"][:, 1] == 0).all()  # what the policy costs


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_weights_that_are_no_numbers(number):
    weight = floats(16, 4)
    weight[3, 2] = number
    proto = model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        {"x": [3, 16]},
        {"y": [3, 4]},
        {"w": weight},
    )
    with pytest.raises(NarrowpassError, match="'w' has an element that is infinite or NaN"):
        build(proto)


LEFT = {
    "both operands are computed": (["x", "z"], {}),
    "its weight 'w' has 3 dimensions, and not two": (["x", "w"], {"w": floats(2, 16, 8)}),
}


@pytest.mark.parametrize("reason", LEFT)
def test_what_is_left_has_a_reason(reason):
    inputs, weights = LEFT[reason]
    rank = 3 if weights else 2
    proto = model(
        [helper.make_node("MatMul", inputs, ["y"])],
        {"x": [3, 16], "z": [16, 8]},
        {"y": [f"d{i}" for i in range(rank)]},
        weights,
    )
    found = verdicts(build(proto))["n0"]
    assert (found["decision"], found["reason"]) == ("float", reason)


def test_red_nodes_stay_float(caplog):
    proto, _, _ = single("MatMul")
    found = verdicts(build(proto, "int8-sym{red=[n0,nobody]}"))["n0"]
    assert (found["decision"], found["by"]) == ("float", "option red=n0")
    assert "red item 'nobody' selects no node" in caplog.text


def test_a_weight_that_may_be_fed_stays():
    proto, _, _ = single("MatMul")
    proto.graph.input.append(helper.make_tensor_value_info("w", 1, [16, 8]))
    assert verdicts(build(proto))["n0"]["reason"].startswith("its weight 'w' may be fed")


@pytest.mark.parametrize(
    ("opset", "text", "least"), [(12, "int8-sym", 13), (9, "int8-sym{weights=per-tensor}", 10)]
)
def test_older_operator_sets_are_upgraded(opset, text, least):
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    proto = model([node], {"x": [3, 16]}, {"y": [3, 8]}, {"w": floats(16, 8)}, opset=opset)
    rewritten_model = rewritten(proto, text)
    assert rewritten_model.opset_import[0].version == least
    assert "w.int8" in constants(rewritten_model)
    part = build(proto, text).reports[-1].methods["main"]
    said = [item["reason"] for item in part.decisions if item["decision"] == "upgraded"]
    assert all(f"the model had {opset}" in reason for reason in said)


def test_per_tensor_from_operator_set_10():
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    proto = model([node], {"x": [3, 16]}, {"y": [3, 8]}, {"w": floats(16, 8)}, opset=10)
    assert "w.int8" in constants(rewritten(proto, "int8-sym{weights=per-tensor}"))


def test_weights_of_a_branch():
    branch = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["t"], name="inner")],
        "then",
        [],
        [helper.make_tensor_value_info("t", 1, [3, 8])],
    )
    other = helper.make_graph(
        [helper.make_node("MatMul", ["x", "v"], ["e"], name="other")],
        "else",
        [],
        [helper.make_tensor_value_info("e", 1, [3, 8])],
    )
    nodes = [helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=other)]
    proto = model(
        nodes,
        {"x": [3, 16]},
        {"y": [3, 8]},
        {"w": floats(16, 8), "v": floats(16, 8), "c": np.array(True)},
    )
    rewritten_model = rewritten(proto)
    assert {"w.int8", "v.int8"} <= set(constants(rewritten_model))
    x = {"x": floats(3, 16)}
    (right,), (got,) = (ReferenceEvaluator(p).run(None, x) for p in (proto, rewritten_model))
    np.testing.assert_allclose(got, right, atol=0.1)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    shape=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    data=st.data(),
    seed=st.integers(0, 99),
)
def test_any_part_of_a_tensor_can_be_read(shape, data, seed):
    axis = data.draw(st.none() | st.integers(0, len(shape) - 1))
    array = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    tensor = ir.Tensor(array)
    largest = magnitudes(tensor, axis)
    others = tuple(i for i in range(array.ndim) if i != axis)
    right = np.abs(array).max() if axis is None else np.abs(array).max(axis=others)
    np.testing.assert_array_equal(largest, right)
    rewritten_model = QuantizedTensor(
        tensor, np.maximum(largest, np.float32(1e-3)) / np.float32(127), axis, "t"
    )
    whole = rewritten_model.tobytes()
    first = data.draw(st.integers(0, array.size))
    size = data.draw(st.integers(0, array.size - first))
    assert rewritten_model.read(first, size) == whole[first : first + size]
    assert rewritten_model.numpy().shape == array.shape


def test_large_weights_are_read_in_pieces():
    """More than one piece, along an axis that is not the last."""
    array = floats(3, 5, 70_000)
    for axis in (None, 0, 1, 2):
        others = tuple(i for i in range(3) if i != axis)
        right = np.abs(array).max() if axis is None else np.abs(array).max(axis=others)
        np.testing.assert_array_equal(magnitudes(ir.Tensor(array), axis), right)


@pytest.mark.parametrize("name", OPERATORS)
def test_onnxruntime_takes_the_result(name):
    proto, _, _ = single(name)
    rewritten_model = rewritten(proto, "int8-sym{mode=weight-only}")
    feeds = {"x": floats(*[int(n) for n in OPERATORS[name][1]["x"]])}
    got = session_of(rewritten_model).run(None, feeds)[0]
    np.testing.assert_allclose(got, evaluated(rewritten_model, feeds, name), rtol=1e-4, atol=1e-3)


def test_openvino_takes_the_result():
    openvino = pytest.importorskip("openvino")
    proto, _, _ = single("Gemm, the other way round")
    rewritten_model = rewritten(proto, "int8-sym{mode=weight-only}")
    core = openvino.Core()
    compiled = core.compile_model(
        core.read_model(rewritten_model.SerializeToString()),
        "CPU",
        {"INFERENCE_PRECISION_HINT": "f32"},
    )
    feeds = {"x": floats(3, 16)}
    (right,) = ReferenceEvaluator(rewritten_model).run(None, feeds)
    np.testing.assert_allclose(compiled(feeds)[0], right, rtol=1e-4, atol=1e-3)


def test_the_file_is_a_quarter():
    proto = model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        {"x": [3, 512]},
        {"y": [3, 512]},
        {"w": floats(512, 512)},
    )
    rewritten_model = rewritten(proto)
    assert rewritten_model.ByteSize() < 0.27 * proto.ByteSize()


def test_narrowpass_runs_it():
    proto, _, _ = single("MatMul")
    rewritten_model = build(proto)
    feeds = {"x": floats(3, 16)}
    (right,) = ReferenceEvaluator(ir.to_proto(rewritten_model.methods["main"])).run(None, feeds)
    got = narrowpass.load(rewritten_model, "reference").run(feeds)["y"]
    np.testing.assert_allclose(got, right, rtol=1e-6)
