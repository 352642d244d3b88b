"""The tests of other passes of this kind, in meaning: those of TVM and of TensorFlow.

Each test here stands for one of theirs, on an ONNX model of our own. What differs on purpose is
told in the docstring, and in the page `mixed-precision-cases` of the documentation.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from fp16_kit import (
    FLOAT,
    HALF,
    check,
    compare,
    constants,
    count,
    floats,
    model,
    nodes_of,
    rewritten,
    run,
    verdicts,
)
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from narrowpass.errors import NarrowpassError

BFLOAT = TensorProto.BFLOAT16
BOOL, INT64 = TensorProto.BOOL, TensorProto.INT64
BF16, COUNT = "fp16{dtype=bfloat16}", "fp16{cost=count}"
LONG = 300
"""More elements than are summed in the narrow type."""


def node(kind, inputs, outputs, **attributes):
    """Make a node that is named as its first output."""
    names = outputs.split()
    return helper.make_node(kind, inputs.split(), names, name=names[0], **attributes)


def conv(inputs, output, pads=(1, 1, 1, 1)):
    return node("Conv", inputs, output, pads=pads)


def uniform(low, high, *shape):
    return np.random.default_rng(7).uniform(low, high, shape).astype(np.float32)


def number(value):
    return np.array(value, np.float32)


def types_of(proto):
    """Give the types of all values of a model, those of subgraphs too."""
    found = {}

    def visit(graph):
        found.update((tensor.name, tensor.data_type) for tensor in graph.initializer)
        for value in (*graph.input, *graph.value_info, *graph.output):
            found[value.name] = value.type.tensor_type.elem_type
        for each in graph.node:
            for attribute in each.attribute:
                if attribute.type == onnx.AttributeProto.GRAPH:
                    visit(attribute.g)

    visit(onnx.shape_inference.infer_shapes(proto, strict_mode=True).graph)
    return found


def lowered(proto, made, dtype):
    """Give the nodes with an input or output that was float32 and is not any more.

    It looks at the types that onnx infers, and not at what the pass tells of itself.
    """
    before, after = types_of(proto), types_of(made)
    nodes = {each.name: each for each in nodes_of(made.graph)}
    names = set()
    for old in nodes_of(proto.graph):
        new = nodes[old.name]
        pairs = zip((*old.input, *old.output), (*new.input, *new.output), strict=True)
        if any(before.get(a) == FLOAT and after.get(b) == dtype for a, b in pairs):
            names.add(old.name)
    return names


def painted(proto, feeds, casts, narrow, stored="", text="fp16", tolerance=5e-3, *, evaluate=True):
    """Rewrite a model, and hold all that is known of the result to it.

    Args:
        proto: in float32.
        feeds: what it is run on.
        casts: how many are added, exactly.
        narrow: the nodes that become narrow, and no others.
        stored: the constants that are stored narrow, and no others.
        text: the pipeline.
        tolerance: of the values.
        evaluate: whether values are compared.
    """
    dtype = BFLOAT if "bfloat16" in text else HALF
    if evaluate and dtype == HALF:
        made = check(proto, feeds, text, tolerance)
    else:
        made = rewritten(proto, text)
    if evaluate and dtype == BFLOAT:  # which no runtime has on every processor
        right = ReferenceEvaluator(proto).run(None, dict(feeds))
        compare(ReferenceEvaluator(made).run(None, dict(feeds)), right, tolerance)
    assert count(made) - count(proto) == casts
    assert lowered(proto, made, dtype) == set(narrow.split())
    kinds = dict.fromkeys(stored.split(), dtype)
    assert constants(made) == constants(proto) | kinds
    told = {name for name, v in verdicts(run(proto, text)).items() if "narrow" in v["decision"]}
    assert told == set(narrow.split()), "the report tells something else"
    for name in ("input", "output"):
        assert list(getattr(made.graph, name)) == list(getattr(proto.graph, name))
    return made


def unchanged(proto, text="fp16"):
    """Rewrite a model in which nothing is to be changed."""
    made = rewritten(proto, text)
    assert list(made.graph.node) == list(proto.graph.node)
    assert list(made.graph.initializer) == list(proto.graph.initializer)


def targets(made):
    """Give the types that casts make, by what they read."""
    return {n.input[0]: n.attribute[0].i for n in nodes_of(made.graph) if n.op_type == "Cast"}


# TVM, Relay


def cells(steps=5, units=4):
    """Make an LSTM of small operators, unrolled, that reads an input in each step."""
    nodes, last, state = [], "h", "c"
    for t in range(steps):
        nodes += [
            node("MatMul", f"x{t} wi", f"i2h{t}"),
            node("MatMul", f"{last} wh", f"h2h{t}"),
            node("Add", f"i2h{t} h2h{t}", f"sum{t}"),
            node("Add", f"sum{t} b", f"gates{t}"),
            node("Split", f"gates{t}", f"i{t} f{t} g{t} o{t}", axis=1, num_outputs=4),
            node("Sigmoid", f"i{t}", f"in{t}"),
            node("Sigmoid", f"f{t}", f"forget{t}"),
            node("Tanh", f"g{t}", f"new{t}"),
            node("Sigmoid", f"o{t}", f"out{t}"),
            node("Mul", f"forget{t} {state}", f"kept{t}"),
            node("Mul", f"in{t} new{t}", f"added{t}"),
            node("Add", f"kept{t} added{t}", f"c{t}"),
            node("Tanh", f"c{t}", f"squashed{t}"),
            node("Mul", f"out{t} squashed{t}", f"h{t}"),
        ]
        last, state = f"h{t}", f"c{t}"
    weights = {
        "wi": floats(units, 4 * units),
        "wh": floats(units, 4 * units),
        "b": floats(4 * units),
        "h": np.zeros((1, units), "f4"),
        "c": np.zeros((1, units), "f4"),
    }
    inputs = {f"x{t}": [1, units] for t in range(steps)}
    proto = model(nodes, inputs, {last: [1, units]}, weights)
    return proto, {name: uniform(-10, 10, 1, units) for name in inputs}


def names_of(proto):
    return " ".join(each.name for each in proto.graph.node)


@pytest.mark.parametrize("form", ["cells", "operator"])
def test_relay_lstm(form):
    """All between the inputs and the output is narrow: a cast for each of these, and no more."""
    if form == "cells":
        proto, feeds = cells()
        painted(proto, feeds, 6, names_of(proto), "wi wh b h c", tolerance=1e-2)
        return
    operator = helper.make_node("LSTM", ["x", "w", "r"], ["", "y"], name="lstm", hidden_size=4)
    weights = {"w": floats(1, 16, 4), "r": floats(1, 16, 4)}
    proto = model([operator], {"x": [5, 1, 4]}, {"y": [1, 1, 4]}, weights)
    painted(proto, {"x": uniform(-10, 10, 5, 1, 4)}, 2, "lstm", "w r", tolerance=1e-2)


def test_relay_lstm_float64():
    """Theirs shows that another type will do; for us that is bfloat16, and float64 is refused."""
    proto, feeds = cells()
    painted(proto, feeds, 6, names_of(proto), "wi wh b h c", BF16, tolerance=4e-2)
    with pytest.raises(NarrowpassError, match="float64"):
        run(proto, "fp16{dtype=float64}")


def single_conv(fed, opset=20):
    shapes = {"x": [1, 3, 8, 8], "w": [5, 3, 3, 3]}
    feeds = {name: uniform(-1, 1, *shape) for name, shape in shapes.items()}
    weights = {} if fed else {"w": feeds.pop("w")}
    inputs = {name: shapes[name] for name in feeds}
    proto = model([conv("x w", "y")], inputs, {"y": [1, 5, 8, 8]}, weights, opset=opset)
    return proto, feeds


def test_relay_convert_single_conv():
    """As theirs where weights are fed; constants are stored narrow, without casts."""
    made = painted(*single_conv(fed=True), 3, "y")
    assert targets(made) == {"x": HALF, "w": HALF, "y.float": FLOAT}
    painted(*single_conv(fed=False), 2, "y", "w")


def test_relay_convert_single_conv_fp64():
    """As above with the other type that we have, which a Conv may have from opset 22 on."""
    unchanged(single_conv(fed=True)[0], BF16)
    made = painted(*single_conv(fed=True, opset=22), 3, "y", "", BF16, tolerance=3e-2)
    assert targets(made) == {"x": BFLOAT, "w": BFLOAT, "y.float": FLOAT}


def test_relay_convert_conv_bn():
    """Theirs makes the normalization narrow; for us it is red, and narrow where that is asked for.

    Before it comes to this, `fold` takes it into the convolution's weights.
    """
    weights = {"w": floats(5, 3, 3, 3), "scale": floats(5), "bias": floats(5)}
    weights |= {"mean": floats(5), "variance": uniform(0.5, 1.5, 5)}
    nodes = [conv("x w", "h"), node("BatchNormalization", "h scale bias mean variance", "y")]
    proto = model(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 5, 8, 8]}, weights)
    feeds = {"x": uniform(-1, 1, 1, 3, 8, 8)}
    painted(proto, feeds, 2, "h", "w")
    text = "fp16{green=[op:BatchNormalization]}"
    painted(proto, feeds, 2, "h y", "w scale bias mean variance", text, tolerance=1e-2)


def products_around(middle, shape, weights=None):
    """Put nodes that read h and make m between two products of square matrices."""
    nodes = [node("MatMul", "x w", "h"), *middle, node("MatMul", "m w", "y")]
    width = shape[-1]
    constants = {"w": np.eye(width, dtype="f4"), **(weights or {})}
    return model(nodes, {"x": shape}, {"y": shape}, constants)


def test_relay_do_not_convert_softmax():
    """Alone it stays; among products it stays if it is long, and a short one follows these."""
    alone = model([node("Softmax", "x", "y")], {"x": [1, 2, 3]}, {"y": [1, 2, 3]})
    unchanged(alone)
    for width, casts, narrow in ((LONG, 4, "h y"), (8, 2, "h m y")):
        proto = products_around([node("Softmax", "h", "m")], [2, width])
        painted(proto, {"x": floats(2, width)}, casts, narrow, "w")


def test_relay_do_not_convert_arange():
    """What counts stays wide, alone and where a product is added to it."""
    alone = model(
        [node("Range", "start limit delta", "y")],
        {},
        {"y": [127]},
        {"start": number(1), "limit": number(128), "delta": number(1)},
    )
    unchanged(alone)
    nodes = [
        node("MatMul", "x w", "h"),
        node("Range", "start limit delta", "r"),
        node("Add", "h r", "y"),
    ]
    weights = {"w": floats(16, 16), "start": number(0), "delta": number(1)}
    proto = model(nodes, {"x": [3, 16], "limit": []}, {"y": [3, 16]}, weights)
    painted(proto, {"x": floats(3, 16), "limit": number(16)}, 2, "h", "w")


SUMS = {
    "ReduceSum": {"keepdims": 1},
    "ReduceMean": {"keepdims": 1},
    "GlobalAveragePool": {},
    "AveragePool": {},
}


@pytest.mark.parametrize("kind", SUMS)
def test_relay_do_not_convert_summation(kind):
    """Theirs keeps all sums wide; we those of more than 256 elements."""
    for side, follows in ((20, False), (8, True)):
        attributes = dict(SUMS[kind])
        if kind == "AveragePool":
            attributes["kernel_shape"] = [side, side]
        axes = "axes" if kind.startswith("Reduce") else ""
        weights = {"axes": np.array([2, 3])} if axes else {}
        sums = [node(kind, f"x {axes}", "y", **attributes)]
        unchanged(model(sums, {"x": [1, 3, side, side]}, {"y": [1, 3, 1, 1]}, weights))
        nodes = [conv("x w", "h"), node(kind, f"h {axes}", "y", **attributes)]
        weights["w"] = floats(3, 3, 3, 3)
        proto = model(nodes, {"x": [1, 3, side, side]}, {"y": [1, 3, 1, 1]}, weights)
        narrow = "h y" if follows else "h"
        painted(proto, {"x": floats(1, 3, side, side)}, 2, narrow, "w")


def test_relay_green_gray_propagates_simple():
    """What a convolution is added to itself by is narrow too."""
    nodes = [conv("x w", "h"), node("Add", "h h", "y")]
    shapes = {"x": [1, 3, 8, 8], "w": [5, 3, 3, 3]}
    proto = model(nodes, shapes, {"y": [1, 5, 8, 8]})
    feeds = {name: uniform(-1, 1, *shape) for name, shape in shapes.items()}
    painted(proto, feeds, 3, "h y", tolerance=1e-2)


def test_relay_green_red_not_use_extraneous_cast():
    """No cast reads what a cast made: the red node gets one, right behind the green one."""
    nodes = [conv("x w", "h"), node("Softmax", "h", "y", axis=-1)]
    shapes = {"x": [1, 3, 2, LONG], "w": [2, 3, 3, 3]}
    proto = model(nodes, shapes, {"y": [1, 2, 2, LONG]})
    feeds = {name: uniform(-1, 1, *shape) for name, shape in shapes.items()}
    made = painted(proto, feeds, 3, "h")
    assert targets(made) == {"x": HALF, "w": HALF, "h": FLOAT}
    assert [n.input[0] for n in made.graph.node if n.op_type == "Softmax"] == ["h.float"]


def test_relay_red_gray_propagates_simple():
    """What follows a red node is wide; up to the next green one narrow and wide cost the same."""
    nodes = [node("Softmax", "x", "s"), node("Add", "s s", "y")]
    unchanged(model(nodes, {"x": [1, 2, LONG]}, {"y": [1, 2, LONG]}))
    nodes = [node("Exp", "x", "e"), node("Add", "e e", "a"), node("MatMul", "a w", "y")]
    proto = model(nodes, {"x": [3, 16]}, {"y": [3, 16]}, {"w": floats(16, 16)})
    painted(proto, {"x": floats(3, 16)}, 2, "a y", "w")


def test_relay_let_statement_simple():
    """ONNX binds nothing; a branch that reads values from around it is the nearest.

    The weights are fed, and cast once for both scopes.
    """
    then = helper.make_graph(
        [
            node("Add", "v1 v1", "r1"),
            node("MatMul", "r1 w", "v2"),
            node("Add", "v2 v2", "r2"),
        ],
        "then",
        [],
        [helper.make_tensor_value_info("r2", FLOAT, [1, 20])],
    )
    other = helper.make_graph(
        [node("Identity", "v1", "same")],
        "else",
        [],
        [helper.make_tensor_value_info("same", FLOAT, [1, 20])],
    )
    nodes = [
        node("MatMul", "x w", "v1"),
        node("If", "c", "y", then_branch=then, else_branch=other),
    ]
    shapes = {"x": [1, 20], "w": [20, 20], "c": []}
    proto = model(nodes, shapes, {"y": [1, 20]}, types={"c": BOOL})
    feeds = {"x": uniform(-1, 1, 1, 20), "w": uniform(-0.3, 0.3, 20, 20)}
    for condition in (True, False):
        feeds["c"] = np.array(condition)
        made = painted(proto, feeds, 3, "v1 y r1 v2 r2 same", tolerance=1e-2)
        assert targets(made) == {"x": HALF, "w": HALF, "y.float": FLOAT}


def test_relay_where_simple():
    """The condition is made of the input as it is: 1e-9 is true, in float16 it would be 0."""
    nodes = [
        node("MatMul", "x w", "a"),
        node("Neg", "a", "b"),
        node("Cast", "x", "c", to=BOOL),
        node("Where", "c a b", "y"),
    ]
    proto = model(nodes, {"x": [1, 20], "w": [20, 20]}, {"y": [1, 20]})
    feeds = {"x": uniform(-1, 1, 1, 20), "w": uniform(-1, 1, 20, 20)}
    feeds["x"][0, ::3] = 1e-9
    feeds["x"][0, 1::3] = 0
    painted(proto, feeds, 3, "a b y", tolerance=1e-2)


def test_relay_batch_matmul_simple():
    """As theirs; an ONNX MatMul does not say what its sums are kept in."""
    proto = model(
        [node("MatMul", "x w", "y")], {"x": [1, 1, 20], "w": [1, 20, 20]}, {"y": [1, 1, 20]}
    )
    feeds = {"x": uniform(-1, 1, 1, 1, 20), "w": uniform(-1, 1, 1, 20, 20)}
    painted(proto, feeds, 3, "y")


def test_relay_convert_follow_node_with_integer_arguments():
    """Theirs lowers a look-up alone; we only one in a large constant. Indices stay as they are."""
    nodes = [node("Add", "i zero", "at"), node("Gather", "x at", "y")]
    zero = {"zero": np.array(0)}
    types = {"i": INT64}
    unchanged(model(nodes, {"x": [1, 10], "i": [1, 1]}, {"y": [1, 1, 10]}, zero, types=types))
    nodes = [node("Add", "i zero", "at"), node("Gather", "table at", "y")]
    table = {"table": floats(128, 8)}
    proto = model(nodes, {"i": [1, 1]}, {"y": [1, 1, 8]}, zero | table, types=types)
    painted(proto, {"i": np.array([[5]])}, 1, "y", "table")


BOUNDS = {"low": number(-128000), "high": number(128000)}


def clipped(before=(), opset=20):
    """Make a product, whatever follows it, and a Clip to what float16 does not hold."""
    if opset < 11:
        clip = node("Clip", "m" if before else "h", "y", min=-128000.0, max=128000.0)
        bounds = {}
    else:
        clip, bounds = node("Clip", f"{'m' if before else 'h'} low high", "y"), BOUNDS
    nodes = [node("MatMul", "x w", "h"), *before, clip]
    weights = {"w": floats(10, 10), **bounds, **({"five": number(5)} if before else {})}
    return model(nodes, {"x": [1, 10]}, {"y": [1, 10]}, weights, opset=opset)


def test_relay_clip():
    """Bounds of 128000 are too large for float16, and not for bfloat16."""
    feeds = {"x": uniform(-1, 1, 1, 10)}
    alone = model([node("Clip", "x low high", "y")], {"x": [1, 10]}, {"y": [1, 10]}, BOUNDS)
    for text in ("fp16", BF16):
        unchanged(alone, text)
    painted(clipped(), feeds, 2, "h", "w")
    painted(clipped(), feeds, 2, "h y", "w low high", BF16, tolerance=3e-2)
    painted(clipped(opset=10), feeds, 2, "h", "w")  # as attributes


def test_relay_clip_with_pre_op():
    """What comes before the Clip is narrow: the cast is between them."""
    feeds = {"x": uniform(-1, 1, 1, 10)}
    before = [node("Div", "h five", "m")]
    made = painted(clipped(before), feeds, 2, "h m", "w five")
    assert targets(made) == {"x": HALF, "m": FLOAT}
    painted(clipped(before), feeds, 2, "h m y", "w low high five", BF16, tolerance=3e-2)


def test_relay_loop():
    """A loop over integers is left alone, also where a product elsewhere is lowered."""
    body = helper.make_graph(
        [
            node("Identity", "go", "again"),
            node("Reshape", "i one", "row"),
            node("Concat", "rows row", "more", axis=0),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", INT64, []),
            helper.make_tensor_value_info("go", BOOL, []),
            helper.make_tensor_value_info("rows", INT64, ["R"]),
        ],
        [
            helper.make_tensor_value_info("again", BOOL, []),
            helper.make_tensor_value_info("more", INT64, ["S"]),
        ],
    )
    loop = node("Loop", "n true start", "counted", body=body)
    numbers = {"n": np.array(10), "true": np.array(True), "one": np.array([1])}
    inputs, outputs, types = {"start": [1]}, {"counted": ["M"]}, {"start": INT64, "counted": INT64}
    unchanged(model([loop], inputs, outputs, numbers, types=types))
    proto = model(
        [loop, node("MatMul", "x w", "y")],
        inputs | {"x": [3, 16]},
        outputs | {"y": [3, 16]},
        numbers | {"w": floats(16, 16)},
        types=types,
    )
    feeds = {"start": np.array([0]), "x": floats(3, 16)}
    made = painted(proto, feeds, 2, "y", "w")
    (same,) = [each for each in made.graph.node if each.op_type == "Loop"]
    assert same == loop


# TVM, Relax


IMAGE, KERNEL = [2, 3, 8, 8], [4, 3, 3, 3]


def images(nodes, output, *, opset=20, **shapes):
    """Make a model of convolutions whose weights are fed, and what to feed it."""
    shapes = {"x": IMAGE, "w": KERNEL, **shapes}
    feeds = {name: uniform(-1, 1, *shape) for name, shape in shapes.items()}
    return model(nodes, shapes, {"y": output}, opset=opset), feeds


def test_relax_conv2d():
    """As theirs with `out_dtype` float16: in ONNX what a Conv reads and makes has one type."""
    painted(*images([conv("x w", "y", [0] * 4)], [2, 4, 6, 6]), 3, "y")


def test_relax_conv2d_relu():
    nodes = [conv("x w", "h"), node("Relu", "h", "y")]
    painted(*images(nodes, [2, 4, 8, 8]), 3, "h y")


def test_relax_relu_conv2d_relu():
    """As many casts as theirs; the first Relu is narrow, since that costs the same."""
    nodes = [node("Relu", "x", "r"), conv("r w", "h"), node("Relu", "h", "y")]
    made = painted(*images(nodes, [2, 4, 8, 8]), 3, "r h y")
    assert targets(made) == {"x": HALF, "w": HALF, "y.float": FLOAT}


def test_relax_conv2d_relu_conv2d():
    nodes = [conv("x w", "h"), node("Relu", "h", "r"), conv("r v", "y")]
    painted(*images(nodes, [2, 4, 8, 8], v=[4, 4, 3, 3]), 4, "h r y", tolerance=1e-2)


def test_relax_gemm_add_silu():
    """A bias that is fed is read in float32, as in theirs; a constant one is stored narrow."""
    nodes = [
        node("MatMul", "x w", "h"),
        node("Add", "h b", "a"),
        node("Sigmoid", "a", "s"),
        node("Mul", "a s", "y"),
    ]
    shapes = {"x": [2, 32], "w": [32, 64], "b": [2, 64]}
    feeds = {name: floats(*shape) for name, shape in shapes.items()}
    made = painted(model(nodes, shapes, {"y": [2, 64]}), feeds, 3, "h")
    assert targets(made) == {"x": HALF, "w": HALF, "h": FLOAT}
    weights = {name: feeds.pop(name) for name in "wb"}
    proto = model(nodes, {"x": [2, 32]}, {"y": [2, 64]}, weights)
    painted(proto, feeds, 2, "h a s y", "w b")


def test_relax_tuple():
    """ONNX has sequences for tuples. They keep float32, so that each way through one is cast."""
    nodes = [
        conv("x w", "a"),
        conv("x w", "b"),
        node("SequenceConstruct", "a b", "pair"),
        node("Constant", "", "first", value_int=0),
        node("SequenceAt", "pair first", "h"),
        conv("h v", "y"),
    ]
    proto, feeds = images(nodes, [2, 4, 8, 8], v=[4, 4, 3, 3])
    made = painted(proto, feeds, 7, "a b y", tolerance=1e-2)
    wide, half = {"a": FLOAT, "b": FLOAT, "y.float": FLOAT}, {"x": HALF, "w": HALF, "v": HALF}
    assert targets(made) == wide | half | {"h": HALF}


def test_relax_concat_matmul():
    """Two casts before the Concat move the same bytes as one after it, and make it narrow."""
    nodes = [node("Concat", "a b", "x", axis=-1), node("MatMul", "x w", "y")]
    shapes = {"a": [2, 16], "b": [2, 16], "w": [32, 64]}
    feeds = {name: floats(*shape) for name, shape in shapes.items()}
    proto = model(nodes, shapes, {"y": [2, 64]})
    painted(proto, feeds, 4, "x y")
    made = painted(proto, feeds, 3, "y", text=COUNT)  # as theirs
    assert targets(made) == {"x": HALF, "w": HALF, "y.float": FLOAT}


def test_relax_conv2d_softmax():
    """As theirs if the softmax is long; a short one is narrow, for as many casts."""
    nodes = [conv("x w", "h"), node("Softmax", "x", "s", axis=-1), node("Add", "h s", "y")]
    for width, narrow in ((LONG, "h"), (8, "h s y")):
        shape = [1, 3, 2, width]
        proto, feeds = images(nodes, shape, x=shape, w=[3, 3, 3, 3])
        painted(proto, feeds, 3, narrow)


def test_relax_conv2d_bias_conv2d():
    """Weights that are float16 in the file, and read through casts, stay float16.

    The casts that were there stay as well, and do nothing any more; `fold` removes such.
    """
    halves = {"w": floats(4, 4, 1, 1), "b": floats(4), "v": floats(6, 4, 3, 3), "c": floats(6)}
    weights = {f"{name}.half": array.astype(np.float16) for name, array in halves.items()}
    weights["shape"] = np.array([1, -1, 1, 1])
    nodes = [
        *(node("Cast", f"{name}.half", name, to=FLOAT) for name in halves),
        conv("x w", "h", [0] * 4),
        node("Reshape", "b shape", "bias"),
        node("Add", "h bias", "a"),
        conv("a v", "i"),
        node("Reshape", "c shape", "offset"),
        node("Add", "i offset", "y"),
    ]
    proto = model(nodes, {"x": [1, 4, 8, 8]}, {"y": [1, 6, 8, 8]}, weights)
    made = painted(proto, {"x": floats(1, 4, 8, 8)}, 2, names_of(proto), tolerance=1e-2)
    assert {name: to for name, to in targets(made).items() if "half" in name} == dict.fromkeys(
        (f"{name}.half" for name in halves), HALF
    )


def test_relax_tuple_get():
    """Fewest casts are those of theirs; fewest bytes are moved with one more, at the ends."""
    nodes = [
        conv("x w", "h", [0, 0, 1, 1]),
        node("Add", "h b", "a"),
        node("Split", "a", "s t", axis=1, num_outputs=2),
        node("Add", "s t", "y"),
    ]
    proto, feeds = images(nodes, [2, 2, 7, 7], b=[4, 1, 1])
    made = painted(proto, feeds, 3, "h", text=COUNT)
    assert targets(made) == {"x": HALF, "w": HALF, "h": FLOAT}
    painted(proto, feeds, 4, "h a s y")


@pytest.mark.parametrize("largest", [1, 70000])
def test_relax_conv2d_bias_fp32(largest):
    """A bias that float16 does not hold is added in float32, though only a Reshape reads it.

    Also where narrow nodes follow, and casts would be cheaper before the sum.
    """
    weights = {"w": floats(4, 3, 3, 3), "b": floats(4), "shape": np.array([1, 4, 1, 1])}
    weights["b"][0] = largest
    nodes = [
        conv("x w", "h", [0] * 4),
        node("Reshape", "b shape", "bias"),
        node("Add", "h bias", "y"),
    ]
    proto, feeds = model(nodes, {"x": IMAGE}, {"y": [2, 4, 6, 6]}, weights), uniform(-1, 1, *IMAGE)
    narrow, stored = ("h bias y", "w b") if largest == 1 else ("h", "w")
    painted(proto, {"x": feeds}, 2, narrow, stored)
    nodes[2:] = [node("Add", "h bias", "a"), node("Sub", "a bias", "s"), conv("s v", "y", [0] * 4)]
    weights["v"] = floats(4, 4, 1, 1)
    proto = model(nodes, {"x": IMAGE}, {"y": [2, 4, 6, 6]}, weights)
    narrow, stored = ("h bias a s y", "w b v") if largest == 1 else ("h y", "w v")
    painted(proto, {"x": feeds}, 2 if largest == 1 else 4, narrow, stored, tolerance=2e-2)


def test_relax_convert_sig():
    """Inputs that are named may change their type: those that `keep-io` does not name."""
    nodes = [
        conv("x w", "h", [0] * 4),
        node("Reshape", "b shape", "bias"),
        node("Add", "h bias", "y"),
    ]
    shapes = {"x": IMAGE, "w": KERNEL, "b": [4]}
    proto = model(nodes, shapes, {"y": [2, 4, 6, 6]}, {"shape": np.array([1, 4, 1, 1])})
    made = rewritten(proto, "fp16{keep-io=[x,y]}")
    assert count(made) == 2
    assert lowered(proto, made, HALF) == {"h", "bias", "y"}
    found = {v.name: v.type.tensor_type.elem_type for v in (*made.graph.input, *made.graph.output)}
    assert found == {"x": FLOAT, "w": HALF, "b": HALF, "y": FLOAT}
    feeds = {name: uniform(-1, 1, *shape) for name, shape in shapes.items()}
    halves = {name: feeds[name].astype(np.float16) for name in "wb"}
    got = ReferenceEvaluator(made).run(None, feeds | halves)
    compare(got, ReferenceEvaluator(proto).run(None, feeds), 5e-3)


def functions(proto, kind="Twice"):
    """Give a model a function of its own."""
    proto.functions.append(
        helper.make_function(
            "mine",
            kind,
            ["a"],
            ["b"],
            [helper.make_node("Add", ["a", "a"], ["b"])],
            [helper.make_opsetid("", 20)],
        )
    )
    proto.opset_import.append(helper.make_opsetid("mine", 1))
    return proto


def test_relax_call_tir_with_float16_args():
    """Functions of the model's own that read and make float16 are left as they are."""
    nodes = [node("Twice", "x", "h", domain="mine"), node("Twice", "h", "y", domain="mine")]
    types = dict.fromkeys("xy", HALF)
    proto = functions(model(nodes, {"x": [64]}, {"y": [64]}, types=types))
    unchanged(proto)
    assert rewritten(proto).functions == proto.functions


def test_relax_dynamic_strided_slice():
    """Theirs keeps a Slice wide whose bounds are fed; for us it is a node as others."""
    nodes = [conv("x w", "h"), node("Slice", "h starts ends axes steps", "y")]
    bounds = {"starts": [0, 1, 0, 2], "ends": [2, 4, 8, 8], "axes": [0, 1, 2, 3], "steps": [1] * 4}
    shapes = {"x": IMAGE, "w": KERNEL} | {name: [4] for name in bounds}
    types = dict.fromkeys(bounds, INT64)
    proto = model(nodes, shapes, {"y": list("NCHW")}, types=types)
    feeds = {name: np.array(value) for name, value in bounds.items()}
    feeds |= {"x": uniform(-1, 1, *IMAGE), "w": uniform(-1, 1, *KERNEL)}
    painted(proto, feeds, 3, "h y")


def test_relax_unknown_dtype_is_not_rewritten():
    """Nobody knows the type of what a foreign operator makes: what reads it is not changed."""
    nodes = [
        node("Thing", "x", "t", domain="foreign"),
        node("Relu", "t", "r"),
        node("MatMul", "r w", "p"),
        node("Thing", "p", "y", domain="foreign"),
    ]
    proto = model(nodes, {"x": [3, 16]}, {"y": [3, 16]}, {"w": floats(16, 16)})
    proto.opset_import.append(helper.make_opsetid("foreign", 1))
    unchanged(proto)


# TensorFlow
#
# Theirs read constants, which they cast; ours read inputs, so that the numbers can be compared. The
# names of nodes say how theirs are coloured: allow (green), deny (red), infer and clr (gray).


def test_tensorflow_no_op():
    """0 nodes added, as in theirs: there is no green one."""
    nodes = [
        node("Exp", "x", "deny1"),
        node("Relu", "deny1", "clr1"),
        node("Sqrt", "clr1", "infer1"),
        node("Relu", "infer1", "clr2"),
        node("Identity", "clr2", "y"),
    ]
    unchanged(model(nodes, {"x": [32]}, {"y": [32]}))


def already(dtype):
    nodes = [
        node("Cast", "x", "cst1", to=dtype),
        node("MatMul", "cst1 cst1", "allow1"),
        node("Relu", "allow1", "clr1"),
        node("Cast", "clr1", "cst2", to=FLOAT),
        node("Relu", "cst2", "y"),
    ]
    return model(nodes, {"x": [8, 8]}, {"y": [8, 8]})


def test_tensorflow_already_fp16():
    """0 nodes added, as in theirs: what was narrow stays as it was."""
    unchanged(already(HALF))


def simple():
    nodes = [
        node("Exp", "x", "deny1"),
        node("Relu", "deny1", "clr1"),
        node("Sqrt", "clr1", "infer1"),
        node("Relu", "infer1", "clr2"),
        node("MatMul", "clr2 clr2", "allow1"),
        node("Relu", "allow1", "clr3"),
        node("Log", "clr3", "infer2"),
        node("Relu", "infer2", "clr4"),
        node("MatMul", "clr4 clr4", "deny2"),
        node("Relu", "deny2", "y"),
    ]
    return model(nodes, {"x": [8, 8]}, {"y": [8, 8]}), {"x": floats(8, 8)}


SIMPLE = "clr1 infer1 clr2 allow1 clr3"


def test_tensorflow_simple():
    """2 nodes added, as in theirs; gray ones between red and green are narrow, at the same cost."""
    made = painted(*simple(), 2, SIMPLE, text="fp16{red=[deny2]}", tolerance=1e-2)
    assert targets(made) == {"deny1": HALF, "clr3": FLOAT}


def test_tensorflow_no_infer_op():
    """4 nodes added, as in theirs, if what they infer is red; for us that is an option."""
    nodes = [
        node("Exp", "x", "deny1"),
        node("Relu", "deny1", "clr1"),
        node("Sqrt", "clr1", "infer1"),
        node("Relu", "infer1", "clr2"),
        node("MatMul", "clr2 clr2", "allow1"),
        node("Relu", "allow1", "clr3"),
        node("Log", "clr3", "infer2"),
        node("Relu", "infer2", "clr4"),
        node("MatMul", "clr4 clr4", "allow2"),
        node("Log", "allow2", "y"),
    ]
    proto = model(nodes, {"x": [8, 8]}, {"y": [8, 8]})
    narrow = "clr2 allow1 clr3 clr4 allow2"
    made = painted(proto, {"x": floats(8, 8)}, 4, narrow, text="fp16{red=[op:Sqrt,op:Log]}")
    assert targets(made) == {"infer1": HALF, "clr3": FLOAT, "infer2": HALF, "allow2": FLOAT}


@pytest.mark.parametrize("kind", ["Shape", "Equal"])
def test_tensorflow_bidirectional_clear_chain(kind):
    """2 nodes added, where theirs has 3: it makes both branches narrow as one node reads both.

    Even where that node must read one type (Equal), the branch without a green node stays wide.
    """
    nodes = [
        node("Relu", "x", "clr1"),
        node("Relu", "x", "clr2"),
        node("MatMul", "clr1 clr1", "allow1"),
        node("Relu", "clr2", "clr4"),
    ]
    if kind == "Equal":
        nodes.append(node("Equal", "clr1 clr2", "clr3"))
        other, narrow = {"clr3": [8, 8]}, "allow1"
    else:
        nodes += [node("Shape", "clr1", "clr3"), node("Shape", "clr2", "clr5")]
        other, narrow = {"clr3": [2], "clr5": [2]}, "clr1 clr3 allow1"
    types = dict.fromkeys(other, BOOL if kind == "Equal" else INT64)
    outputs = {"allow1": [8, 8], "clr4": [8, 8], **other}
    proto = model(nodes, {"x": [8, 8]}, outputs, types=types)
    painted(proto, {"x": floats(8, 8)}, 2, narrow)


def test_tensorflow_preserve_fetches():
    """4 nodes added, where theirs has 2, since it does not lower what is fetched.

    For us an output keeps its name and type by a cast; if its node is red, 2 are added.
    """
    nodes = [
        node("MatMul", "x x", "allow1"),
        node("Relu", "allow1", "clr1"),
        node("Sqrt", "clr1", "infer1"),
        node("Exp", "infer1", "deny1"),
        node("Relu", "deny1", "clr2"),
        node("MatMul", "clr2 clr2", "allow2"),
        node("Relu", "allow2", "clr3"),
        node("Exp", "clr3", "deny2"),
        node("Relu", "deny2", "clr4"),
    ]
    outputs = {name: [4, 4] for name in ("allow1", "clr2", "clr3", "clr4")}
    proto = model(nodes, {"x": [4, 4]}, outputs)
    feeds = {"x": floats(4, 4, scale=0.1)}
    made = painted(proto, feeds, 4, "allow1 allow2 clr3", tolerance=2e-2)
    assert targets(made) == {
        "x": HALF,
        "allow1.float": FLOAT,
        "clr2": HALF,
        "clr3.float": FLOAT,
    }
    painted(proto, feeds, 2, "allow2 clr3", text="fp16{red=[allow1]}", tolerance=2e-2)


def test_tensorflow_preserve_cpu_nodes():
    """2 nodes added, as in theirs; no node has a place in ONNX, and the option `red` names one."""
    nodes = [
        node("Relu", "x", "clr1"),
        node("MatMul", "clr1 clr1", "allow1"),
        node("Tanh", "allow1", "infer1"),
        node("MatMul", "infer1 infer1", "allow2"),
        node("Relu", "allow2", "y"),
    ]
    proto = model(nodes, {"x": [8, 8]}, {"y": [8, 8]})
    painted(proto, {"x": floats(8, 8)}, 2, "clr1 allow1 infer1", text="fp16{red=[allow2]}")


def test_tensorflow_preserve_identity_after_variable():
    """4 nodes added, where theirs has 5: a constant is stored narrow. A variable is an input."""
    nodes = [
        node("Identity", "variable", "clr1"),
        node("MatMul", "x clr1", "allow1"),
        node("Identity", "constant", "clr2"),
        node("MatMul", "x clr2", "allow2"),
    ]
    shapes = {"x": [8, 8], "variable": [8, 8]}
    outputs = {"allow1": [8, 8], "allow2": [8, 8]}
    proto = model(nodes, shapes, outputs, {"constant": floats(8, 8)})
    feeds = {"x": floats(8, 8), "variable": np.full((8, 8), np.pi, "f4")}
    painted(proto, feeds, 4, "clr1 allow1 clr2 allow2", "constant")


def test_tensorflow_fused_batch_norm():
    """Theirs adds 3, with wide statistics: one is for weights, which for us cost no cast.

    A normalization over batches is red here: 4 are added, or 2 where it is green. One over a layer
    is gray: 2 are added, and its statistics stay wide.
    """
    batch = node("BatchNormalization", "allow1 scale bias mean variance", "norm")
    layer = node("LayerNormalization", "allow1 gain", "norm mean deviation")
    shape = [1, 4, 6, 6]
    weights = {"w": floats(4, 4, 3, 3), "scale": floats(4), "bias": floats(4)}
    weights |= {"mean": floats(4), "variance": uniform(0.5, 1.5, 4)}
    cases = [
        (batch, "fp16", 4, "allow1 infer1 y", "w"),
        (batch, "fp16{green=[norm]}", 2, "allow1 norm infer1 y", " ".join(weights)),
        (layer, "fp16", 2, "allow1 norm infer1 y", "w gain"),
    ]
    for norm, text, casts, narrow, stored in cases:
        nodes = [
            conv("x w", "allow1"),
            norm,
            node("Add", "norm allow1", "infer1"),
            conv("infer1 w", "y"),
        ]
        outputs, chosen = {"y": shape}, weights
        if norm is layer:
            outputs |= {"mean": [1, 4, 6, 1], "deviation": [1, 4, 6, 1]}
            chosen = {"w": weights["w"], "gain": np.ones(6, "f4")}
        proto = model(nodes, {"x": shape}, outputs, chosen)
        painted(proto, {"x": floats(*shape)}, casts, narrow, stored, text, tolerance=1e-2)


def test_tensorflow_repeated_and_list_type_attrs():
    """2 nodes added, as in theirs: what takes or makes any number of values has one type."""
    nodes = [
        node("MatMul", "x x", "allow1"),
        node("Split", "allow1", "clr1 b c", axis=0, num_outputs=3),
        node("Sum", "clr1 b c clr1", "infer1"),
        node("MatMul", "infer1 w", "y"),
    ]
    proto = model(nodes, {"x": [6, 6]}, {"y": [2, 6]}, {"w": floats(6, 6)})
    painted(proto, {"x": floats(6, 6)}, 2, "allow1 clr1 infer1 y", "w")


def test_tensorflow_existing_cast():
    """1 node added, as in theirs: the cast of bools makes float16 at once."""
    nodes = [node("Cast", "x", "cst1", to=FLOAT), node("MatMul", "cst1 cst1", "y")]
    proto = model(nodes, {"x": [8, 8]}, {"y": [8, 8]}, types={"x": BOOL})
    made = painted(proto, {"x": floats(8, 8) > 0}, 1, "cst1 y")
    assert targets(made) == {"x": HALF, "y.float": FLOAT}


def test_tensorflow_recurrent_edge_color_mismatch():
    """2 nodes added, as in theirs, but around the loop and not in it: what it carries is narrow."""
    body = helper.make_graph(
        [
            node("Identity", "go", "again"),
            node("Sqrt", "carried", "infer1"),
            node("MatMul", "infer1 w", "allow1"),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", INT64, []),
            helper.make_tensor_value_info("go", BOOL, []),
            helper.make_tensor_value_info("carried", FLOAT, [4, 8]),
        ],
        [
            helper.make_tensor_value_info("again", BOOL, []),
            helper.make_tensor_value_info("allow1", FLOAT, [4, 8]),
        ],
    )
    nodes = [node("Exp", "x", "deny1"), node("Loop", "n true deny1", "y", body=body)]
    weights = {"n": np.array(3), "true": np.array(True), "w": uniform(0, 0.5, 8, 8)}
    proto = model(nodes, {"x": [4, 8]}, {"y": [4, 8]}, weights)
    made = painted(proto, {"x": floats(4, 8)}, 2, "y infer1 allow1", "w")
    assert sum(each.op_type == "Cast" for each in made.graph.node) == 2


def index(value):
    return node("Constant", "", f"at{value}", value_int=value)


def lists(middle):
    """Make two lists: one between products, and one with what is wide anyhow."""
    nodes = [
        index(0),
        index(1),
        index(2),
        node("MatMul", "x x", "allow1"),
        *middle,
        node("SequenceConstruct", "x", "list2"),
        node("SequenceAt", "list2 at0", "z"),
    ]
    proto = model(nodes, {"x": [8, 8]}, {"y": [8, 8], "z": [8, 8]})
    return proto, {"x": floats(8, 8)}


def set_and_get(kind="Tanh", operands="read1"):
    return lists(
        [
            node("SequenceConstruct", "x allow1", "list1"),
            node("SequenceAt", "list1 at1", "read1"),
            node(kind, operands, "infer1"),
            node("MatMul", "infer1 infer1", "allow2"),
            node("SequenceInsert", "list1 allow2 at2", "more1"),
            node("SequenceAt", "more1 at2", "y"),
        ]
    )


def test_tensorflow_tensor_list_set_get():
    """4 nodes added, where theirs has 2: sequences keep float32."""
    made = painted(*set_and_get(), 4, "allow1 infer1 allow2")
    assert targets(made) == {"x": HALF, "allow1": FLOAT, "read1": HALF, "allow2": FLOAT}


def test_tensorflow_tensor_list_push_pop():
    """4 nodes added, where theirs has 2: sequences keep float32."""
    middle = [
        node("SequenceEmpty", "", "empty", dtype=FLOAT),
        node("SequenceInsert", "empty x", "push1"),
        node("SequenceInsert", "push1 allow1", "push2"),
        node("Constant", "", "last", value_int=-1),
        node("SequenceAt", "push2 last", "read1"),
        node("SequenceErase", "push2 last", "popped"),
        node("Tanh", "read1", "infer1"),
        node("MatMul", "infer1 infer1", "allow2"),
        node("SequenceInsert", "popped allow2", "push3"),
        node("SequenceAt", "push3 last", "y"),
    ]
    painted(*lists(middle), 4, "allow1 infer1 allow2")


def test_tensorflow_tensor_list_from_tensor():
    """4 nodes added, where theirs has 2: sequences keep float32, and so may take what is wide."""
    nodes = [
        node("MatMul", "x x", "allow1"),
        node("SplitToSequence", "allow1", "list1", axis=0, keepdims=0),
        node("ConcatFromSequence", "list1", "stack", axis=0, new_axis=1),
        node("Tanh", "stack", "infer1"),
        node("MatMul", "infer1 infer1", "y"),
        node("SplitToSequence", "allow1", "list2", axis=0),
        node("SequenceInsert", "list2 x", "list3"),
        node("ConcatFromSequence", "list3", "z", axis=0),
    ]
    proto = model(nodes, {"x": [8, 8]}, {"y": [8, 8], "z": [16, 8]})
    painted(proto, {"x": floats(8, 8)}, 4, "allow1 infer1 y")


def test_tensorflow_tensor_list_push_back_batch_and_concat_lists():
    """4 nodes added, where theirs has 2: sequences keep float32, but one cast is for both lists."""
    nodes = [
        index(0),
        node("MatMul", "x x", "allow1"),
        node("SequenceConstruct", "allow1", "list1"),
        node("SequenceConstruct", "allow1 allow1", "list2"),
        node("SequenceAt", "list1 at0", "first"),
        node("SequenceInsert", "list2 first", "list3"),
        node("SequenceAt", "list3 at0", "read1"),
        node("Tanh", "read1", "infer1"),
        node("MatMul", "infer1 infer1", "y"),
    ]
    proto = model(nodes, {"x": [8, 8]}, {"y": [8, 8]})
    painted(proto, {"x": floats(8, 8)}, 4, "allow1 infer1 y")


def test_tensorflow_tensor_list_through_function():
    """Theirs does not count; 5 are added, as sequences keep float32, in the function too."""
    function = helper.make_function(
        "mine",
        "Through",
        ["taken", "value"],
        ["given", "same"],
        [
            helper.make_node("SequenceInsert", ["taken", "value"], ["given"]),
            helper.make_node("Identity", ["value"], ["same"]),
        ],
        [helper.make_opsetid("", 20)],
    )
    nodes = [
        index(0),
        node("MatMul", "x x", "allow1"),
        node("Tanh", "allow1", "infer1"),
        node("SequenceConstruct", "infer1", "list1"),
        node("Through", "list1 infer1", "list2 same", domain="mine"),
        node("SequenceAt", "list2 at0", "read1"),
        node("SequenceConstruct", "infer1", "list3"),
        node("SequenceAt", "list3 at0", "read2"),
        node("MatMul", "read1 read2", "y"),
    ]
    proto = model(nodes, {"x": [8, 8]}, {"y": [8, 8]})
    proto.functions.append(function)
    proto.opset_import.append(helper.make_opsetid("mine", 1))
    made = painted(proto, {"x": floats(8, 8)}, 5, "allow1 infer1 y")
    assert made.functions == proto.functions


def test_tensorflow_batch_mat_mul():
    """2 nodes added, as in theirs."""
    proto = model([node("MatMul", "x x", "y")], {"x": [4, 8, 8]}, {"y": [4, 8, 8]})
    painted(proto, {"x": np.full((4, 8, 8), 1 / 33, "f4")}, 2, "y")


ONE = {"one": number(1)}
UNARY = {
    "EluOp": ([node("Elu", "h", "m")], {}, (-5, 5), "m"),
    "ErfOp": ([node("Erf", "h", "m")], {}, (-5, 5), "m"),
    "ErfcOp": ([node("Erf", "h", "e"), node("Sub", "one e", "m")], ONE, (-5, 5), "e m"),
    "InvOp": ([node("Div", "one h", "m")], ONE, (0.01, 10), ""),
    "LogOp": ([node("Log", "h", "m")], {}, (0.01, 10), ""),
    "Log1pOp": ([node("Add", "one h", "a"), node("Log", "a", "m")], ONE, (-0.99, 9), "a"),
    "LogSoftmaxOp": ([node("LogSoftmax", "h", "m")], {}, (-4, 4), "m"),
    "ReciprocalOp": ([node("Reciprocal", "h", "m")], {}, (0.01, 10), ""),
    "SigmoidOp": ([node("Sigmoid", "h", "m")], {}, (-5, 5), "m"),
    "SoftmaxOp": ([node("Softmax", "h", "m")], {}, (-8, 8), "m"),
    "SoftplusOp": ([node("Softplus", "h", "m")], {}, (-5, 5), ""),
    "SqrtOp": ([node("Sqrt", "h", "m")], {}, (0, 10), "m"),
    "TanhOp": ([node("Tanh", "h", "m")], {}, (-5, 5), "m"),
}
"""The nodes, their constants, the range of the input, and which of the nodes are narrow."""


@pytest.mark.parametrize("case", UNARY)
def test_tensorflow_unary(case):
    """Between two products, what is gray is narrow: 2 nodes added. What is red for us costs 4."""
    middle, weights, limits, narrow = UNARY[case]
    proto = products_around(middle, [32, 32], weights)
    casts = 2 if "m" in narrow.split() else 4
    stored = "w one" if weights and narrow else "w"
    feeds = {"x": uniform(*limits, 32, 32)}
    painted(proto, feeds, casts, f"h {narrow} y", stored, tolerance=1e-2)


def test_tensorflow_cpu_simple():
    """2 nodes added, where theirs has 9: it casts around each node by itself on a CPU."""
    made = painted(*simple(), 2, SIMPLE, text="fp16{red=[deny2],cost=count}", tolerance=1e-2)
    assert targets(made) == {"deny1": HALF, "clr3": FLOAT}


def test_tensorflow_cpu_mixed_fanout():
    """4 nodes added, where theirs has 10: a narrow value that a red node reads is cast once."""
    nodes = [
        node("MatMul", "x z", "allow1"),
        node("MatMul", "allow1 z", "allow2"),
        node("Exp", "allow1", "deny"),
        node("Add", "deny allow2", "y"),
    ]
    proto = model(nodes, {"x": [8, 8], "z": [8, 8]}, {"y": [8, 8]})
    made = painted(proto, {"x": floats(8, 8), "z": floats(8, 8)}, 4, "allow1 allow2")
    assert targets(made) == {"x": HALF, "z": HALF, "allow1": FLOAT, "allow2": FLOAT}


def test_tensorflow_mkl_already_bf16():
    """0 nodes added, as in theirs, and also where the other type is asked for."""
    for text in (BF16, "fp16"):
        unchanged(already(BFLOAT), text)


def test_tensorflow_mkl_simple():
    """2 nodes added, as in theirs."""
    painted(*simple(), 2, SIMPLE, text="fp16{dtype=bfloat16,red=[deny2]}", tolerance=5e-2)


def test_tensorflow_mkl_tensor_list_set_get():
    """4 nodes added, where theirs has 2: sequences keep float32."""
    proto, feeds = set_and_get("Mul", "read1 read1")
    painted(proto, feeds, 4, "allow1 infer1 allow2", text=BF16, tolerance=5e-2)


def test_tensorflow_mkl_infer_follow_up_stream_allow():
    """2 nodes added, where theirs has 4: weights and bias are stored narrow."""
    nodes = [conv("x w", "allow"), node("Add", "allow b", "infer"), node("Relu", "infer", "y")]
    weights = {"w": floats(4, 4, 3, 3), "b": floats(4, 1, 1)}
    proto = model(nodes, {"x": [1, 4, 6, 6]}, {"y": [1, 4, 6, 6]}, weights, opset=22)
    feeds = {"x": floats(1, 4, 6, 6)}
    painted(proto, feeds, 2, "allow infer y", "w b", BF16, tolerance=3e-2)


def test_tensorflow_mkl_infer_follow_up_stream_deny():
    """0 nodes added, as in theirs: what follows a red node is no reason to lower anything."""
    nodes = [
        node("Pow", "x one", "deny"),
        node("Add", "deny b", "infer"),
        node("Relu", "infer", "y"),
    ]
    weights = {"one": np.ones(4, "f4"), "b": floats(4)}
    unchanged(model(nodes, {"x": [6, 4]}, {"y": [6, 4]}, weights), BF16)


# The page


PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "mixed-precision-cases.md"


def test_the_page_names_each_test_and_each_original_once():
    """The tables of the documentation and this file have the same tests."""
    if not PAGE.is_file():
        pytest.skip("the documentation is not there: these tests are run from a source archive")
    rows = re.findall(
        r"^\| `(\w+(?:\.\w+)?)` \| `([\w\[\]]+)` \| .+ \|$", PAGE.read_text("utf-8"), re.MULTILINE
    )
    here = {name for name in globals() if re.match(r"test_(relay|relax|tensorflow)_", name)}
    here -= {"test_tensorflow_unary"}
    here |= {f"test_tensorflow_unary[{case}]" for case in UNARY}
    named = [test for _, test in rows]
    assert sorted(named) == sorted(here)
    by_project = [
        len({original for original, test in rows if test.startswith(f"test_{project}_")})
        for project in ("relay", "relax", "tensorflow")
    ]
    assert by_project == [18, 15, 38]
