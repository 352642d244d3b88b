"""Faults that users of other tools reported, each as a small model of our own."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from folding_kit import check_bits, check_close, fold, ops, parse

from narrowpass import build, save_model
from narrowpass_ir.io import load_model, serialize

RNG = np.random.default_rng(3)
BN = "BatchNormalization({0}, s, h, m, v)"


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def norm(channels):
    return {
        "s": 1 + normal(channels) / 5,
        "h": normal(channels),
        "m": normal(channels),
        "v": 0.5 + normal(channels) ** 2,
    }


class Report(NamedTuple):
    """A fault.

    Attributes:
        url: where it was reported.
        text: a model that shows it.
        constants: its initializers.
        left: the operators that are to be left, in order.
        exact: whether results have the same bits.
        opset: the operator set.
    """

    url: str
    text: str
    constants: dict[str, Any]
    left: list[str]
    exact: bool = True
    opset: int = 17


SIM = "https://github.com/onnxsim/onnxsim/issues/"
SLIM = "https://github.com/inisis/OnnxSlim/issues/"
OPTIMIZER = "https://github.com/onnx/optimizer/"
SCRIPT = "https://github.com/microsoft/onnxscript/"
RUNTIME = "https://github.com/microsoft/onnxruntime/"
IMAGE = "float[N, 3, 6, 6] x"
FLAT = "g (float[N, 4] x) => (float[N, 4] y)"

REPORTS = [
    Report(
        SIM + "50",  # a normalization with its own statistics folded into the wrong factors
        (
            f"g ({IMAGE}) => (float[?, ?, ?, ?] y) {{ a = Conv <group = 3> (x, w) y = "
            f"{BN.format('a')} }}"
        ),
        {"w": normal(6, 1, 3, 3), **norm(6)},
        ["Conv"],
        exact=False,
    ),
    Report(
        OPTIMIZER + "issues/133",  # weights in initializers
        f"g ({IMAGE}) => (float[?, ?, ?, ?] y) {{ a = Conv(x, w, b) y = {BN.format('a')} }}",
        {"w": normal(4, 3, 3, 3), "b": normal(4), **norm(4)},
        ["Conv"],
        exact=False,
    ),
    Report(
        "https://github.com/onnx/onnx/issues/2401",  # two fusions that take the same names
        f"""g ({IMAGE}) => (float[?, ?, ?, ?] y) {{ a = Conv(x, w) b = {BN.format("a")}
        r = Neg(x) c = Conv(r, w) d = {BN.format("c")} y = Add(b, d) }}""",
        {"w": normal(4, 3, 3, 3), **norm(4)},
        ["Conv", "BatchNormalization", "Neg", "Conv", "BatchNormalization", "Add"],
        exact=False,
    ),
    Report(
        "https://github.com/pytorch/pytorch/issues/197539",  # normalized on one path only
        f"""g ({IMAGE}) => (float[?, ?, ?, ?] y) {{ a = Conv(x, w) b = {BN.format("a")}
        r = Neg(x) c = Conv(r, w) y = Add(b, c) }}""",
        {"w": normal(4, 3, 3, 3), **norm(4)},
        ["Conv", "BatchNormalization", "Neg", "Conv", "Add"],
        exact=False,
    ),
    Report(
        OPTIMIZER + "pull/106",  # the channels of a ConvTranspose are its second axis
        f"g ({IMAGE}) => (float[?, ?, ?, ?] y) {{ a = ConvTranspose(x, w) y = {BN.format('a')} }}",
        {"w": normal(3, 5, 3, 3), **norm(5)},
        ["ConvTranspose"],
        exact=False,
    ),
    Report(
        SCRIPT + "issues/2838",  # negative pads
        f"g ({IMAGE}) => (float[?, ?, ?, ?] y) {{ a = Pad(x, p) y = Conv(a, w) }}",
        {"p": np.array([0, 0, -1, 0, 0, 0, 0, 0]), "w": normal(4, 3, 3, 3)},
        ["Pad", "Conv"],
        exact=False,
    ),
    Report(
        OPTIMIZER + "pull/318",  # zeros are not what a MaxPool pads with
        f"""g ({IMAGE}) => (float[?, ?, ?, ?] y) {{
        a = Pad(x, p) y = MaxPool <kernel_shape = [3, 3]> (a) }}""",
        {"p": np.array([0, 0, 1, 1, 0, 0, 1, 1])},
        ["Pad", "MaxPool"],
        exact=False,
    ),
    Report(
        OPTIMIZER + "pull/251",  # pads beside auto_pad
        f"""g ({IMAGE}) => (float[?, ?, ?, ?] y) {{
        a = Pad(x, p) y = Conv <auto_pad = "SAME_LOWER"> (a, w) }}""",
        {"p": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "w": normal(4, 3, 3, 3)},
        ["Pad", "Conv"],
        exact=False,
    ),
    Report(
        OPTIMIZER
        + "issues/284",  # a transpose that moves nothing, and one that moves axes of size 1
        """g (float[1, N, 1] x) => (float[?, ?, ?] y, float[?, ?, ?] z) {
        a = Transpose <perm = [0, 1, 2]> (x) y = Neg(a)
        b = Transpose <perm = [2, 1, 0]> (x) z = Exp(b) }""",
        {},
        ["Neg", "Transpose", "Exp"],
    ),
    Report(
        OPTIMIZER + "issues/254",  # equal by operator and inputs, not by attributes
        FLAT + "{ a = Softmax <axis = 0> (x) b = Softmax <axis = 1> (x) y = Sub(a, b) }",
        {},
        ["Softmax", "Softmax", "Sub"],
    ),
    Report(
        RUNTIME + "issues/5585",  # equal weights under two names hid equal nodes
        FLAT + "{ a = Add(x, c) b = Add(x, d) y = Mul(a, b) }",
        {"c": normal(4), "d": None},
        ["Add", "Mul"],
    ),
    Report(
        RUNTIME + "issues/32413",  # an Identity before a factor that folds to 1
        FLAT + "{ i = Identity(x) o = Div(p, p) w = Mul(i, o) y = Add(w, z) }",
        {"p": np.float32(3), "z": np.float32(2)},
        ["Add"],
    ),
    Report(
        RUNTIME + "issues/32416",  # the same with a cast to its own type
        FLAT + "{ i = Cast <to = 1> (x) o = Div(p, p) w = Mul(i, o) y = Neg(w) }",
        {"p": np.float32(3)},
        ["Neg"],
    ),
    Report(
        RUNTIME + "issues/32130",  # comparisons that have a function for a body
        "g (float[N] x) => (bool[?] y) { a = GreaterOrEqual(c, d) b = LessOrEqual(c, d)"
        " e = And(a, b) f = Greater(x, c) y = Or(e, f) }",
        {"c": np.float32(1), "d": np.float32(2)},
        ["Greater"],
        opset=13,
    ),
    Report(
        SIM + "178",  # Tile of a constant
        "g (float[512, 512] x) => (float[512, 512] y) { a = Tile(c, r) y = Add(x, a) }",
        {"c": normal(1, 512), "r": np.array([512, 1])},
        ["Tile", "Add"],
    ),
    Report(
        SIM + "272",  # ConstantOfShape
        "g (float[512, 512] x) => (float[512, 512] y) { a = ConstantOfShape(r) y = Add(x, a) }",
        {"r": np.array([512, 512])},
        ["ConstantOfShape", "Add"],
    ),
    Report(
        SIM + "239",  # an operand that is left out
        "g (float[1, 1, 4, 4] x) => (float[1, 1, 4, 4] y) { a = Resize(c, , s) y = Add(x, a) }",
        {"c": normal(1, 1, 2, 2), "s": np.array([1, 1, 2, 2], np.float32)},
        ["Add"],
    ),
    Report(
        RUNTIME + "issues/15318",  # a branch that depends on no input
        "g (float[4, 4] x) => (float[4, 4] y) { r = Reshape(c, f) t = Transpose <perm = [0, "
        "2, 3, 1]> (r)"
        " u = Squeeze(t, z) y = Add(x, u) }",
        {"c": normal(16), "f": np.array([1, 1, 4, 4]), "z": np.array([0, 3])},
        ["Add"],
    ),
    Report(
        SIM + "452",  # an If of constants, both from Constant nodes
        """g () => (float[2] y) { y = If(c) <
        then_branch = a () => (float[2] p) { p = Constant <value = float[2] {1, 2}> () },
        else_branch = b () => (float[2] q) { q = Constant <value = float[2] {3, 4}> () }> }""",
        {"c": np.array(True)},
        [],
    ),
    Report(
        SIM + "275",  # a condition on a shape, one within another
        """g (float[2, 1, 4] x) => (float[2, 4] y) { s = Shape(x) d = Gather(s, one) e =
            Equal(d, one)
        y = If(e) <then_branch = a () => (float[2, 4] p) { p = Squeeze(x, ones) },
                   else_branch = b () => (float[2, 4] q) { r = Neg(x) q = Squeeze(r, ones) }> }""",
        {"one": np.array(1), "ones": np.array([1])},
        ["Squeeze"],
    ),
    Report(
        SCRIPT + "issues/2810",  # the initializer of a branch
        """g (float[2, 1, 4] x) => (float[2, 4] y) { n = Neg(x)
        y = If(c) <then_branch = a () => (float[2, 4] p) <int64[1] k = {1}> { p = Squeeze(n, k) },
                   else_branch = b () => (float[2, 4] q) <int64[1] k = {1}> { q =
                       Squeeze(x, k) }> }""",
        {"c": np.array(True)},
        ["Neg", "Squeeze"],
    ),
    Report(
        SCRIPT + "issues/2184",  # several results, one of them a constant, one an outer value
        """g (float[4] x) => (float[4] y, float[4] z, float[4] w) { n = Neg(x) y, z, w = If(c)
        <then_branch = a () => (float[4] p, float[4] r, float[4] u) {
            p = Add(n, x) r = Identity(n) u = Constant <value = float[4] {1, 2, 3, 4}> () },
         else_branch = b () => (float[4] q, float[4] s, float[4] v) {
            q = Sub(n, x) s = Abs(x) v = Exp(x) }> }""",
        {"c": np.array(True)},
        ["Neg", "Add"],
    ),
    Report(
        SCRIPT + "pull/2025",  # a weight that nothing else reads is transposed
        "g (float[N, 64] x) => (float[N, 32] y) { t = Transpose(w) y = MatMul(x, t) }",
        {"w": normal(32, 64)},
        ["MatMul"],
        exact=False,
    ),
    Report(
        SLIM + "277",  # slices of slices, with steps and from the end
        """g (float[9, 8] x) => (float[?, ?] y) {
        a = Slice(x, one, far, zero, two) b = Slice(a, back, far, ones) y = Slice(b, zero,
            back, zero) }""",
        {
            "zero": np.array([0]),
            "one": np.array([1]),
            "ones": np.array([1]),
            "two": np.array([2]),
            "back": np.array([-2]),
            "far": np.array([1 << 40]),
        },
        ["Slice", "Slice", "Slice"],
    ),
    Report(
        SIM + "1284",  # zeros that come about from constants of a shape
        FLAT + "{ z = ConstantOfShape(f) c = Concat <axis = 0> (k, z)"
        " r = Reshape(c, f2) y = Sub(x, r) }",
        {"f": np.array([2]), "f2": np.array([1, 4]), "k": normal(2)},
        ["Sub"],
    ),
]


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report.url.split(".com/")[1])
def test_reported_bug(report):
    constants = {
        name: report.constants["c"].copy() if value is None else value
        for name, value in report.constants.items()
    }
    proto = parse(report.text, opset=report.opset, initializers=constants)
    after, _, _ = fold(proto)
    left = ops(after)
    # A value under a second output's name needs a node.
    assert [op for op in left if op != "Identity"] == report.left
    written = serialize(ir.from_proto(after), lambda scope, value: None)
    assert written.ByteSize() <= proto.ByteSize() + 64
    if report.exact:
        check_bits(proto, after)
    else:
        # onnx's evaluator has no negative pads
        check_close(proto, after, 3e-6, reference="2838" not in report.url)


def test_constants_in_a_function_stay_in_it():
    """https://github.com/microsoft/onnxscript/issues/2673"""
    proto = parse(
        """g (float x) => (float y) { y = this.f(x) }
        <domain: "this", opset_import: ["" : 17]> f (v) => (w) {
        i = Constant <value_int = 1> () t = Cast <to = 1> (i) w = Sub(t, v) }""",
        more=', "this" : 1',
    )
    after, _, _ = fold(proto)
    assert not after.graph.initializer
    assert [node.op_type for node in after.functions[0].node] == ["Constant", "Sub"]
    check_bits(proto, after)


def test_an_initializer_that_is_an_output_keeps_its_name():
    """https://github.com/microsoft/onnxruntime/issues/14488"""
    proto = parse(
        "g (float[4] x) => (float[4] y, float[4] a, float[4] b) { y = Sum(x, a, b) }",
        initializers={"a": np.ones(4, np.float32), "b": np.ones(4, np.float32)},
    )
    after, _, _ = fold(proto)
    assert [value.name for value in after.graph.output] == ["y", "a", "b"]
    assert [item.name for item in after.graph.initializer] == ["a", "b"]
    check_bits(proto, after)


def test_a_graph_may_end_without_nodes():
    """https://github.com/microsoft/onnxruntime/pull/2907"""
    proto = parse("g (float[2, 3] x) => (int64[2] y) { y = Shape(x) }")
    after, _, _ = fold(proto)
    assert ops(after) == []
    check_bits(proto, after)


@pytest.mark.parametrize("ir_version", [3, 4, 8])
def test_a_default_that_a_caller_may_override_is_no_constant(ir_version):
    """https://github.com/microsoft/onnxscript/pull/1944"""
    proto = parse(
        "g (float[4] x, float[4] w) => (float[4] y) { a = Exp(w) y = Mul(x, a) }",
        ir_version=ir_version,
        initializers={"w": np.ones(4, np.float32)},
    )
    after, _, _ = fold(proto)
    assert ops(after) == ["Exp", "Mul"]
    assert [item.name for item in after.graph.initializer] == ["w"]


def test_initializers_need_not_be_inputs():
    """https://github.com/onnx/onnx/issues/2198"""
    proto = parse(
        "g (float[1] x) => (float[1] y) { b = Neg(a) y = Add(x, b) }",
        initializers={"a": np.array([42], np.float32)},
    )
    after, _, _ = fold(proto)
    assert ops(after) == ["Add"]
    check_bits(proto, after)


def test_an_input_that_nothing_reads_stays():
    """https://github.com/inisis/OnnxSlim/issues/321"""
    proto = parse("g (float[1] x, float[N] u) => (float[1] y) { y = Neg(x) }")
    after, _, _ = fold(proto)
    assert [value.name for value in after.graph.input] == ["x", "u"]


def test_initializers_that_nothing_reads_go():
    """https://github.com/microsoft/onnxscript/issues/1614"""
    proto = parse("g (float[1] x) => (float[1] y) { y = Neg(x) }", initializers={"u": normal(1000)})
    assert not fold(proto)[0].graph.initializer


def save_apart(proto, path):
    """Save a model with its weights in a file beside it; onnx changes what it is given."""
    copy = onnx.ModelProto.FromString(proto.SerializeToString())
    onnx.save(copy, path, save_as_external_data=True, location="w", size_threshold=64)


def test_weights_in_a_file_fold_to_their_own_values(tmp_path):
    """https://github.com/microsoft/onnxruntime/issues/8422"""
    proto = parse(
        "g (float[N, 300] x) => (float[N, 300] y) { b = Neg(w) r = Reshape(b, s) y = Add(x, r) }",
        initializers={"w": normal(300), "s": np.array([1, 300])},
    )
    save_apart(proto, tmp_path / "m.onnx")
    bundle = build(tmp_path / "m.onnx", "fold", tmp_path / "m.narrow")
    save_model(bundle.methods["main"], tmp_path / "o.onnx")
    after = onnx.load(tmp_path / "o.onnx")
    assert ops(after) == ["Add"]
    check_bits(proto, after)


def test_a_folded_view_of_a_weight_outlives_the_weight(tmp_path):
    """https://github.com/microsoft/onnxruntime/issues/29788"""
    proto = parse(
        "g (float[N, 4] x) => (float[N, 6] y) { r = Reshape(w, s) y = MatMul(x, r) }",
        initializers={"w": normal(24), "s": np.array([4, 6])},
    )
    save_apart(proto, tmp_path / "m.onnx")
    model = build(load_model(tmp_path / "m.onnx"), "fold").methods["main"]
    assert list(model.graph.initializers) == ["r"]
    for name in ("m.onnx", "w"):
        (tmp_path / name).unlink()
    save_model(model, tmp_path / "o.onnx")
    check_close(proto, onnx.load(tmp_path / "o.onnx"), 1e-6)
