"""What `eliminate-identity` removes, and what only looks like it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from folding_kit import check_bits, ops, parse, run

from narrowpass_constant_folding.passes.eliminate_identity import EliminateIdentity
from narrowpass_constant_folding.passes.fold import Fold
from narrowpass_constant_folding.passes.infer_shapes import InferShapes

X = "float[N, 3, 4] x"

REMOVED = [
    ("b = Identity(a)", {}, 17),
    ("b = Dropout(a)", {}, 17),
    ("b = Dropout(a)", {}, 7),
    ("b = Dropout(a, r, t)", {"r": np.float32(0.5), "t": np.array(False)}, 17),
    ("b = Transpose <perm = [0, 1, 2]> (a)", {}, 17),
    ("b = Reshape(a, s)", {"s": np.array([0, 3, 4])}, 17),
    ("b = Reshape(a, s)", {"s": np.array([-1, 3, 4])}, 17),
    ("b = Reshape(a, s)", {"s": np.array([0, 0, -1])}, 17),
    ("n = Shape(a) b = Reshape(a, n)", {}, 17),
    ("b = Expand(a, s)", {"s": np.array([1, 4])}, 17),
    ("n = Shape(a) b = Expand(a, n)", {}, 17),
    ("b = Slice(a, z, e)", {"z": np.array([0]), "e": np.array([(1 << 63) - 1])}, 17),
    ("b = Slice(a, z, e, o)", {"z": np.array([0]), "e": np.array([4]), "o": np.array([2])}, 17),
    ("b = Slice <starts = [0], ends = [2147483647]> (a)", {}, 9),
    ("b = Pad(a, p)", {"p": np.zeros(6, np.int64)}, 17),
    ("b = Pad <pads = [0, 0, 0, 0, 0, 0]> (a)", {}, 9),
    ("b = Tile(a, o)", {"o": np.ones(3, np.int64)}, 17),
    ("b = Concat <axis = 1> (a)", {}, 17),
    ("b = Sum(a)", {}, 17),
    ("b = Max(a)", {}, 17),
    ("b = Mul(a, o)", {"o": np.float32(1)}, 17),
    ("b = Mul(o, a)", {"o": np.ones((1, 3, 1), np.float32)}, 17),
    ("b = Div(a, o)", {"o": np.ones(4, np.float32)}, 17),
    ("b = Sub(a, z)", {"z": np.float32(0)}, 17),
    ("b = Add(a, z)", {"z": np.float32(-0.0)}, 17),
    ("b = Pow(a, o)", {"o": np.float32(1)}, 17),
    ("n = Relu(a) b = Relu(n)", {}, 17),
    ("b = Where(t, a, k)", {"t": np.array(True), "k": np.float32(2)}, 17),
    ("b = Where(t, k, a)", {"t": np.zeros((3, 4), bool), "k": np.zeros((1, 4), np.float32)}, 17),
    ("b = Resize(a, , s)", {"s": np.ones(3, np.float32)}, 17),
]

STAYS = [
    # -0.0 + 0.0 is 0.0, and -0.0 - -0.0 is 0.0
    ("b = Add(a, z)", {"z": np.float32(0)}, 17),
    ("b = Sub(a, z)", {"z": np.float32(-0.0)}, 17),
    ("b = Sub(z, a)", {"z": np.float32(0)}, 17),
    ("b = Mul(a, z)", {"z": np.float32(0)}, 17),
    ("b = Div(o, a)", {"o": np.float32(1)}, 17),
    ("b = Pow(o, a)", {"o": np.float32(1)}, 17),
    # these repeat what they are given
    ("b = Mul(a, o)", {"o": np.ones((2, 1, 1, 1), np.float32)}, 17),
    ("b = Expand(a, s)", {"s": np.array([2, 1, 1, 1])}, 17),
    ("b = Where(t, a, k)", {"t": np.array(True), "k": np.zeros((5, 1, 1, 1), np.float32)}, 17),
    ("b = Tile(a, o)", {"o": np.array([1, 2, 1])}, 17),
    ("b = Reshape(a, s)", {"s": np.array([0, 4, 3])}, 17),
    ("b = Transpose <perm = [0, 2, 1]> (a)", {}, 17),
    ("b = Transpose(a)", {}, 17),
    ("b = Slice(a, z, e, o)", {"z": np.array([0]), "e": np.array([3]), "o": np.array([2])}, 17),
    ("b = Slice(a, z, e, o)", {"z": np.array([1]), "e": np.array([9]), "o": np.array([2])}, 17),
    (
        "b = Slice(a, z, e, o, m)",
        {"z": np.array([-1]), "e": np.array([-9]), "o": np.array([2]), "m": np.array([-1])},
        17,
    ),
    ("b = Pad(a, p)", {"p": np.array([0, 0, 0, 0, 0, 1])}, 17),
    ("b = Dropout(a, r, t)", {"r": np.float32(0.5), "t": np.array(True)}, 17),
    # weights of 0 times a neighbour that is not finite are NaN
    ('b = Resize <mode = "cubic"> (a, , s)', {"s": np.ones(3, np.float32)}, 17),
    ("b = Clip(a)", {}, 9),
]


def model(body, constants, opset):
    text = f"g ({X}) => (float[?] y) {{ a = Neg(x) {body} y = Abs(b) }}"
    proto = parse(text, opset=opset, initializers={k: np.asarray(v) for k, v in constants.items()})
    rank = max((np.ndim(v) for v in constants.values()), default=3)
    if "Expand" in body and "s" in constants:
        rank = len(constants["s"])
    rank = max(rank, 3)
    dims = proto.graph.output[0].type.tensor_type.shape.dim
    del dims[:]
    for _ in range(rank):
        dims.add()
    return proto


def shaped(proto):
    """Return the model with the shapes that the rules ask for."""
    return run(InferShapes(), proto)[0]


@pytest.mark.parametrize(("body", "constants", "opset"), REMOVED)
@pytest.mark.parametrize("size", [0, 1, 5])
def test_identities_are_removed(body, constants, opset, size):
    proto = shaped(model(body, constants, opset))
    after, _, ctx = run(EliminateIdentity(), proto)
    assert after.graph.node[-1].input[0] in ("a", "n")
    assert ctx.counters["identities"] == 1
    # a -1 beside a dimension of 0 stands for nothing: the original fails there
    if not (size == 0 and -1 in np.asarray(constants.get("s", 0))):
        # onnx's evaluator turns an infinity into the largest number when it resizes
        check_bits(proto, after, special="Resize" not in body, N=size)


@pytest.mark.parametrize(("body", "constants", "opset"), STAYS)
def test_near_identities_stay(body, constants, opset):
    proto = shaped(model(body, constants, opset))
    after, _, ctx = run(EliminateIdentity(), proto)
    assert after.graph.node == proto.graph.node
    assert not ctx.counters


def test_involutions_cancel():
    proto = parse(
        "g (float[4] x, bool[4] c) => (float[4] y, bool[4] z)"
        "{ a = Exp(x) b = Neg(a) d = Neg(b) y = Log(d) e = Not(c) f = Not(e) z = Or(f, c) }"
    )
    after, _, _ = run(Fold(), proto)
    assert ops(after) == ["Exp", "Log", "Or"]
    check_bits(proto, after)


def test_in_a_branch_and_in_a_function():
    proto = parse(
        """g (float[N, 3, 4] x, bool c) => (float[N, 3, 4] y) {
        t = If(c) <then_branch = t () => (float[N, 3, 4] p) { u = Identity(x) p = Neg(u) },
                   else_branch = e () => (float[N, 3, 4] q) { q = Identity(x) }>
        y = local.f(t) }
        <domain: "local", opset_import: ["" : 17]> f (v) => (w) { i = Identity(v) w = Neg(i) }""",
        more=', "local" : 1',
    )
    after, _, ctx = run(EliminateIdentity(), proto)
    assert ctx.counters["identities"] == 2
    assert [node.op_type for node in after.functions[0].node] == ["Neg"]
    check_bits(proto, after)


def test_a_kept_node_stays():
    proto = parse(f"g ({X}) => ({X.replace(' x', ' y')}) {{ [here] a = Identity(x) y = Neg(a) }}")
    assert ops(run(EliminateIdentity(keep=("here",)), proto)[0]) == ["Identity", "Neg"]
    assert ops(run(EliminateIdentity(), proto)[0]) == ["Neg"]


@pytest.mark.parametrize("body", ["y = Identity(x)", "t = Neg(x) y = Identity(t) z = Identity(t)"])
def test_outputs_keep_their_names(body):
    outputs = "float[4] y, float[4] z" if "z" in body else "float[4] y"
    proto = parse(f"g (float[4] x) => ({outputs}) {{ {body} }}")
    after, _, _ = run(EliminateIdentity(), proto)
    assert [value.name for value in after.graph.output] == [v.name for v in proto.graph.output]
    assert "Identity" in ops(after)
    check_bits(proto, after)


def test_only_one_element_of_a_large_weight_is_read():
    # One element shows that a weight is not neutral; the rest of a large one is not read.
    proto = parse(
        "g (float[N, 4] x) => (float[N, 4] y) { y = Mul(x, w) }",
        initializers={"w": np.array([2, 1, 1, 1], np.float32)},
    )
    assert ops(run(EliminateIdentity(), proto)[0]) == ["Mul"]


def test_double_subnormals_are_not_zero():
    proto = parse(
        "g (double[2] x) => (double[2] y) { a = Add(x, z) y = Abs(a) }",
        initializers={"z": np.array([-0.0, -1e-300])},
    )
    assert ops(run(EliminateIdentity(), proto)[0]) == ["Add", "Abs"]


def test_a_large_broadcast_constant_is_not_materialized():
    proto = parse(
        "g (float[N, 1000000, 1000000] x) => (float[?, ?, ?] y)"
        "{ o = ConstantOfShape <value = float[1] {1}> (s) a = Mul(x, o)"
        " t = ConstantOfShape <value = bool[1] {1}> (s) b = Where(t, a, k) y = Abs(b) }",
        initializers={"s": np.array([1000000, 1000000]), "k": np.float32(3)},
    )
    assert ops(run(Fold(), proto)[0]) == ["Abs"]


@pytest.mark.parametrize("dtype", ["int32", "uint8", "float16", "bfloat16", "double", "int64"])
def test_neutral_elements_of_every_type(dtype):
    number = onnx.TensorProto.DataType.Value(
        {"bfloat16": "BFLOAT16", "float16": "FLOAT16", "uint8": "UINT8"}.get(dtype, dtype.upper())
    )
    proto = parse(
        f"g ({dtype}[4] x) => ({dtype}[4] y) {{ a = Mul(x, o) b = Add(a, z) y = Abs(b) }}"
    )
    one = onnx.helper.make_tensor("o", number, [], [1])
    zero = onnx.helper.make_tensor("z", number, [], [0])
    proto.graph.initializer.extend([one, zero])
    after, _, _ = run(Fold(), proto)
    # integers have one zero
    assert ops(after) == (["Abs"] if "int" in dtype else ["Add", "Abs"])
