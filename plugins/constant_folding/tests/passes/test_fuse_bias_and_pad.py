"""What `fuse-bias` and `fuse-pad` fuse. The tolerance is that of a sum in another order."""

from __future__ import annotations

import numpy as np
import pytest
from folding_kit import check_close, fold, ops, parse, run

from narrowpass_constant_folding.passes.fuse_bias import FuseBias
from narrowpass_constant_folding.passes.fuse_pad import FusePad

RNG = np.random.default_rng(1)
TOLERANCE = 3e-6


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


W = normal(6, 4, 3, 3)

BIAS = [
    ("float[N, 4, 5, 5] x", "a = Conv(x, w) y = Add(a, k)", {"w": W, "k": normal(6, 1, 1)}, "Conv"),
    (
        "float[N, 4, 5, 5] x",
        "a = Conv(x, w) y = Add(k, a)",
        {"w": W, "k": normal(1, 6, 1, 1)},
        "Conv",
    ),
    ("float[N, 4, 5, 5] x", "a = Conv(x, w) y = Sub(a, k)", {"w": W, "k": np.float32(2)}, "Conv"),
    (
        "float[N, 4, 5, 5] x",
        "a = Conv(x, w, b) y = Add(a, k)",
        {"w": W, "b": normal(6), "k": normal(6, 1, 1)},
        "Conv",
    ),
    (
        "float[N, 4, 5, 5] x",
        "a = ConvTranspose(x, w) y = Add(a, k)",
        {"w": normal(4, 6, 3, 3), "k": normal(6, 1, 1)},
        "ConvTranspose",
    ),
    (
        "float[N, 4] x",
        "a = MatMul(x, w) y = Add(a, k)",
        {"w": normal(4, 6), "k": normal(6)},
        "Gemm",
    ),
    (
        "float[N, 4] x",
        "a = MatMul(x, w) y = Add(k, a)",
        {"w": normal(4, 6), "k": normal(1, 6)},
        "Gemm",
    ),
    ("float[N, 4] x", "a = Gemm(x, w) y = Add(a, k)", {"w": normal(4, 6), "k": normal(6)}, "Gemm"),
    (
        "float[N, 4] x",
        "a = Gemm <beta = 3.0> (x, w, b) y = Add(a, k)",
        {"w": normal(4, 6), "b": normal(6), "k": normal(6)},
        "Gemm",
    ),
]


@pytest.mark.parametrize(("declared", "body", "constants", "left"), BIAS)
def test_a_bias(declared, body, constants, left):
    dims = ", ".join("?" * (declared.count(",") + 1))
    proto = parse(f"g ({declared}) => (float[{dims}] y) {{ {body} }}", initializers=constants)
    after, _, _ = fold(proto)
    assert ops(after) == [left]
    check_close(proto, after, TOLERANCE, N=3)


@pytest.mark.parametrize(
    ("declared", "body", "constants"),
    [
        # it would enlarge the result, or is one for each row
        ("float[N, 4] x", "a = MatMul(x, w) y = Add(a, k)", {"w": normal(4, 1), "k": normal(6)}),
        ("float[1, 4] x", "a = MatMul(x, w) y = Add(a, k)", {"w": normal(4, 6), "k": normal(5, 1)}),
        (
            "float[N, 4] x",
            "a = MatMul(x, w) y = Add(a, k)",
            {"w": normal(4, 6), "k": normal(1, 1, 6)},
        ),
        # a stack of matrices; Sub from a constant; no constant; integers
        ("float[N, 2, 4] x", "a = MatMul(x, w) y = Add(a, k)", {"w": normal(4, 6), "k": normal(6)}),
        ("float[N, 4, 5, 5] x", "a = Conv(x, w) y = Sub(k, a)", {"w": W, "k": np.float32(2)}),
        ("float[N, 4] x", "a = MatMul(x, w) b = Neg(a) y = Add(a, b)", {"w": normal(4, 6)}),
        (
            "int32[N, 4] x",
            "a = MatMul(x, w) y = Add(a, k)",
            {"w": np.ones((4, 6), np.int32), "k": np.ones(6, np.int32)},
        ),
    ],
)
def test_additions_that_are_not_biases_stay(declared, body, constants):
    rank = max(declared.count(",") + 1, np.ndim(constants.get("k", 0)))
    kind = declared.split("[")[0]
    proto = parse(
        f"g ({declared}) => ({kind}[{', '.join('?' * rank)}] y) {{ {body} }}",
        initializers=constants,
    )
    assert ops(run(FuseBias(), proto)[0]) == ops(proto)


X = "float[N, 4, 7, 8] x"
PADS = [0, 0, 1, 2, 0, 0, 3, 0]

PAD = [
    (17, "a = Pad(x, p) y = Conv(a, w)", {"p": np.array(PADS)}, [1, 2, 3, 0]),
    (
        17,
        "a = Pad(x, p, z) y = Conv <pads = [1, 1, 1, 1]> (a, w)",
        {"p": np.array(PADS), "z": np.float32(0)},
        [2, 3, 4, 1],
    ),
    (9, f"a = Pad <pads = {PADS}> (x) y = Conv(a, w)", {}, [1, 2, 3, 0]),
    (
        18,
        "a = Pad(x, p, , s) y = Conv(a, w)",
        {"p": np.array([2, 1]), "s": np.array([-1])},
        [0, 2, 0, 1],
    ),
    (17, 'a = Pad(x, p) y = Conv <auto_pad = "VALID"> (a, w)', {"p": np.array(PADS)}, [1, 2, 3, 0]),
    (
        17,
        (
            "a = Pad(x, p) y = AveragePool"
            " <kernel_shape = [3, 3], count_include_pad = 1, pads = [1, 1, 1, 1]> (a)"
        ),
        {"p": np.array([0, 0, 1, 0, 0, 0, 0, 1])},
        [2, 1, 1, 2],
    ),
]


@pytest.mark.parametrize(("opset", "body", "constants", "pads"), PAD)
def test_a_padding(opset, body, constants, pads):
    weights = {"w": W} if "w)" in body else {}
    proto = parse(
        f"g ({X}) => (float[?, ?, ?, ?] y) {{ {body} }}",
        opset=opset,
        initializers={**weights, **constants},
    )
    after, _, _ = fold(proto)
    assert len(after.graph.node) == 1
    (found,) = [list(attr.ints) for attr in after.graph.node[0].attribute if attr.name == "pads"]
    assert found == pads
    check_close(proto, after, TOLERANCE, N=2)


@pytest.mark.parametrize(
    ("body", "constants"),
    [
        ("a = Pad(x, p) y = Conv(a, w)", {"p": np.array([0, 0, -1, 0, 0, 0, 0, 0])}),
        ("a = Pad(x, p) y = Conv(a, w)", {"p": np.array([1, 0, 0, 0, 0, 0, 0, 0])}),
        ("a = Pad(x, p, v) y = Conv(a, w)", {"p": np.array(PADS), "v": np.float32(1)}),
        ('a = Pad <mode = "reflect"> (x, p) y = Conv(a, w)', {"p": np.array(PADS)}),
        ('a = Pad(x, p) y = Conv <auto_pad = "SAME_UPPER"> (a, w)', {"p": np.array(PADS)}),
        # zeros that count, and zeros that do not
        ("a = Pad(x, p) y = AveragePool <kernel_shape = [3, 3]> (a)", {"p": np.array(PADS)}),
        (
            (
                "a = Pad(x, p) y = AveragePool <kernel_shape = [3, 3], count_include_pad = 1,"
                " ceil_mode = 1, strides = [2, 2]> (a)"
            ),
            {"p": np.array(PADS)},
        ),
        ("a = Pad(x, p) y = MaxPool <kernel_shape = [3, 3]> (a)", {"p": np.array(PADS)}),
    ],
)
def test_pads_that_cannot_be_fused_stay(body, constants):
    weights = {"w": W} if "w)" in body else {}
    proto = parse(
        f"g ({X}) => (float[?, ?, ?, ?] y) {{ {body} }}", initializers={**weights, **constants}
    )
    assert ops(run(FusePad(), proto)[0]) == ops(proto)


def test_a_pad_with_other_readers_stays():
    proto = parse(
        f"g ({X}) => (float[?, ?, ?, ?] y, float[?, ?, ?, ?] z)"
        " { a = Pad(x, p) y = Conv(a, w) z = Abs(a) }",
        initializers={"w": W, "p": np.array(PADS)},
    )
    after, _, _ = fold(proto)
    assert ops(after) == ["Pad", "Conv", "Abs"]
    assert list(after.graph.node[1].input) == ["x", "w"]
    check_close(proto, after, TOLERANCE, N=2)
