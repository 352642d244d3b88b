"""What must never happen: each a small model on which tools of this kind fail."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from fp16_kit import FLOAT, HALF, check, constants, count, floats, model, operators, rewritten, run
from fp16_kit import verdicts as verdicts_of
from onnx import TensorProto, helper, numpy_helper

import narrowpass
from narrowpass.errors import NarrowpassError

INT64 = TensorProto.INT64
X = floats(3, 16)


def matmul(x="x", y="h", weight="w"):
    return helper.make_node("MatMul", [x, weight], [y])


def verdicts(proto, text="fp16"):
    return verdicts_of(run(proto, text))


# Ranges


def test_an_element_that_is_too_large_keeps_its_reader_wide():
    weight = floats(16, 16)
    weight[0, 0] = 1e5
    nodes = [matmul(), matmul("h", "y", "v")]
    proto = model(
        nodes, {"x": [3, 16]}, {"y": [3, 16]}, {"w": weight, "v": floats(16, 16, scale=1e-3)}
    )
    found = verdicts(proto)["n0"]
    assert found["decision"] == "red, wide"
    assert "too large in 'w'" in found["reason"]
    assert (found["measured"], found["limit"]) == (1e5, 65504)
    assert constants(rewritten(proto)) == {"w": FLOAT, "v": HALF}


def test_a_mask_of_huge_numbers_stays_wide():
    nodes = [
        matmul(),
        helper.make_node("Add", ["h", "mask"], ["m"]),
        helper.make_node("Softmax", ["m"], ["y"]),
    ]
    mask = np.where(np.arange(16) < 10, 0, -1e30).astype(np.float32)
    proto = model(nodes, {"x": [3, 16]}, {"y": [3, 16]}, {"w": floats(16, 16), "mask": mask})
    narrowed = check(proto, {"x": X})
    assert constants(narrowed) == {"w": HALF, "mask": FLOAT}


def test_infinity_stays_infinity():
    nodes = [
        matmul(),
        helper.make_node("Add", ["h", "mask"], ["m"]),
        matmul("m", "y", "v"),
    ]
    mask = np.where(np.arange(16) < 10, 0, -np.inf).astype(np.float32)
    weights = {"w": floats(16, 16), "v": np.abs(floats(16, 16)) + 0.1, "mask": mask}
    narrowed = rewritten(model(nodes, {"x": [3, 16]}, {"y": [3, 16]}, weights))
    stored = {t.name: numpy_helper.to_array(t) for t in narrowed.graph.initializer}["mask"]
    assert stored.dtype == np.float16
    np.testing.assert_array_equal(np.isinf(stored), np.isinf(mask))


@pytest.mark.parametrize("epsilon", [1e-12, 1e-5])
def test_a_tiny_number_keeps_its_reader_wide(epsilon):
    nodes = [
        matmul(),
        helper.make_node("Add", ["h", "e"], ["a"]),
        matmul("a", "y"),
    ]
    constants_ = {"w": floats(16, 16), "e": np.float32(epsilon).reshape(())}
    found = verdicts(model(nodes, {"x": [3, 16]}, {"y": [3, 16]}, constants_))["n1"]
    assert found["decision"] == "red, wide"
    assert "all elements are too small" in found["reason"]


def test_a_weight_that_rounding_loses_stays_wide():
    weight = floats(64, 64, scale=1e-6)
    weight[0, 0] = 1e-4  # the others are multiples of 6e-8, and few of these
    proto = model([matmul(y="y")], {"x": [3, 64]}, {"y": [3, 64]}, {"w": weight})
    assert "loses too much" in verdicts(proto)["n0"]["reason"]


def layer_norm(x, y, width):
    """Return the nodes of a normalization as exporters write it."""
    return [
        helper.make_node("ReduceMean", [x, "last"], [f"{y}.m"]),
        helper.make_node("Sub", [x, f"{y}.m"], [f"{y}.d"]),
        helper.make_node("Mul", [f"{y}.d", f"{y}.d"], [f"{y}.q"]),
        helper.make_node("ReduceMean", [f"{y}.q", "last"], [f"{y}.v"]),
        helper.make_node("Add", [f"{y}.v", "epsilon"], [f"{y}.e"]),
        helper.make_node("Sqrt", [f"{y}.e"], [f"{y}.s"]),
        helper.make_node("Div", [f"{y}.d", f"{y}.s"], [y]),
    ]


def test_a_normalization_of_large_numbers_does_not_overflow():
    nodes = [matmul(), *layer_norm("h", "n", 16), matmul("n", "y", "v")]
    weights = {
        "w": floats(16, 16, scale=300),
        "v": floats(16, 16),
        "last": np.array([-1]),
        "epsilon": np.float32(1e-5).reshape(()),
    }
    proto = model(nodes, {"x": [3, 16]}, {"y": [3, 16]}, weights)
    narrowed = check(proto, {"x": floats(3, 16, scale=3)}, tolerance=2e-2)  # squares reach 1e7
    assert constants(narrowed)["v"] == HALF


@pytest.mark.parametrize(
    "node",
    [
        helper.make_node("LayerNormalization", ["h", "s", "b"], ["n", "mean", "deviation"]),
        helper.make_node("RMSNormalization", ["h", "s"], ["n"]),
    ],
    ids=["LayerNormalization", "RMSNormalization"],
)
def test_statistics_of_a_normalization_stay_wide(node):
    opset = 23 if node.op_type == "RMSNormalization" else 20
    outputs = {"y": [3, 16]} | ({"mean": [3, 1]} if len(node.output) > 1 else {})
    weights = {"w": floats(16, 16), "s": np.ones(16, "f4"), "b": floats(16)}
    proto = model([matmul(), node, matmul("n", "y")], {"x": [3, 16]}, outputs, weights, opset=opset)
    narrowed = check(proto, {"x": X}, tolerance=2e-2)
    types = {v.name: v.type.tensor_type.elem_type for v in narrowed.graph.output}
    assert types == dict.fromkeys(outputs, FLOAT)


# Exactness


def test_what_an_index_follows_from_stays_wide():
    nodes = [
        matmul(),
        helper.make_node("Mul", ["position", "scale"], ["p"]),
        helper.make_node("Floor", ["p"], ["f"]),
        helper.make_node("Cast", ["f"], ["i"], to=INT64),
        helper.make_node("Gather", ["h", "i"], ["g"]),
        matmul("g", "y"),
    ]
    weights = {"w": floats(16, 16), "scale": np.float32(1).reshape(())}
    proto = model(nodes, {"x": [4000, 16], "position": [1]}, {"y": [1, 16]}, weights)
    feeds = {"x": floats(4000, 16), "position": np.float32([3001])}
    check(proto, feeds)
    found = verdicts(proto)
    assert all("index" in found[name]["reason"] for name in ("n1", "n2"))


def test_integers_become_floats_in_float32():
    nodes = [
        helper.make_node("Cast", ["i"], ["f"], to=FLOAT),
        helper.make_node("Mul", ["f", "s"], ["m"]),
        matmul("m", "y"),
    ]
    weights = {"w": floats(16, 16), "s": np.float32(2**-12).reshape(())}
    proto = model(nodes, {"i": [3, 16]}, {"y": [3, 16]}, weights, types={"i": INT64})
    feeds = {"i": np.arange(48).reshape(3, 16) * 2049}
    narrowed = check(proto, feeds, tolerance=2e-2)
    assert [n.attribute[0].i for n in narrowed.graph.node if n.input[0] == "i"] == [FLOAT]


def test_a_mask_of_bools_becomes_narrow_at_once():
    nodes = [
        helper.make_node("Cast", ["b"], ["f"], to=FLOAT),
        matmul(),
        helper.make_node("Mul", ["h", "f"], ["m"]),
        matmul("m", "y"),
    ]
    proto = model(
        nodes,
        {"x": [3, 16], "b": [3, 16]},
        {"y": [3, 16]},
        {"w": floats(16, 16)},
        types={"b": TensorProto.BOOL},
    )
    narrowed = check(proto, {"x": X, "b": X > 0})
    assert count(narrowed) == 3  # that of the mask, and two at the borders


def test_sizes_of_a_resize_stay_wide():
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["h"]),
        helper.make_node("Mul", ["s", "two"], ["scales"]),
        helper.make_node("Resize", ["h", "", "scales"], ["r"], mode="nearest"),
        helper.make_node("Conv", ["r", "k"], ["y"]),
    ]
    weights = {
        "k": floats(4, 4, 1, 1),
        "s": np.float32([1, 1, 1, 1.5]),
        "two": np.float32([1, 1, 2, 1]),
    }
    shape = [1, 4, 6, 6]
    proto = model(nodes, {"x": shape}, {"y": [1, 4, 12, 9]}, weights)
    check(proto, {"x": floats(*shape)})


def test_top_k_and_its_indices():
    """Of numbers that differ by more than rounding: a tie may be resolved otherwise."""
    nodes = [
        matmul(),
        helper.make_node("TopK", ["h", "k"], ["v", "i"], axis=-1),
        helper.make_node("Identity", ["v"], ["y"]),
    ]
    weights = {"w": np.eye(16, dtype=np.float32)[::-1].copy(), "k": np.array([2])}
    outputs = {"y": [3, 2], "i": [3, 2]}
    proto = model(nodes, {"x": [3, 16]}, outputs, weights, types={"i": INT64})
    rows = np.random.default_rng(1).permuted(np.tile(np.arange(16), (3, 1)), axis=1)
    check(proto, {"x": rows.astype(np.float32)})


# Structure


def test_dropout_with_its_ratio_and_mask():
    nodes = [
        matmul(),
        helper.make_node("Dropout", ["h", "ratio"], ["d", "mask"]),
        matmul("d", "y"),
    ]
    weights = {"w": floats(16, 16), "ratio": np.float32(0.5).reshape(())}
    outputs = {"y": [3, 16], "mask": [3, 16]}
    proto = model(nodes, {"x": [3, 16]}, outputs, weights, types={"mask": TensorProto.BOOL})
    check(proto, {"x": X})


@pytest.mark.parametrize("opset", [9, 11, 12, 13, 15, 18, 21, 22, onnx.defs.onnx_opset_version()])
def test_operator_sets(opset):
    nodes = [
        helper.make_node("Conv", ["x", "k", "b"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "w", "c"], ["y"]),
    ]
    weights = {
        "k": floats(4, 4, 3, 3), "b": floats(4), "w": floats(36, 5), "c": floats(5)
    }  # fmt: skip
    proto = model(nodes, {"x": [2, 4, 6, 6]}, {"y": [2, 5]}, weights, opset=opset)
    proto.ir_version = 8 if opset < 21 else onnx.helper.find_min_ir_version_for(proto.opset_import)
    narrowed = rewritten(proto)
    assert count(narrowed) == 2
    assert set(constants(narrowed).values()) == {HALF}
    if opset in (13, 18):
        check(proto, {"x": floats(2, 4, 6, 6)})


def test_empty_tensors_unnamed_nodes_and_optional_inputs():
    nodes = [
        helper.make_node("Clip", ["x", "", "top"], ["c"]),
        helper.make_node("Concat", ["c", "none"], ["j"], axis=0),
        matmul("j", "y"),
    ]
    weights = {"top": np.float32(1).reshape(()), "none": floats(0, 16), "w": floats(16, 16)}
    proto = model(nodes, {"x": [3, 16]}, {"y": [3, 16]}, weights)
    for node in proto.graph.node:
        node.name = ""
    check(proto, {"x": X})


def test_names_that_are_taken():
    nodes = [matmul("x", "x.float16"), matmul("x.float16", "y", "w"), matmul("y", "z", "w")]
    weights = {"w": floats(16, 16), "w.float16": floats(16, 16)}
    nodes.append(helper.make_node("Exp", ["w"], ["e"]))
    nodes.append(helper.make_node("MatMul", ["e", "w.float16"], ["u"]))
    outputs = {"y": [3, 16], "z": [3, 16], "u": [16, 16]}
    narrowed = check(model(nodes, {"x": [3, 16]}, outputs, weights), {"x": X}, tolerance=2e-2)
    names = [t.name for t in narrowed.graph.initializer] + [
        o for n in narrowed.graph.node for o in n.output
    ]
    assert len(names) == len(set(names))


def test_what_is_already_narrow_or_double_is_not_touched():
    nodes = [
        helper.make_node("MatMul", ["h", "a"], ["i"]),
        helper.make_node("MatMul", ["d", "b"], ["j"]),
    ]
    proto = model(
        nodes,
        {"h": [3, 4], "d": [3, 4]},
        {"i": [3, 4], "j": [3, 4]},
        {"a": floats(4, 4).astype(np.float16), "b": floats(4, 4).astype(np.float64)},
        types={"h": HALF, "i": HALF, "d": TensorProto.DOUBLE, "j": TensorProto.DOUBLE},
    )
    assert count(rewritten(proto)) == 0


def test_other_domains_are_left_as_they_are():
    """The input and output types of such an operator are unknown."""
    nodes = [
        matmul(),
        helper.make_node("Twice", ["h"], ["t"], domain="mine"),
        matmul("t", "y"),
    ]
    proto = model(nodes, {"x": [3, 16]}, {"y": [3, 16]}, {"w": floats(16, 16)})
    proto.opset_import.append(helper.make_opsetid("mine", 1))
    narrowed = rewritten(proto)
    assert operators(narrowed) == {"MatMul": 2, "Twice": 1, "Cast": 2}
    assert verdicts(proto)["n1"]["decision"] == "red, wide"


def test_sequences():
    nodes = [
        matmul(),
        helper.make_node("SequenceConstruct", ["h", "x"], ["s"]),
        helper.make_node("ConcatFromSequence", ["s"], ["c"], axis=0),
        matmul("c", "y"),
    ]
    proto = model(nodes, {"x": [3, 16]}, {"y": [6, 16]}, {"w": floats(16, 16)})
    check(proto, {"x": X})


# Control flow


def branch(name, nodes, output, shape=(3, 16)):
    return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(output, FLOAT, shape)])


@pytest.mark.parametrize("condition", [True, False])
def test_if(condition):
    then = branch("then", [matmul("h", "a", "v")], "a")
    other = branch("else", [helper.make_node("Relu", ["h"], ["b"])], "b")
    nodes = [
        matmul(),
        helper.make_node("If", ["c"], ["i"], then_branch=then, else_branch=other),
        matmul("i", "y"),
    ]
    weights = {"w": floats(16, 16), "v": floats(16, 16)}
    proto = model(
        nodes,
        {"x": [3, 16], "c": []},
        {"y": [3, 16]},
        weights,
        types={"c": TensorProto.BOOL},
    )
    narrowed = check(proto, {"x": X, "c": np.array(condition)})
    assert count(narrowed) == 2


def test_if_with_a_wide_branch():
    then = branch("then", [helper.make_node("Exp", ["h"], ["a"])], "a")
    other = branch("else", [matmul("h", "b", "v")], "b")
    nodes = [matmul(), helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)]
    weights = {"w": floats(16, 16), "v": floats(16, 16)}
    types = {"c": TensorProto.BOOL}
    proto = model(nodes, {"x": [3, 16], "c": []}, {"y": [3, 16]}, weights, types=types)
    for condition in (True, False):
        check(proto, {"x": X, "c": np.array(condition)})


def loop(body_nodes, outputs, scan=False):
    """Build a loop of three rounds that carries a [3, 16]."""
    formals = [("i", INT64, []), ("go", TensorProto.BOOL, []), ("a", FLOAT, [3, 16])]
    results = [("go.out", TensorProto.BOOL, []), ("b", FLOAT, [3, 16])]
    if scan:
        results.append(("row", FLOAT, [3, 16]))
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["go.out"]), *body_nodes],
        "body",
        [helper.make_tensor_value_info(*formal) for formal in formals],
        [helper.make_tensor_value_info(*result) for result in results],
    )
    return helper.make_node("Loop", ["n", "true", "h"], outputs, body=body)


@pytest.mark.parametrize("scan", [False, True])
def test_loop(scan):
    inner = [matmul("a", "m", "v"), helper.make_node("Relu", ["m"], ["b"])]
    if scan:
        inner.append(helper.make_node("Neg", ["b"], ["row"]))
    outputs = {"y": [3, 16]} | ({"rows": [3, 3, 16]} if scan else {})
    nodes = [
        matmul(),
        loop(inner, ["l", *(["rows"] if scan else [])], scan),
        matmul("l", "y"),
    ]
    weights = {"w": floats(16, 16), "v": floats(16, 16), "n": np.array(3), "true": np.array(True)}
    proto = model(nodes, {"x": [3, 16]}, outputs, weights)
    # onnx's evaluator joins the rows of a scan, where it should stack them.
    narrowed = check(proto, {"x": X}, reference=not scan)
    (body,) = [n.attribute[0].g for n in narrowed.graph.node if n.op_type == "Loop"]
    assert not [n for n in body.node if n.op_type == "Cast"]
    assert count(narrowed) == 2 + scan


def test_a_wide_node_in_a_loop():
    inner = [
        matmul("a", "m", "v"),
        helper.make_node("Exp", ["m"], ["e"]),
        helper.make_node("Tanh", ["e"], ["b"]),
    ]
    nodes = [matmul(), loop(inner, ["l"]), matmul("l", "y")]
    weights = {"w": floats(16, 16), "v": floats(16, 16), "n": np.array(3), "true": np.array(True)}
    check(model(nodes, {"x": [3, 16]}, {"y": [3, 16]}, weights), {"x": X})


def test_scan():
    body = helper.make_graph(
        [
            helper.make_node("Add", ["s", "r"], ["t"]),
            helper.make_node("MatMul", ["t", "v"], ["u"]),
            helper.make_node("Relu", ["u"], ["o"]),
        ],
        "body",
        [helper.make_tensor_value_info(n, FLOAT, [1, 16]) for n in ("s", "r")],
        [helper.make_tensor_value_info(n, FLOAT, [1, 16]) for n in ("u", "o")],
    )
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Scan", ["zero", "h"], ["last", "rows"], body=body, num_scan_inputs=1),
        helper.make_node("MatMul", ["rows", "w"], ["y"]),
    ]
    weights = {"w": floats(16, 16), "v": floats(16, 16), "zero": floats(1, 16)}
    proto = model(nodes, {"x": [5, 1, 16]}, {"y": [5, 1, 16], "last": [1, 16]}, weights)
    check(proto, {"x": floats(5, 1, 16)}, tolerance=2e-2)


# Options


def test_red_and_green_by_name_and_type(caplog):
    nodes = [matmul(), helper.make_node("Exp", ["h"], ["e"]), matmul("e", "y")]
    proto = model(nodes, {"x": [3, 16]}, {"y": [3, 16]}, {"w": floats(16, 16)})
    assert {n: v["decision"] for n, v in verdicts(proto).items()} == {
        "n0": "green, narrow",
        "n1": "red, wide",
        "n2": "green, narrow",
    }
    found = verdicts(proto, "fp16{green=[op:Exp],red=[n2]}")
    assert [found[n]["decision"] for n in ("n0", "n1", "n2")] == [
        "green, narrow",
        "green, narrow",
        "red, wide",
    ]
    assert found["n2"]["by"] == "option red"
    run(proto, "fp16{red=[nothing]}")
    assert "red item 'nothing' selects no node" in caplog.text


def test_what_cannot_be_done():
    proto = model([matmul(y="y")], {"x": [3, 16]}, {"y": [3, 16]}, {"w": floats(16, 16)}, opset=11)
    call = onnx.helper.make_function(
        "mine", "F", ["a"], ["b"], [matmul("a", "b", "a")], [helper.make_opsetid("", 11)]
    )
    with_function = onnx.ModelProto()
    with_function.CopyFrom(proto)
    with_function.functions.append(call)
    with_function.opset_import.append(helper.make_opsetid("mine", 1))
    with pytest.raises(NarrowpassError, match="from operator set 13 on; the model has 11"):
        run(with_function, "fp16{dtype=bfloat16}")
    with pytest.raises(NarrowpassError, match="no input or output 'nobody'"):
        run(proto, "fp16{keep-io=[nobody]}")
    with pytest.raises(NarrowpassError, match="no classifier 'mine'"):
        run(proto, "fp16{classifier=mine}")


def test_weights_are_not_read_before_they_are_written(tmp_path):
    nodes = [matmul(y="y")]
    proto = model(nodes, {"x": [3, 512]}, {"y": [3, 512]}, {"w": floats(512, 512)})
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin")
    bundle = narrowpass.build(tmp_path / "m.onnx", "fp16", target="reference")
    (value,) = bundle.methods["main"].graph.initializers.values()
    assert type(value.const_value).__name__ == "ConvertedTensor"
    assert value.const_value.dtype == ir.DataType.FLOAT16
    assert operators(ir.to_proto(bundle.methods["main"]))["Cast"] == 2
