"""Models written with a newer operator set: the same results, weights, names and metadata."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import narrowpass
from narrowpass.errors import NarrowpassError

RNG = np.random.default_rng(5)
FLOAT = TensorProto.FLOAT


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def model(nodes, opset, constants=(), inputs=("x",), functions=(), rank=4):
    for index, node in enumerate(nodes):
        node.name = f"n{index}"
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, FLOAT, [2, 3, 8, 8]) for name in inputs],
        [helper.make_tensor_value_info("y", FLOAT, [f"d{axis}" for axis in range(rank)])],
        [numpy_helper.from_array(array, name) for name, array in dict(constants).items()],
    )
    after_pass = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], functions=functions
    )
    after_pass.ir_version = 4
    return after_pass


def upgraded(proto, text="upgrade-opset"):
    before = proto.SerializeToString()
    bundle = narrowpass.build(ir.from_proto(proto), text, target="reference")
    assert proto.SerializeToString() == before
    return ir.to_proto(bundle.methods["main"])


WEIGHT = floats(4, 3, 3, 3)
NETWORKS = {
    # Operators whose definition changed since, each with what it takes for it.
    "attributes that become inputs": (
        9,
        [
            helper.make_node("Clip", ["x"], ["a"], min=-0.5, max=0.5),
            helper.make_node("Slice", ["a"], ["b"], starts=[1], ends=[7], axes=[2]),
            helper.make_node("ReduceSum", ["b"], ["c"], axes=[1], keepdims=1),
            helper.make_node("Squeeze", ["c"], ["d"], axes=[1]),
            helper.make_node("Pad", ["d"], ["y"], pads=[0, 1, 0, 0, 0, 1], value=0.5),
        ],
        {},
    ),
    "softmax over all axes after one": (
        11,
        [helper.make_node("Softmax", ["x"], ["y"], axis=2)],
        {},
    ),
    "convolutions and pools": (
        7,
        [
            helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
            helper.make_node("MaxPool", ["a"], ["d"], kernel_shape=[2, 2]),
            helper.make_node("GlobalAveragePool", ["d"], ["e"]),
            helper.make_node("Flatten", ["e"], ["y"]),
        ],
        {"w": WEIGHT},
    ),
    "upsampling": (
        9,
        [helper.make_node("Upsample", ["x", "k"], ["y"], mode="nearest")],
        {"k": np.array([1, 1, 2, 2], np.float32)},
    ),
    "dropout": (7, [helper.make_node("Dropout", ["x"], ["y"], ratio=0.3)], {}),
    "large weights, which the converter does not see": (
        13,
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        {"w": floats(8, 500)},
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_results_stay(name):
    opset, nodes, constants = NETWORKS[name]
    rank = {"attributes that become inputs": 3, "convolutions and pools": 2}.get(name, 4)
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    proto = model(copies, opset, constants, rank=rank)
    after_pass = upgraded(proto)
    onnx.checker.check_model(after_pass, full_check=True)
    assert [(item.domain, item.version) for item in after_pass.opset_import] == [("", 22)]
    x = floats(2, 3, 8, 8)
    (got,) = ReferenceEvaluator(after_pass).run(None, {"x": x})
    if name == "upsampling":  # the evaluator has none of the old definition
        right = x.repeat(2, axis=2).repeat(2, axis=3)
    elif name == "dropout":
        right = x
    elif name == "softmax over all axes after one":  # the evaluator takes the last axis only
        weights = np.exp(x.reshape(6, 64))
        right = (weights / weights.sum(axis=1, keepdims=True)).reshape(x.shape)
    else:
        (right,) = ReferenceEvaluator(proto).run(None, {"x": x})
    np.testing.assert_allclose(got, right, rtol=1e-6, atol=1e-6)
    again = upgraded(after_pass)
    assert again.SerializeToString() == after_pass.SerializeToString()


def test_names_metadata_and_order_stay():
    nodes = [
        helper.make_node("MatMul", ["x", "big"], ["a"]),
        helper.make_node("Add", ["a", "small"], ["y"]),
    ]
    constants = {"big": floats(8, 400), "small": floats(400)}
    proto = model(nodes, 13, constants, inputs=("z", "x", "big"))
    proto.graph.input[2].type.tensor_type.shape.Clear()
    for size in (8, 400):
        proto.graph.input[2].type.tensor_type.shape.dim.add().dim_value = size
    helper.set_model_props(proto, {"author": "me"})
    entry = proto.graph.node[0].metadata_props.add()
    entry.key, entry.value = "kept", "yes"
    after_pass = upgraded(proto, "upgrade-opset{to=20}")
    assert [value.name for value in after_pass.graph.input] == ["z", "x", "big"]
    assert [tensor.name for tensor in after_pass.graph.initializer] == ["big", "small"]
    assert [node.name for node in after_pass.graph.node] == ["n0", "n1"]
    assert [(p.key, p.value) for p in after_pass.graph.node[0].metadata_props] == [("kept", "yes")]
    assert [(p.key, p.value) for p in after_pass.metadata_props] == [("author", "me")]
    np.testing.assert_array_equal(
        numpy_helper.to_array(after_pass.graph.initializer[0]), constants["big"]
    )


def test_upgraded_nodes_are_reported():
    bundle = narrowpass.build(
        ir.from_proto(model([helper.make_node("Clip", ["x"], ["y"], min=0.0)], 6)), "upgrade-opset"
    )
    (part,) = bundle.reports[0].methods.values()
    assert [(d["node"], d["decision"]) for d in part.decisions] == [("n0", "upgraded")]


@pytest.mark.parametrize(
    ("text", "opset", "message"),
    [
        ("upgrade-opset{to=99}", 13, "this onnx knows operator sets 1 to"),
        ("upgrade-opset{to=0}", 13, "this onnx knows operator sets 1 to"),
    ],
)
def test_invalid_versions_are_refused(text, opset, message):
    with pytest.raises(NarrowpassError, match=message):
        upgraded(model([helper.make_node("Relu", ["x"], ["y"])], opset), text)


def test_models_with_functions_are_refused():
    body = [helper.make_node("Relu", ["a"], ["b"])]
    function = helper.make_function("m", "F", ["a"], ["b"], body, [helper.make_opsetid("", 13)])
    nodes = [
        helper.make_node("F", ["x"], ["h"], domain="m"),
        helper.make_node("Relu", ["h"], ["y"]),
    ]
    proto = model(nodes, 13, functions=[function])
    proto.ir_version = 8
    proto.opset_import.append(helper.make_opsetid("m", 1))
    with pytest.raises(NarrowpassError, match="models with functions cannot be upgraded"):
        upgraded(proto)


def test_an_operator_that_cannot_be_converted():
    """Upsample with scales that are fed."""
    proto = model([helper.make_node("Upsample", ["x", "k"], ["y"])], 9, inputs=("x", "k"))
    proto.graph.input[1].type.tensor_type.shape.Clear()
    proto.graph.input[1].type.tensor_type.shape.dim.add().dim_value = 4
    try:
        after_pass = upgraded(proto)
    except NarrowpassError as error:
        assert "operator set 9 cannot become 22" in str(error)  # noqa: PT017
    else:
        x, k = floats(2, 3, 8, 8), np.array([1, 1, 2, 2], np.float32)
        (got,) = ReferenceEvaluator(after_pass).run(None, {"x": x, "k": k})
        np.testing.assert_array_equal(got, x.repeat(2, axis=2).repeat(2, axis=3))


@pytest.mark.parametrize("opset", [9, 10])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resize_and_grid_sample_coordinates(opset, mode):
    """Before operator set 11 they lay at multiples of the scale, against onnxruntime."""
    onnxruntime = pytest.importorskip("onnxruntime")
    op_type = "Upsample" if opset == 9 else "Resize"
    nodes = [helper.make_node(op_type, ["x", "k"], ["y"], mode=mode)]
    proto = model(nodes, opset, {"k": np.array([1, 1, 2, 2], np.float32)})
    after_pass = upgraded(proto)
    x = {"x": floats(2, 3, 8, 8)}
    right, got = (
        onnxruntime.InferenceSession(
            each.SerializeToString(), providers=["CPUExecutionProvider"]
        ).run(None, x)[0]
        for each in (proto, after_pass)
    )
    np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-6)


def by_onnxruntime(proto, x):
    import onnxruntime

    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"x": x})[0]


@pytest.mark.parametrize("kind", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("axis", [None, 0, 2, -2])
@pytest.mark.parametrize("sizes", [(2, 3, 5), (0, 3, 5), (2, 3, 0)], ids=str)
@pytest.mark.parametrize("declared", ["sizes", "nothing"])
def test_rows_of_several_axes(kind, axis, sizes, declared):
    """Before operator set 13 a row had all axes from `axis` on; sizes of 0 are no copies."""
    pytest.importorskip("onnxruntime")
    given = {} if axis is None else {"axis": axis}
    graph = helper.make_graph(
        [
            helper.make_node("Abs", ["x"], ["y_rows"]),  # a name that is taken
            helper.make_node(kind, ["y_rows"], ["y"], "rows", **given),
        ],
        "g",
        [helper.make_tensor_value_info("x", FLOAT, sizes if declared == "sizes" else None)],
        [helper.make_tensor_value_info("y", FLOAT, ["d", "e", "f"])],
    )
    before = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 12)], ir_version=7)
    x = floats(*sizes)
    right = by_onnxruntime(before, x)
    for version in (13, 22):
        after_pass = upgraded(before, f"upgrade-opset{{to={version}}}")
        assert [value.name for value in after_pass.graph.output] == ["y"]
        if version == 13 and 0 in sizes:
            continue  # Reshape has no allowzero there
        got = by_onnxruntime(after_pass, x)
        assert got.shape == right.shape
        np.testing.assert_allclose(got, right, rtol=1e-6, atol=1e-6)


def test_rows_that_a_body_normalizes():
    then = helper.make_node("Hardmax", ["x"], ["t"], axis=1)
    other = helper.make_node("Identity", ["x"], ["e"])
    bodies = {
        f"{name}_branch": helper.make_graph(
            [node], name, [], [helper.make_tensor_value_info(node.output[0], FLOAT, None)]
        )
        for name, node in (("then", then), ("else", other))
    }
    proto = model([helper.make_node("If", ["c"], ["y"], **bodies)], 11)
    proto.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    after_pass = upgraded(proto)
    x = floats(2, 3, 8, 8)
    (got,) = ReferenceEvaluator(after_pass).run(None, {"x": x, "c": np.array(True)})
    rows = x.reshape(2, -1)
    right = rows == rows.max(axis=1, keepdims=True)
    np.testing.assert_array_equal(got, right.astype(np.float32).reshape(x.shape))


REFUSED = {
    "its scales were those of groups": (
        18,
        helper.make_node("GroupNormalization", ["x", "s", "s"], ["y"], num_groups=1),
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_wrong_conversions_are_refused(message):
    opset, node = REFUSED[message]
    copy = onnx.NodeProto.FromString(node.SerializeToString())
    constants = {"s": np.ones(1, np.float32)} if "s" in node.input else {}
    with pytest.raises(NarrowpassError, match=message):
        upgraded(model([copy], opset, constants))


def test_a_constant_that_is_an_output():
    proto = model([helper.make_node("Relu", ["x"], ["y"])], 13, {"c": floats(2)})
    proto.graph.output.append(helper.make_tensor_value_info("c", FLOAT, [2]))
    after_pass = upgraded(proto)
    assert [tensor.name for tensor in after_pass.graph.initializer] == ["c"]


@pytest.mark.parametrize("text", ["upgrade-opset", "expand-operators"])
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_pad_of_any_type_and_mode(dtype, mode, text):
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [helper.make_node("Pad", ["x"], ["a"], "pad", mode=mode, pads=[1, 0, 0, 2], value=0.5)]
    # An operator that is written as others has the whole model upgraded.
    nodes.append(helper.make_node("Gelu", ["a"], ["y"], "gelu", domain="com.microsoft"))
    graph = helper.make_graph(
        nodes
        if text == "expand-operators"
        else [*nodes[:1], helper.make_node("Abs", ["a"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", kind, [3, 4])],
        [helper.make_tensor_value_info("y", kind, [4, 6])],
    )
    imports = [helper.make_opsetid("", 10), helper.make_opsetid("com.microsoft", 1)]
    after_pass = upgraded(helper.make_model(graph, opset_imports=imports, ir_version=5), text)
    onnx.checker.check_model(after_pass, full_check=True)
    x = floats(3, 4).astype(dtype)
    (got,) = ReferenceEvaluator(after_pass).run(None, {"x": x})
    given = {"constant_values": 0.5} if mode == "constant" else {}
    padded = np.pad(x, [(1, 0), (0, 2)], mode, **given)
    assert got.dtype == dtype
    if text == "upgrade-opset":
        np.testing.assert_array_equal(got, np.abs(padded))


@pytest.mark.parametrize("bounds", [{}, {"min": -0.5}, {"max": 0.25}, {"min": -0.5, "max": 0.25}])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("to", [11, 12, 13, 22])
def test_bounds_of_clip_of_any_type(dtype, bounds, to):
    """The attributes of before operator set 11 are float32 whatever the data is."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        [helper.make_node("Clip", ["x"], ["a"], **bounds), helper.make_node("Abs", ["a"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", kind, [3, 4])],
        [helper.make_tensor_value_info("y", kind, [3, 4])],
    )
    imports = [helper.make_opsetid("", 10)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=5)
    after_pass = upgraded(model, f"upgrade-opset{{to={to}}}")
    onnx.checker.check_model(after_pass, full_check=True)
    x = (floats(3, 4) * 1e4).astype(dtype)
    (got,) = ReferenceEvaluator(after_pass).run(None, {"x": x})
    assert got.dtype == dtype
    wanted = np.clip(x, bounds.get("min", -np.inf), bounds.get("max", np.inf))
    np.testing.assert_array_equal(got, np.abs(wanted))


@pytest.mark.parametrize("rows", [2, 2000])
def test_an_output_that_is_an_initializer_stays_as_it_was_declared(rows):
    graph = helper.make_graph(
        [helper.make_node("Clip", ["x"], ["y"], "clip", min=0.0)],
        "g",
        [helper.make_tensor_value_info("x", FLOAT, [2])],
        [
            helper.make_tensor_value_info("y", FLOAT, [2]),
            helper.make_tensor_value_info("w", FLOAT, [None, None]),
        ],
        [numpy_helper.from_array(floats(rows, 3), "w")],
    )
    imports = [helper.make_opsetid("", 10)]
    after_pass = upgraded(helper.make_model(graph, opset_imports=imports, ir_version=5))
    dims = after_pass.graph.output[1].type.tensor_type.shape.dim
    assert [dim.WhichOneof("value") for dim in dims] == [None, None]


UNKNOWN_TYPE = """<ir_version: 10, opset_import: ["": 15, "ai.onnx.ml": 4, "custom": 1]>
g (int64[2, 2] x) => (int64[n, m] y, int64[a, b] z) <int64 three = {{3}}>
{{
    v = {0} (x)
    y = Neg (v)
    z = Div (x, three)
}}"""


def test_operators_behind_what_the_converter_has_no_type_of(monkeypatch):
    """Neg stands for those that need it: types come from our own inference, or it is refused."""
    monkeypatch.setattr("narrowpass_ir.upgrading.READS_TYPES", {"Neg"})
    imputer = "ai.onnx.ml.Imputer <imputed_value_int64s = [3], replaced_value_int64: int = -1>"
    proto, unknown = (
        onnx.parser.parse_model(UNKNOWN_TYPE.format(kind)) for kind in (imputer, "custom.Unknown")
    )
    bundle = narrowpass.build(proto, "upgrade-opset")
    found = narrowpass.load(bundle, "reference").run({"x": np.array([[1, -1], [3, 7]])})
    assert found["y"].tolist() == [[-1, -3], [-3, -7]]
    assert found["z"].tolist() == [[0, 0], [1, 2]]
    with pytest.raises(NarrowpassError, match=r"Neg .* one is unknown"):
        narrowpass.build(unknown, "upgrade-opset")
