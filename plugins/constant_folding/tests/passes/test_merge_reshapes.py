"""What `merge-reshapes` merges, and the targets that it folds."""

from __future__ import annotations

import numpy as np
import pytest
from folding_kit import check_bits, fold, initializer, ops, parse, run
from hypothesis import given, settings
from hypothesis import strategies as st

from narrowpass_constant_folding.passes.fold import Fold
from narrowpass_constant_folding.passes.infer_shapes import InferShapes
from narrowpass_constant_folding.passes.merge_reshapes import MergeReshapes


def merged(proto, **options):
    """Run with the shapes that the pass asks for; return the result."""
    return run(MergeReshapes(**options), run(InferShapes(), proto)[0])[0]


def target(after, output="y"):
    (node,) = [node for node in after.graph.node if output in node.output]
    assert node.op_type == "Reshape"
    return np.frombuffer(initializer(after, node.input[1]).raw_data, np.int64).tolist()


MERGED = [
    (
        "float[N, 3, 4] x",
        "a = Reshape(x, s) y = Reshape(a, t)",
        {"s": [0, 12], "t": [0, 4, 3]},
        [0, 4, 3],
    ),
    ("float[N, 3, 4] x", "a = Reshape(x, s) y = Reshape(a, t)", {"s": [-1], "t": [-1, 4]}, [-1, 4]),
    (
        "float[N, 3, 4] x",
        "a = Unsqueeze(x, s) y = Reshape(a, t)",
        {"s": [1], "t": [0, 12]},
        [0, 12],
    ),
    ("float[N, 3, 4] x", "a = Flatten(x) y = Reshape(a, t)", {"t": [0, 2, 6]}, [0, 2, 6]),
    ("float[N, 1, 4] x", "a = Squeeze(x, s) y = Unsqueeze(a, t)", {"s": [1], "t": [2]}, [0, 4, 1]),
    ("float[N, 1, 4] x", "a = Squeeze(x, s) y = Unsqueeze(a, t)", {"s": [1], "t": [0]}, [1, -1, 4]),
    (
        "float[N, M] x",
        "a = Unsqueeze(x, s) y = Unsqueeze(a, t)",
        {"s": [2], "t": [3]},
        [0, 0, 1, 1],
    ),
    ("float[2, 6] x", "a = Reshape(x, s) y = Flatten <axis = 2> (a)", {"s": [2, 3, 2]}, [6, 2]),
]


@pytest.mark.parametrize(("declared", "body", "constants", "expected"), MERGED)
def test_two_reshapes_merge(declared, body, constants, expected):
    rank = len(expected)
    proto = parse(
        f"g ({declared}) => (float[{', '.join('?' * rank)}] y) {{ {body} }}",
        initializers={name: np.array(value) for name, value in constants.items()},
    )
    after = merged(proto)
    assert ops(after) == ["Reshape"]
    assert target(after) == expected
    for size in (1, 3):
        check_bits(proto, after, N=size, M=2)


HEADS = """
    d = Shape(x) b = Gather(d, zero) s = Gather(d, one)
    bu = Unsqueeze(b, zeros) su = Unsqueeze(s, zeros)
"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("t = Concat <axis = 0> (bu, su, heads) y = Reshape(x, t)", [0, 0, 3, 4]),
        ("t = Concat <axis = 0> (bu, su, twelve) y = Reshape(x, t)", [0, 0, 12]),
        (
            (
                "n = Mul(b, s) nu = Unsqueeze(n, zeros) t = Concat <axis = 0> (nu, twelve)"
                " y = Reshape(x, t)"
            ),
            [-1, 12],
        ),
        ("t = Concat <axis = 0> (bu, minus, twelve) y = Reshape(x, t)", [0, 0, 12]),
    ],
)
def test_a_target_that_is_computed_from_the_shape_becomes_constant(body, expected):
    dims = ", ".join("?" * len(expected))
    proto = parse(
        f"g (float[B, S, 12] x) => (float[{dims}] y) {{ {HEADS} {body} }}",
        initializers={
            "zero": np.array(0),
            "one": np.array(1),
            "zeros": np.array([0]),
            "heads": np.array([3, 4]),
            "twelve": np.array([12]),
            "minus": np.array([-1]),
        },
    )
    after, _, _ = fold(proto)
    assert ops(after) == ["Reshape"]
    assert target(after) == expected
    for batch, sequence in ((1, 1), (2, 5)):
        check_bits(proto, after, B=batch, S=sequence)


def test_minus_one_is_not_used_beside_a_dimension_that_may_be_0():
    # [N, 12] by numbers works for a batch of 0; [0, -1] would not.
    proto = parse(
        """g (float[N, A, B] x) => (float[?, ?] y) {
        d = Shape(x) n = Slice(d, zeros, ones) r = Slice(d, ones, threes)
        p = ReduceProd(r) t = Concat <axis = 0> (n, p) y = Reshape(x, t) }""",
        initializers={
            "zeros": np.array([0]),
            "ones": np.array([1]),
            "threes": np.array([3]),
        },
    )
    after, _, _ = fold(proto)
    assert "ReduceProd" in ops(after)
    for size in (0, 1, 3):
        check_bits(proto, after, N=size, A=2, B=3)


@pytest.mark.parametrize(
    "text",
    [
        # two readers
        (
            "g (float[N, 4] x) => (float[?] y, float[?] z)"
            "{ a = Reshape(x, s) y = Abs(a) z = Reshape(a, t) }"
        ),
        # two dimensions that are not known
        "g (float[N, M] x, int64[2] t) => (float[?, ?] y) { y = Reshape(x, t) }",
    ],
)
def test_reshapes_that_do_not_merge(text):
    proto = parse(text, initializers={"s": np.array([-1])} if "s)" in text else {})
    if "t)" in text and "int64[2] t" not in text:
        proto.graph.initializer.extend(
            parse(
                "g (float[1] x) => (float[1] y) { y = Abs(x) }", initializers={"t": np.array([-1])}
            ).graph.initializer
        )
    after = merged(proto)
    assert ops(after) == ops(proto)


def test_kept_nodes_stay():
    proto = parse(
        "g (float[N, 3, 4] x) => (float[?, ?] y) { [a] a = Reshape(x, s) [b] y = Reshape(a, t) }",
        initializers={"s": np.array([0, 12]), "t": np.array([0, 12])},
    )
    assert ops(merged(proto, keep=("a",))) == ["Reshape", "Reshape"]
    assert ops(merged(proto, keep=("b",))) == ["Reshape", "Reshape"]


@st.composite
def chains(draw):
    """Build chains of reshapes over a tensor of 24 elements, in a batch."""
    shapes = [(24,), (2, 12), (4, 6), (2, 3, 4), (1, 24), (24, 1), (2, 1, 12), (1, 1, 24)]
    nodes, constants, name = [], {}, "x"
    for index in range(draw(st.integers(1, 5))):
        new = f"v{index}"
        kind = draw(st.sampled_from(["Reshape", "Reshape", "Flatten", "Unsqueeze"]))
        if kind == "Reshape":
            shape = list(draw(st.sampled_from(shapes)))
            place = draw(st.integers(-1, len(shape)))
            constants[f"s{index}"] = np.array(
                [shape[i] if i != place else -1 for i in range(len(shape))]
            )
            lead = draw(st.sampled_from([[], [1]]))
            constants[f"s{index}"] = np.array([*lead, *constants[f"s{index}"]])
            nodes.append(f"{new} = Reshape({name}, s{index})")
        elif kind == "Flatten":
            nodes.append(f"{new} = Flatten({name})")
        else:
            constants[f"s{index}"] = np.array([draw(st.integers(0, 1))])
            nodes.append(f"{new} = Unsqueeze({name}, s{index})")
        name = new
    text = f"g (float[A, 12] x) => (float[24] y) {{ {' '.join(nodes)} y = Reshape({name}, flat) }}"
    return parse(text, initializers={**constants, "flat": np.array([24])})


@settings(max_examples=60, deadline=None, derandomize=True)
@given(chains())
def test_random_chains(proto):
    after, _, _ = run(Fold(), proto)
    assert len(after.graph.node) <= 1
    check_bits(proto, after, A=2)
