"""The tests of TVM's pass for Relax, in meaning.

Each test here stands for one of theirs, on an ONNX model of our own. What differs on purpose is
described in the docstring, and in the page `mixed-precision-cases` of the documentation.
"""

from __future__ import annotations

import numpy as np
import pytest
from fp16_kit import FLOAT, HALF, check, compare, constants, count, floats, model, rewritten
from onnx import helper
from onnx.reference import ReferenceEvaluator
from ported_kit import (
    COUNT,
    INT64,
    LONG,
    conv,
    lowered,
    node,
    painted,
    targets,
    unchanged,
    uniform,
)

IMAGE, KERNEL = [2, 3, 8, 8], [4, 3, 3, 3]


def images(nodes, output, *, opset=20, **shapes):
    """Build a model of convolutions whose weights are fed, and what to feed it."""
    shapes = {"x": IMAGE, "w": KERNEL, **shapes}
    feeds = {name: uniform(-1, 1, *shape) for name, shape in shapes.items()}
    return model(nodes, shapes, {"y": output}, opset=opset), feeds


def test_relax_conv2d():
    """As theirs with `out_dtype` float16: in ONNX, inputs and output of a Conv have one type."""
    painted(*images([conv("x w", "y", [0] * 4)], [2, 4, 6, 6]), 3, "y")


def test_relax_conv2d_relu():
    nodes = [conv("x w", "h"), node("Relu", "h", "y")]
    painted(*images(nodes, [2, 4, 8, 8]), 3, "h y")


def test_relax_relu_conv2d_relu():
    """As many casts as theirs; the first Relu is narrow, since that costs the same."""
    nodes = [node("Relu", "x", "r"), conv("r w", "h"), node("Relu", "h", "y")]
    narrowed = painted(*images(nodes, [2, 4, 8, 8]), 3, "r h y")
    assert targets(narrowed) == {"x": HALF, "w": HALF, "y.float": FLOAT}


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
    narrowed = painted(model(nodes, shapes, {"y": [2, 64]}), feeds, 3, "h")
    assert targets(narrowed) == {"x": HALF, "w": HALF, "h": FLOAT}
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
    narrowed = painted(proto, feeds, 7, "a b y", tolerance=1e-2)
    wide, half = {"a": FLOAT, "b": FLOAT, "y.float": FLOAT}, {"x": HALF, "w": HALF, "v": HALF}
    assert targets(narrowed) == wide | half | {"h": HALF}


def test_relax_concat_matmul():
    """Two casts before the Concat move the same bytes as one after it, which is one cast less."""
    nodes = [node("Concat", "a b", "x", axis=-1), node("MatMul", "x w", "y")]
    shapes = {"a": [2, 16], "b": [2, 16], "w": [32, 64]}
    feeds = {name: floats(*shape) for name, shape in shapes.items()}
    proto = model(nodes, shapes, {"y": [2, 64]})
    for text in ("fp16", COUNT):
        narrowed = painted(proto, feeds, 3, "y", text=text)  # as theirs
        assert targets(narrowed) == {"x": HALF, "w": HALF, "y.float": FLOAT}


def test_relax_conv2d_softmax():
    """As theirs if the softmax is long; a short one is narrow, for as many casts."""
    nodes = [conv("x w", "h"), node("Softmax", "x", "s", axis=-1), node("Add", "h s", "y")]
    for width, narrow in ((LONG, "h"), (8, "h s y")):
        shape = [1, 3, 2, width]
        proto, feeds = images(nodes, shape, x=shape, w=[3, 3, 3, 3])
        painted(proto, feeds, 3, narrow)


def test_relax_conv2d_bias_conv2d():
    """Weights that are float16 in the file, and read through casts, are read as they are."""
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
    narrowed = check(proto, {"x": floats(1, 4, 8, 8)}, tolerance=1e-2)
    assert [to for _, to in sorted(targets(narrowed).items())] == [HALF, FLOAT]  # at the ends
    assert constants(narrowed) == constants(proto)


def test_relax_tuple_get():
    """Fewest casts are those of theirs; fewest bytes are moved with one more, at the ends."""
    nodes = [
        conv("x w", "h", [0, 0, 1, 1]),
        node("Add", "h b", "a"),
        node("Split", "a", "s t", axis=1, num_outputs=2),
        node("Add", "s t", "y"),
    ]
    proto, feeds = images(nodes, [2, 2, 7, 7], b=[4, 1, 1])
    narrowed = painted(proto, feeds, 3, "h", text=COUNT)
    assert targets(narrowed) == {"x": HALF, "w": HALF, "h": FLOAT}
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
    narrowed = rewritten(proto, "fp16{keep-io=[x,y]}")
    assert count(narrowed) == 2
    assert lowered(proto, narrowed, HALF) == {"h", "bias", "y"}
    found = {
        v.name: v.type.tensor_type.elem_type
        for v in (*narrowed.graph.input, *narrowed.graph.output)
    }
    assert found == {"x": FLOAT, "w": HALF, "b": HALF, "y": FLOAT}
    feeds = {name: uniform(-1, 1, *shape) for name, shape in shapes.items()}
    halves = {name: feeds[name].astype(np.float16) for name in "wb"}
    got = ReferenceEvaluator(narrowed).run(None, feeds | halves)
    compare(got, ReferenceEvaluator(proto).run(None, feeds), 5e-3)


def functions(proto, kind="Twice"):
    """Return a model a function of its own."""
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
    """Functions of the model's own with float16 inputs and outputs are left as they are."""
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
    """The output type of a foreign operator is unknown: its users are not changed."""
    nodes = [
        node("Thing", "x", "t", domain="foreign"),
        node("Relu", "t", "r"),
        node("MatMul", "r w", "p"),
        node("Thing", "p", "y", domain="foreign"),
    ]
    proto = model(nodes, {"x": [3, 16]}, {"y": [3, 16]}, {"w": floats(16, 16)})
    proto.opset_import.append(helper.make_opsetid("foreign", 1))
    unchanged(proto)
