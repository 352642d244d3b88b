"""Hypothesis strategies: small models for any feeds, and the random models, with theirs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir
from hypothesis import assume
from hypothesis import strategies as st
from onnx import TensorProto, helper

from narrowpass_testing._steps import FLOATS, STEPS, Builder, Step
from narrowpass_testing.random_models import RECIPES, Case, Recipes, draw_case

DTYPES = (*FLOATS, TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL, TensorProto.UINT8)
"""Element types of inputs and initializers."""

SHAPES: tuple[tuple[int | str, ...], ...] = (
    (2, 3),
    (),
    (3,),
    ("n", 3),
    (1, 2, 3),
    (2, 1),
    ("n",),
    (0, 3),
)
"""Shapes of inputs; those of initializers are the static ones."""

_IR_VERSION = 8
_OPSETS = (18, 13, 16, 21)
_CHOICES = st.tuples(*[st.integers(0, 15)] * 3)


def models(*, max_nodes: int = 8, steps: Sequence[Step] = STEPS) -> st.SearchStrategy[ir.Model]:
    """Create a model that onnx's full check accepts and that computes the same on every run.

    Among its nodes: elementwise operators on several dtypes with broadcasting, casts, constants,
    Identity, Dropout in inference mode, Shape and what computes with it, Reshape, Transpose,
    Concat, Gather, MatMul, reductions, an If whose branches capture outer values. Some nodes and
    initializers are used by nothing, some inputs have a default, some dimensions are symbolic.
    Values are small; a few initializers hold NaN, an infinity and -0.0.

    A failing example shrinks to few nodes, inputs and outputs.

    Args:
        max_nodes: how many steps add nodes; a step adds one to three.
        steps: what a step may add, to leave operators out.
    """
    return _models(max_nodes, steps)


def cases(
    *, recipes: Recipes = RECIPES, types: Sequence[str] = (), steps: Sequence[int] = (0, 1, 2, 4)
) -> st.SearchStrategy[Case]:
    """Draw the models of `narrowpass_testing.random_models`, each with feeds.

    An oracle runs each node when it is drawn: that takes milliseconds, and the model is valid for
    its feeds alone. Where a pass needs models for any feeds, `models` draws them much faster, of
    fewer operators. A failing example shrinks to few nodes, of operators early in the alphabet.

    Args:
        recipes: what is drawn from.
        types: element types that are preferred where a schema leaves the choice.
        steps: how many nodes or blocks stand around the first one, as often as they are here.
    """
    return _cases(recipes, tuple(types), tuple(steps))


@st.composite
def _cases(
    draw: st.DrawFn, recipes: Recipes, types: tuple[str, ...], steps: tuple[int, ...]
) -> Case:
    key = draw(st.sampled_from(recipes.keys()))
    numbers = np.random.default_rng(draw(st.integers(0, 2**16)))
    choice = draw(st.randoms(use_true_random=False))
    case = draw_case(key, choice, numbers, recipes=recipes, types=types, steps=steps)
    assume(case is not None)
    assert case is not None  # noqa: S101  # mypy does not know `assume`
    return case


@st.composite
def _models(draw: st.DrawFn, max_nodes: int, steps: Sequence[Step]) -> ir.Model:
    builder = Builder(opset=draw(st.sampled_from(_OPSETS)))
    typed = st.tuples(st.sampled_from(DTYPES), st.sampled_from(SHAPES))
    for dtype, shape in draw(st.lists(typed, min_size=1, max_size=3)):
        builder.add_input(dtype, shape)
    static = [shape for shape in SHAPES if all(isinstance(dim, int) for dim in shape)]
    weights = st.tuples(st.sampled_from(DTYPES), st.sampled_from(static), st.integers(0, 4))
    for dtype, shape, fill in draw(st.lists(weights, max_size=3)):
        builder.add_initializer(dtype, [int(dim) for dim in shape], fill)
    if draw(st.booleans()):
        builder.add_default()
    for step, choices in draw(
        st.lists(st.tuples(st.sampled_from(steps), _CHOICES), min_size=1, max_size=max_nodes)
    ):
        step(builder, *choices)
    if not builder.nodes:
        builder.node("Identity", [builder.values[0]])
    outputs = draw(
        st.lists(st.integers(0, 63), min_size=1, max_size=3).map(
            lambda numbers: sorted({number % len(builder.nodes) for number in numbers})
        )
    )
    # The last node first: what is computed late depends on most.
    return ir.from_proto(_finish(builder, [len(builder.nodes) - 1 - number for number in outputs]))


def _finish(builder: Builder, outputs: Sequence[int]) -> onnx.ModelProto:
    """Build the model, with its outputs as onnx infers them."""
    names = [builder.nodes[number].output[0] for number in outputs]
    graph = helper.make_graph(
        builder.nodes,
        "generated",
        builder.inputs,
        [builder.info(name) for name in names],
        builder.initializers,
    )
    opset = helper.make_opsetid("", builder.opset)
    return helper.make_model(graph, opset_imports=[opset], ir_version=_IR_VERSION)
