"""The tests of TensorFlow's pass, in meaning, but for those of lists.

Each test here stands for one of theirs, on an ONNX model of our own. What differs on purpose is
described in the docstring, and in the page `mixed-precision-cases` of the documentation.

Theirs read constants, which they cast; ours read inputs, so that the numbers can be compared. The
names of nodes say how theirs are coloured: allow (green), deny (red), infer and clr (gray).
"""

from __future__ import annotations

import numpy as np
import pytest
from fp16_kit import FLOAT, HALF, floats, model
from onnx import helper
from ported_kit import (
    BF16,
    BFLOAT,
    BOOL,
    INT64,
    conv,
    matmuls_around,
    node,
    number,
    painted,
    targets,
    unchanged,
    uniform,
)


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
    narrowed = painted(*simple(), 2, SIMPLE, text="fp16{red=[deny2]}", tolerance=1e-2)
    assert targets(narrowed) == {"deny1": HALF, "clr3": FLOAT}


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
    narrowed = painted(proto, {"x": floats(8, 8)}, 4, narrow, text="fp16{red=[op:Sqrt,op:Log]}")
    assert targets(narrowed) == {"infer1": HALF, "clr3": FLOAT, "infer2": HALF, "allow2": FLOAT}


@pytest.mark.parametrize("kind", ["Shape", "Equal"])
def test_tensorflow_bidirectional_clear_chain(kind):
    """2 nodes added, where theirs has 3: both branches become narrow as one node reads both.

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
    narrowed = painted(proto, feeds, 4, "allow1 allow2 clr3", tolerance=2e-2)
    assert targets(narrowed) == {
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
    """2 nodes added, as in theirs: variadic inputs or outputs have one type."""
    nodes = [
        node("MatMul", "x x", "allow1"),
        node("Split", "allow1", "clr1 b c", axis=0, num_outputs=3),
        node("Sum", "clr1 b c clr1", "infer1"),
        node("MatMul", "infer1 w", "y"),
    ]
    proto = model(nodes, {"x": [6, 6]}, {"y": [2, 6]}, {"w": floats(6, 6)})
    painted(proto, {"x": floats(6, 6)}, 2, "allow1 clr1 infer1 y", "w")


def test_tensorflow_existing_cast():
    """1 node added, as in theirs: the cast of bools has float16 as its target at once."""
    nodes = [node("Cast", "x", "cst1", to=FLOAT), node("MatMul", "cst1 cst1", "y")]
    proto = model(nodes, {"x": [8, 8]}, {"y": [8, 8]}, types={"x": BOOL})
    narrowed = painted(proto, {"x": floats(8, 8) > 0}, 1, "cst1 y")
    assert targets(narrowed) == {"x": HALF, "y.float": FLOAT}


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
    narrowed = painted(proto, {"x": floats(4, 8)}, 2, "y infer1 allow1", "w")
    assert sum(each.op_type == "Cast" for each in narrowed.graph.node) == 2


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
    """Between two matmuls, what is gray is narrow: 2 nodes added. What is red for us costs 4."""
    middle, weights, limits, narrow = UNARY[case]
    proto = matmuls_around(middle, [32, 32], weights)
    casts = 2 if "m" in narrow.split() else 4
    stored = "w one" if weights and narrow else "w"
    feeds = {"x": uniform(*limits, 32, 32)}
    painted(proto, feeds, casts, f"h {narrow} y", stored, tolerance=1e-2)


def test_tensorflow_cpu_simple():
    """2 nodes added, where theirs has 9: it casts around each node by itself on a CPU."""
    narrowed = painted(*simple(), 2, SIMPLE, text="fp16{red=[deny2],cost=count}", tolerance=1e-2)
    assert targets(narrowed) == {"deny1": HALF, "clr3": FLOAT}


def test_tensorflow_cpu_mixed_fanout():
    """4 nodes added, where theirs has 10: a narrow value that a red node reads is cast once."""
    nodes = [
        node("MatMul", "x z", "allow1"),
        node("MatMul", "allow1 z", "allow2"),
        node("Exp", "allow1", "deny"),
        node("Add", "deny allow2", "y"),
    ]
    proto = model(nodes, {"x": [8, 8], "z": [8, 8]}, {"y": [8, 8]})
    narrowed = painted(proto, {"x": floats(8, 8), "z": floats(8, 8)}, 4, "allow1 allow2")
    assert targets(narrowed) == {"x": HALF, "z": HALF, "allow1": FLOAT, "allow2": FLOAT}


def test_tensorflow_mkl_already_bf16():
    """0 nodes added, as in theirs, and also where the other type is asked for."""
    for text in (BF16, "fp16"):
        unchanged(already(BFLOAT), text)


def test_tensorflow_mkl_simple():
    """2 nodes added, as in theirs."""
    painted(*simple(), 2, SIMPLE, text="fp16{dtype=bfloat16,red=[deny2]}", tolerance=5e-2)


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
