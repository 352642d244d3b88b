"""Where casts go: known counts, and the optimum of random small graphs by trying everything."""

from __future__ import annotations

import itertools
import random

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from fp16_kit import (
    HALF,
    check,
    constants,
    count,
    floats,
    model,
    operators,
    rewritten,
    run,
    verdicts,
)
from onnx import helper

from narrowpass import Color
from narrowpass_fp16.placement.placement import Placement
from narrowpass_ir.inference import inferred

COUNT = "fp16{cost=count}"


def conv(x="x", y="y", weight="w"):
    return helper.make_node("Conv", [x, weight], [y], pads=[1, 1, 1, 1])


def test_a_convolution_alone():
    proto = model([conv()], {"x": [1, 4, 8, 8]}, {"y": [1, 4, 8, 8]}, {"w": floats(4, 4, 3, 3)})
    narrowed = check(proto, {"x": floats(1, 4, 8, 8)})
    assert count(narrowed) == 2
    assert constants(narrowed) == {"w": HALF}
    assert [value.type.tensor_type.elem_type for value in narrowed.graph.input] == [1]
    assert [value.name for value in narrowed.graph.output] == ["y"]


def test_a_convolution_before_a_softmax():
    nodes = [conv(y="h"), helper.make_node("Softmax", ["h"], ["y"], axis=1)]
    shape = [1, 300, 8, 8]  # too long to be summed in float16
    proto = model(nodes, {"x": shape}, {"y": shape}, {"w": floats(300, 300, 3, 3, scale=0.01)})
    assert count(check(proto, {"x": floats(*shape)})) == 2


@pytest.mark.parametrize("softmax", [False, True])
def test_weights_that_are_fed_cost_a_cast_each(softmax):
    nodes = [conv(y="h" if softmax else "y")]
    if softmax:
        nodes.append(helper.make_node("Softmax", ["h"], ["y"], axis=1))
    shape = [1, 300, 4, 4]
    proto = model(nodes, {"x": shape, "w": [300, 300, 3, 3]}, {"y": shape})
    feeds = {"x": floats(*shape), "w": floats(300, 300, 3, 3, scale=0.01)}
    assert count(check(proto, feeds)) == 3


def residual_blocks(blocks):
    """Build blocks of convolution, wide normalization, Relu and a sum with what went in."""
    nodes, weights, last = [], {}, "x"
    for index in range(blocks):
        weights[f"w{index}"] = floats(4, 4, 3, 3)
        weights |= {f"s{index}": np.ones(4, "f4"), f"b{index}": np.zeros(4, "f4")}
        nodes += [
            conv(last, f"c{index}", f"w{index}"),
            helper.make_node(
                "InstanceNormalization", [f"c{index}", f"s{index}", f"b{index}"], [f"n{index}"]
            ),
            helper.make_node("Relu", [f"n{index}"], [f"r{index}"]),
            helper.make_node("Add", [f"r{index}", last], [f"a{index}"]),
        ]
        last = f"a{index}"
    nodes.append(helper.make_node("Identity", [last], ["y"]))
    return model(nodes, {"x": [1, 4, 8, 8]}, {"y": [1, 4, 8, 8]}, weights)


def test_three_residual_blocks():
    # Each block costs a cast into its convolution and one out of it; the additions stay wide.
    assert count(check(residual_blocks(3), {"x": floats(1, 4, 8, 8)}, COUNT, 2e-2)) == 6


def test_without_a_green_node_nothing_changes():
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Softmax", ["r"], ["s"]),
        helper.make_node("Add", ["s", "c"], ["y"]),
    ]
    proto = model(nodes, {"x": [2, 8]}, {"y": [2, 8]}, {"c": floats(8)})
    assert operators(rewritten(proto)) == operators(proto)
    assert constants(rewritten(proto)) == constants(proto)


def test_a_chain_between_green_nodes_is_narrow():
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Neg", ["b"], ["c"]),
        helper.make_node("MatMul", ["c", "w"], ["y"]),
    ]
    proto = model(nodes, {"x": [3, 16]}, {"y": [3, 16]}, {"w": floats(16, 16)})
    assert count(check(proto, {"x": floats(3, 16)})) == 2


def test_one_cast_for_all_readers_of_a_value():
    nodes = [helper.make_node("MatMul", ["x", f"w{i}"], [f"h{i}"]) for i in range(3)]
    nodes.append(helper.make_node("Sum", ["h0", "h1", "h2"], ["y"]))
    proto = model(
        nodes, {"x": [3, 16]}, {"y": [3, 16]}, {f"w{i}": floats(16, 16) for i in range(3)}
    )
    assert count(check(proto, {"x": floats(3, 16)})) == 2


def test_an_output_that_is_read_within_keeps_its_name_and_type():
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("MatMul", ["y", "w"], ["z"]),
    ]
    proto = model(nodes, {"x": [3, 16]}, {"y": [3, 16], "z": [3, 16]}, {"w": floats(16, 16)})
    narrowed = check(proto, {"x": floats(3, 16)})
    assert count(narrowed) == 3


def test_a_constant_that_is_read_both_ways_is_stored_twice():
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Exp", ["w"], ["e"]),
        helper.make_node("ReduceSum", ["e"], ["s"], keepdims=0),
        helper.make_node("Mul", ["h", "s"], ["y"]),
    ]
    proto = model(nodes, {"x": [3, 16]}, {"y": [3, 16]}, {"w": floats(16, 16)})
    narrowed = check(proto, {"x": floats(3, 16)})
    assert constants(narrowed) == {"w": 1, "w.float16": HALF}
    assert not any(n.op_type == "Cast" and n.input[0].startswith("w") for n in narrowed.graph.node)


@pytest.mark.parametrize(
    ("text", "types"),
    [
        ("fp16", (1, 1)),
        ("fp16{keep-io=false}", (HALF, HALF)),
        ("fp16{keep-io=[x]}", (1, HALF)),
        ("fp16{keep-io=[y]}", (HALF, 1)),
    ],
)
def test_inputs_and_outputs(text, types):
    proto = model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        {"x": [3, 16]},
        {"y": [3, 16]},
        {"w": floats(16, 16)},
    )
    narrowed = rewritten(proto, text)
    (given,), (result,) = narrowed.graph.input, narrowed.graph.output
    assert (given.name, result.name) == ("x", "y")
    found = given.type.tensor_type.elem_type, result.type.tensor_type.elem_type
    assert found == types
    assert count(narrowed) == sum(kind == 1 for kind in types)


def test_a_default_that_may_be_overridden_changes_with_its_input():
    """Initializers that are inputs too, as old exporters write all of them."""
    proto = model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        {"x": [3, 16], "w": [16, 16]},
        {"y": [3, 16]},
        {"w": floats(16, 16)},
    )
    narrowed = rewritten(proto, "fp16{keep-io=[x,y]}")
    assert [v.type.tensor_type.elem_type for v in narrowed.graph.input] == [1, HALF]
    assert (constants(narrowed), count(narrowed)) == ({"w": HALF}, 2)
    assert constants(rewritten(proto)) == {"w": 1}


@pytest.mark.parametrize(("shape", "stored"), [([16], 1), ([100, 3, 16], HALF)])
def test_a_large_constant_takes_its_reader_with_it(shape, stored):
    """Where the file, and what a run reads, shrink by more than casts around it move."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Exp", ["h"], ["e"]),
        helper.make_node("Mul", ["e", "table"], ["m"]),
        helper.make_node("Softplus", ["m"], ["s"]),
        helper.make_node("ReduceMax", ["s"], ["y"], keepdims=0),
    ]
    weights = {"w": floats(16, 16), "table": floats(*shape)}
    narrowed = rewritten(model(nodes, {"x": [3, 16]}, {"y": []}, weights))
    assert constants(narrowed)["table"] == stored


# The optimum


def random_graph(rng):
    """Build a graph of green, gray and red nodes over a few values."""
    values, nodes, colors = ["x", "z"], [], {}
    for index in range(rng.randrange(1, 7)):
        color = rng.choice(["green", "gray", "gray", "red"])
        name = f"v{index}"
        if rng.random() < 0.5 and len(values) > 1:
            node = helper.make_node("Add", rng.sample(values, 2), [name], name=f"n{index}")
        else:
            node = helper.make_node("Relu", [rng.choice(values)], [name], name=f"n{index}")
        nodes.append(node)
        colors[f"n{index}"] = Color(color)
        values.append(name)
    outputs = rng.sample(values[2:], min(len(values) - 2, rng.randrange(1, 3)))
    return model(nodes, {"x": [2], "z": [2]}, {name: [2] for name in outputs}), colors


def casts_of(proto, narrow):
    """Count the casts that a choice of narrow nodes needs."""
    maker = {node.output[0]: narrow[node.name] for node in proto.graph.node}
    maker |= {value.name: False for value in proto.graph.input}
    readers: dict[str, set[bool]] = {}
    for node in proto.graph.node:
        for name in node.input:
            readers.setdefault(name, set()).add(narrow[node.name])
    for value in proto.graph.output:
        readers.setdefault(value.name, set()).add(False)
    return sum((not maker[name]) in kinds for name, kinds in readers.items())


def solve(proto, colors):
    converted = ir.from_proto(proto)
    with inferred(converted):
        placement = Placement(
            converted,
            ir.DataType.FLOAT16,
            lambda node: colors[node.name],
            None,
            by_bytes=False,
        )
        placement.solve()
        return {node.name: placement.is_narrow(node) for node in converted.graph}


@pytest.mark.parametrize("block", range(20))
def test_no_choice_needs_fewer_casts(block):
    for seed in range(100 * block, 100 * block + 100):
        proto, colors = random_graph(random.Random(seed))
        found = solve(proto, colors)
        names = [node.name for node in proto.graph.node]
        free = [name for name in names if colors[name] is Color.GRAY]
        fixed = {name: colors[name] is Color.GREEN for name in names}
        choices = [
            fixed | dict(zip(free, sides, strict=True))
            for sides in itertools.product((False, True), repeat=len(free))
        ]
        best = min(casts_of(proto, choice) for choice in choices)
        assert casts_of(proto, found) == best, seed
        most = max(sum(c.values()) for c in choices if casts_of(proto, c) == best)
        assert sum(found.values()) == most, f"{seed}: ties go narrow"


def test_bytes_decide_where_casts_are_as_many():
    # Up before the pooling moves 64 times as many bytes as after it.
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("MaxPool", ["h"], ["p"], kernel_shape=[8, 8], strides=[8, 8]),
        helper.make_node("Exp", ["p"], ["y"]),
    ]
    proto = model(nodes, {"x": [1, 2, 8, 8]}, {"y": [1, 2, 1, 1]}, {"w": floats(8, 8)})
    report = verdicts(run(proto))
    assert report["n1"]["decision"] == "gray, narrow"
    backward = [
        helper.make_node("Exp", ["x"], ["h"]),
        helper.make_node("MaxPool", ["h"], ["p"], kernel_shape=[8, 8], strides=[8, 8]),
        helper.make_node("MatMul", ["p", "w"], ["y"]),
    ]
    proto = model(backward, {"x": [1, 2, 8, 8]}, {"y": [1, 2, 1, 1]}, {"w": floats(1, 1)})
    assert verdicts(run(proto))["n1"]["decision"] == "gray, wide"
    assert isinstance(proto, onnx.ModelProto)
