"""What `fuse-batchnorm` folds into weights, and what it must not.

Tolerances are shares of the largest output: 3e-6 in float32, where the same multiplications are
rounded in another place, 2e-3 in float16 and 2e-2 in bfloat16, half a unit in the last place of the
weights times the few roundings of each multiplication.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from folding_kit import check_close, fold, initializer, ops, parse, run

from narrowpass_constant_folding.passes.fold import Fold
from narrowpass_constant_folding.passes.fuse_batchnorm import FuseBatchnorm

RNG = np.random.default_rng(0)
TOLERANCE = 3e-6


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def norm(channels, dtype=np.float32):
    """Return factor, shift, mean and variance of a normalization."""
    return {
        "scale": (1 + 0.2 * normal(channels)).astype(dtype),
        "shift": normal(channels).astype(dtype),
        "mean": normal(channels).astype(dtype),
        "var": (0.5 + normal(channels) ** 2).astype(dtype),
    }


BN = "BatchNormalization <epsilon = 0.01> (a, scale, shift, mean, var)"

FUSED = {
    "conv": (
        "float[N, 4, 9, 9] x",
        f"a = Conv <strides = [2, 2], pads = [1, 0, 2, 1]> (x, w) y = {BN}",
        {"w": normal(6, 4, 3, 3), **norm(6)},
        "Conv",
    ),
    "conv with a bias": (
        "float[N, 4, 9] x",
        f"a = Conv(x, w, b) y = {BN}",
        {"w": normal(6, 4, 3), "b": normal(6), **norm(6)},
        "Conv",
    ),
    "depthwise": (
        "float[N, 4, 9, 9] x",
        f"a = Conv <group = 4> (x, w) y = {BN}",
        {"w": normal(8, 1, 3, 3), **norm(8)},
        "Conv",
    ),
    "grouped transposed": (
        "float[N, 4, 5, 5] x",
        f"a = ConvTranspose <group = 2> (x, w, b) y = {BN}",
        {"w": normal(4, 3, 3, 3), "b": normal(6), **norm(6)},
        "ConvTranspose",
    ),
    "gemm": (
        "float[N, 4] x",
        f"a = Gemm <alpha = 0.5, beta = 2.0> (x, w, b) y = {BN}",
        {"w": normal(4, 6), "b": normal(1, 6), **norm(6)},
        "Gemm",
    ),
    "gemm transposed, one bias for all": (
        "float[N, 4] x",
        f"a = Gemm <transB = 1> (x, w, b) y = {BN}",
        {"w": normal(6, 4), "b": normal(), **norm(6)},
        "Gemm",
    ),
    "conv scaled": (
        "float[N, 4, 5, 5] x",
        "a = Conv(x, w, b) y = Mul(a, k)",
        {"w": normal(6, 4, 3, 3), "b": normal(6), "k": normal(6, 1, 1)},
        "Conv",
    ),
    "conv divided by a number": (
        "float[N, 4, 5, 5] x",
        "a = Conv(x, w) y = Div(a, k)",
        {"w": normal(6, 4, 3, 3), "k": np.float32(3)},
        "Conv",
    ),
    "a normalization scaled": (
        "float[N, 6, 5] x",
        f"z = Abs(x) b = {BN.replace('(a,', '(z,')} y = Mul(k, b)",
        {"k": normal(1, 6, 1), **norm(6)},
        "BatchNormalization",
    ),
}


def model(declared, body, constants, opset=17):
    rank = declared.count(",") + 1
    dims = ", ".join("?" * rank)
    return parse(
        f"g ({declared}) => (float[{dims}] y) {{ {body} }}", opset=opset, initializers=constants
    )


@pytest.mark.parametrize("name", FUSED)
def test_batchnorm_folds_into_weights(name):
    declared, body, constants, left = FUSED[name]
    proto = model(declared, body, constants)
    after, _, _ = fold(proto)
    assert ops(after)[-1:] == [left]
    assert len(ops(after)) == len(ops(proto)) - 1
    # onnx's evaluator has no grouped ConvTranspose
    check_close(proto, after, TOLERANCE, reference=name != "grouped transposed", N=2)


@pytest.mark.parametrize("opset", [7, 8, 9, 13, 14, 15, 21])
def test_every_form_of_the_operator(opset):
    declared, body, constants, _ = FUSED["conv"]
    proto = model(declared, body, constants, opset)
    assert ops(run(FuseBatchnorm(), proto)[0]) == ["Conv"]


def test_names_are_derived_from_the_originals_and_stable():
    declared, body, constants, _ = FUSED["conv with a bias"]
    after, _, _ = run(FuseBatchnorm(), model(declared, body, constants))
    again, _, _ = run(FuseBatchnorm(), model(declared, body, constants))
    assert sorted(item.name for item in fold(after)[0].graph.initializer) == ["b:shift", "w:scale"]
    assert after == again


def test_two_methods_get_the_same_tensors_under_the_same_names():
    declared, body, constants, _ = FUSED["conv"]
    one, _, _ = fold(model(declared, body, constants))
    other, _, _ = fold(model(declared.replace("9, 9", "12, 12"), f"{body} ", constants))
    assert {t.name: t.raw_data for t in one.graph.initializer} == {
        t.name: t.raw_data for t in other.graph.initializer
    }


STAYS = {
    "read elsewhere": (
        "float[N, 4, 9] x",
        f"a = Conv(x, w) y = {BN} z = Abs(a)",
        {},
        "read elsewhere",
    ),
    "an output itself": ("float[N, 4, 9] x", f"a = Conv(x, w) y = {BN}", {}, "read elsewhere"),
    "weights read by two": (
        "float[N, 4, 9] x",
        f"a = Conv(x, w) y = {BN} z = Conv(x, w)",
        {},
        "would add",
    ),
}


@pytest.mark.parametrize("name", STAYS)
def test_refusals_have_reasons(name):
    declared, body, constants, reason = STAYS[name]
    outputs = "float[?, ?, ?] y"
    if "z =" in body:
        outputs += ", float[?, ?, ?] z"
    if name == "an output itself":
        outputs += ", float[?, ?, ?] a"
    proto = parse(
        f"g ({declared}) => ({outputs}) {{ {body} }}",
        initializers={"w": normal(6, 4, 3), **norm(6), **constants},
    )
    after, _, ctx = run(FuseBatchnorm(), proto)
    assert ops(after) == ops(proto)
    (left,) = ctx.decisions
    assert reason in left.reason


@pytest.mark.parametrize(
    ("body", "constants", "opset"),
    [
        # a constant that is no more one value for each channel
        ("a = Conv(x, w) y = Mul(a, k)", {"k": normal(7)}, 17),
        ("a = Conv(x, w) y = Mul(a, k)", {"k": normal(2, 6, 1)}, 17),
        # one that enlarges the result
        ("a = Conv(x, w1) y = Mul(a, k)", {"w1": normal(1, 4, 3), "k": normal(6, 1)}, 17),
        # a normalization in training, and one before opset 7 that does not say that it is none
        (
            (
                "a = Conv(x, w)"
                " y, m, v = BatchNormalization <training_mode = 1> (a, scale, shift, mean, var)"
            ),
            {},
            15,
        ),
        ("a = Conv(x, w) y = BatchNormalization (a, scale, shift, mean, var)", {}, 6),
        # what would be infinite or no number
        ("a = Conv(x, w) y = Div(a, k)", {"k": np.float32(0)}, 17),
        (f"a = Conv(x, w) y = {BN}", {"var": np.full(6, -1, np.float32)}, 17),
        (f"a = Conv(x, w) y = {BN}", {"mean": np.full(6, np.nan, np.float32)}, 17),
        (
            "a = Relu(x) y = BatchNormalization(a, s4, s4, s4, s4)",
            {"s4": np.ones(4, np.float32)},
            17,
        ),
    ],
)
def test_non_affine_nodes_stay(body, constants, opset):
    names = {"w": normal(6, 4, 3), **norm(6)} | constants
    used = {name: value for name, value in names.items() if f"{name}" in body}
    rank = 4 if np.ndim(constants.get("k", 0)) == 4 else 3
    proto = parse(
        f"g (float[N, 4, 9] x) => (float[{', '.join('?' * rank)}] y) {{ {body} }}",
        opset=opset,
        initializers=used,
    )
    assert ops(run(FuseBatchnorm(), proto)[0]) == ops(proto)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float16, 2e-3), (ml_dtypes.bfloat16, 2e-2)])
def test_narrow_weights_keep_their_type(dtype, tolerance):
    name = {"float16": "float16", "bfloat16": "bfloat16"}[np.dtype(dtype).name]
    proto = parse(
        f"g ({name}[N, 4] x) => ({name}[N, 6] y) {{ a = Gemm(x, w) y = {BN} }}",
        initializers={"w": normal(4, 6).astype(dtype), **norm(6, dtype)},
    )
    after, _, _ = fold(proto)
    assert ops(after) == ["Gemm"]
    assert {item.data_type for item in after.graph.initializer} == {
        proto.graph.initializer[0].data_type
    }
    x = normal(3, 4).astype(dtype)
    from onnx.reference import ReferenceEvaluator

    (due,) = ReferenceEvaluator(proto).run(None, {"x": x})
    (got,) = ReferenceEvaluator(after).run(None, {"x": x})
    assert got.dtype == due.dtype
    scale = np.abs(due.astype(np.float32)).max()
    assert np.abs(got.astype(np.float32) - due.astype(np.float32)).max() <= tolerance * scale


def test_half_weights_that_would_overflow_stay():
    proto = parse(
        "g (float16[N, 4] x) => (float16[N, 6] y) { a = Gemm(x, w) y = Mul(a, k) }",
        initializers={"w": np.full((4, 6), 6e4, np.float16), "k": np.float16(2)},
    )
    after, _, ctx = run(FuseBatchnorm(), proto)
    assert ops(after) == ["Gemm", "Mul"]
    assert "finite" in ctx.decisions[0].reason


def test_defaults_of_graph_inputs_are_not_constants():
    # IR version 3: each initializer is an input, which a caller may override
    proto = model("float[N, 4, 9] x", f"a = Conv(x, w) y = {BN}", {"w": normal(6, 4, 3), **norm(6)})
    proto.ir_version = 3
    for item in proto.graph.initializer:
        dims = ", ".join(map(str, item.dims))
        text = f"g (float[{dims}] {item.name}) => (float[1] q) {{ q = Abs({item.name}) }}"
        proto.graph.input.append(parse(text).graph.input[0])
    after, _, _ = fold(proto)
    assert ops(after) == ["Conv", "BatchNormalization"]
    assert len(after.graph.initializer) == 5
    initializer(after, "w")


def test_a_broadcast_bias_is_fused():
    # As an exporter writes a convolution without bias: zeros, expanded to the channels.
    proto = model(
        "float[N, 4, 9] x",
        f"b = Expand(zero, six) a = Conv(x, w, b) y = {BN}",
        {"zero": np.float32(0), "six": np.array([6]), "w": normal(6, 4, 3), **norm(6)},
    )
    after, _, _ = run(Fold(max_growth=0), proto)
    assert ops(after) == ["Conv"]
    check_close(proto, after, TOLERANCE, N=2)


def test_in_a_branch_and_in_a_function():
    proto = parse(
        f"""g (float[N, 4, 9] x, bool c) => (float[?, ?, ?] y) {{
        y = If(c) <then_branch = t () => (float[?, ?, ?] p) {{ a = Conv(x, w) p = {BN} }},
                   else_branch = e () => (float[?, ?, ?] q) {{ q = local.f(x) }}> }}
        <domain: "local", opset_import: ["" : 17]> f (v) => (r) {{
        k = Constant <value = float[1, 4, 1] {{1, 2, 3, 4}}> () a = Conv(v, k)
        s = Constant <value = float {{2}}> () r = Mul(a, s) }}""",
        more=', "local" : 1',
        initializers={"w": normal(6, 4, 3), **norm(6)},
    )
    after, _, ctx = fold(proto)
    assert ctx.counters["fused"] == 2
    assert [node.op_type for node in after.functions[0].node].count("Mul") == 0
    check_close(proto, after, TOLERANCE, N=2)


def test_a_kept_node_stays():
    proto = model(
        "float[N, 4, 9] x", f"[c] a = Conv(x, w) [b] y = {BN}", {"w": normal(6, 4, 3), **norm(6)}
    )
    for keep in ("c", "b", "op:Conv"):
        assert ops(run(FuseBatchnorm(keep=(keep,)), proto)[0]) == ["Conv", "BatchNormalization"]
