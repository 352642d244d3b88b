"""The tests of TVM's pass for Relay, in meaning.

Each test here stands for one of theirs, on an ONNX model of our own. What differs on purpose is
described in the docstring, and in the page `mixed-precision-cases` of the documentation.
"""

from __future__ import annotations

import numpy as np
import pytest
from fp16_kit import FLOAT, HALF, floats, model, rewritten, run
from onnx import helper
from ported_kit import (
    BF16,
    BFLOAT,
    BOOL,
    INT64,
    LONG,
    conv,
    matmuls_around,
    names_of,
    node,
    number,
    painted,
    targets,
    unchanged,
    uniform,
)

from narrowpass.errors import NarrowpassError


def cells(steps=5, units=4):
    """Build an LSTM of small operators, unrolled, that reads an input in each step."""
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
    narrowed = painted(*single_conv(fed=True), 3, "y")
    assert targets(narrowed) == {"x": HALF, "w": HALF, "y.float": FLOAT}
    painted(*single_conv(fed=False), 2, "y", "w")


def test_relay_convert_single_conv_fp64():
    """As above with the other type that we have, which a Conv may have from opset 22 on."""
    upgraded = rewritten(single_conv(fed=True)[0], BF16)
    assert upgraded.opset_import[0].version == 22
    assert targets(upgraded) == {"x": BFLOAT, "w": BFLOAT, "y.float": FLOAT}
    narrowed = painted(*single_conv(fed=True, opset=22), 3, "y", "", BF16, tolerance=3e-2)
    assert targets(narrowed) == {"x": BFLOAT, "w": BFLOAT, "y.float": FLOAT}


def test_relay_convert_conv_bn():
    """Theirs converts the normalization; for us it is red, and narrow where that is asked for.

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


def test_relay_do_not_convert_softmax():
    """Alone it stays; among matmuls it stays if it is long, and a short one follows these."""
    alone = model([node("Softmax", "x", "y")], {"x": [1, 2, 3]}, {"y": [1, 2, 3]})
    unchanged(alone)
    for width, casts, narrow in ((LONG, 4, "h y"), (8, 2, "h m y")):
        proto = matmuls_around([node("Softmax", "h", "m")], [2, width])
        painted(proto, {"x": floats(2, width)}, casts, narrow, "w")


def test_relay_do_not_convert_arange():
    """What counts stays wide, alone and where a matmul is added to it."""
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


REDUCTIONS = {
    "ReduceSum": {"keepdims": 1},
    "ReduceMean": {"keepdims": 1},
    "GlobalAveragePool": {},
    "AveragePool": {},
}


@pytest.mark.parametrize("kind", REDUCTIONS)
def test_relay_do_not_convert_summation(kind):
    """Theirs keeps all reductions wide; we those of more than 256 elements."""
    for side, follows in ((20, False), (8, True)):
        attributes = dict(REDUCTIONS[kind])
        if kind == "AveragePool":
            attributes["kernel_shape"] = [side, side]
        axes = "axes" if kind.startswith("Reduce") else ""
        weights = {"axes": np.array([2, 3])} if axes else {}
        reductions = [node(kind, f"x {axes}", "y", **attributes)]
        unchanged(model(reductions, {"x": [1, 3, side, side]}, {"y": [1, 3, 1, 1]}, weights))
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
    """No cast reads the output of a cast: the red node gets one, right after the green one."""
    nodes = [conv("x w", "h"), node("Softmax", "h", "y", axis=-1)]
    shapes = {"x": [1, 3, 2, LONG], "w": [2, 3, 3, 3]}
    proto = model(nodes, shapes, {"y": [1, 2, 2, LONG]})
    feeds = {name: uniform(-1, 1, *shape) for name, shape in shapes.items()}
    narrowed = painted(proto, feeds, 3, "h")
    assert targets(narrowed) == {"x": HALF, "w": HALF, "h": FLOAT}
    assert [n.input[0] for n in narrowed.graph.node if n.op_type == "Softmax"] == ["h.float"]


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
        narrowed = painted(proto, feeds, 3, "v1 y r1 v2 r2 same", tolerance=1e-2)
        assert targets(narrowed) == {"x": HALF, "w": HALF, "y.float": FLOAT}


def test_relay_where_simple():
    """The condition follows from the input as it is: 1e-9 is true, in float16 it would be 0."""
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
    """As theirs; an ONNX MatMul does not state the type of its accumulators."""
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
    """Build a matmul, whatever follows it, and a Clip to what float16 does not hold."""
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
    narrowed = painted(clipped(before), feeds, 2, "h m", "w five")
    assert targets(narrowed) == {"x": HALF, "m": FLOAT}
    painted(clipped(before), feeds, 2, "h m y", "w low high five", BF16, tolerance=3e-2)


def test_relay_loop():
    """A loop over integers is left alone, also where a matmul elsewhere is lowered."""
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
    narrowed = painted(proto, feeds, 2, "y", "w")
    (same,) = [each for each in narrowed.graph.node if each.op_type == "Loop"]
    assert same == loop
