"""Classifiers: colours of nodes, types of accumulators and of results."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import onnx_ir as ir
import pytest
from fp16_kit import FLOAT, HALF, constants, count, floats, model, rewritten, run, verdicts
from onnx import helper

import narrowpass
from narrowpass import Backend, Color, OpClassifier, OpDtypes, Pipeline
from narrowpass.errors import PassError, PipelineError
from narrowpass.framework.classify import ACCUMULATE, choose_classifiers, classifier_of
from narrowpass_fp16.coloring.classifier import SizedClassifier
from narrowpass_fp16.mixed_precision import MixedPrecision
from narrowpass_reference import ReferenceBackend

SHAPES = {"x": [3, 16]}, {"y": [3, 16]}


def matmuls():
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="first"),
        helper.make_node("MatMul", ["h", "v"], ["y"], name="second"),
    ]
    return model(nodes, *SHAPES, {"w": floats(16, 16), "v": floats(16, 16)})


def built(proto, **options):
    pipeline = Pipeline((MixedPrecision(**options),))
    return narrowpass.build(ir.from_proto(proto), pipeline, target="reference")


def first_stays_wide(node):
    return Color.RED if node.name == "first" else None


def test_a_function_is_a_classifier():
    bundle = built(matmuls(), classifier=first_stays_wide)
    found = verdicts(bundle)
    assert found["first"]["by"] == "classifier first_stays_wide"
    assert found["first"]["decision"] == "red, wide"
    assert found["second"]["decision"] == "green, narrow"  # the default answers for the others
    assert bundle.pipeline == "fp16{classifier=first_stays_wide}"


def test_a_function_that_returns_no_color():
    def odd(_):
        return "red"

    with pytest.raises(PassError, match="'odd' gave 'red' as color of node 'first'") as caught:
        built(matmuls(), classifier=odd)
    assert "defect" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"margin": 0}, "'margin' of 'fp16' must be above 0, not 0"),
        ({"margin": -2.0}, "'margin' of 'fp16' must be above 0"),
        ({"margin": float("inf")}, "takes number, not inf"),
        ({"dtype": "fp16"}, r"takes float16\|bfloat16, not 'fp16'"),
        ({"red": "op:MatMul"}, "pass a tuple"),
        ({"cost": "nope"}, r"takes bytes\|count"),
        ({"classifier": 3}, r"takes text\|OpClassifier\|function, not 3"),
    ],
)
def test_wrong_options(options, said):
    with pytest.raises(ValueError, match=said):
        MixedPrecision(**options)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fp16{cost=count,margin=0}", "above 0, not 0.0\n  fp16{cost=count,margin=0}\n" + " " * 18),
        ("fp16{tolerance=1e-2}", "METRIC:LIMIT, such as rel:1e-2"),
    ],
)
def test_wrong_options_in_text(text, said):
    with pytest.raises(PipelineError) as caught:
        Pipeline.parse(text, narrowpass.load_plugins().registry)
    assert said in str(caught.value)


def test_a_tolerance_as_text():
    assert str(MixedPrecision(tolerance="rel:1e-2")) == "fp16{tolerance=rel:0.01}"


def test_a_classifier_object():
    class Mine(OpClassifier):
        name: ClassVar[str] = "mine"

        def color(self, node):
            return first_stays_wide(node)

        def reason(self, node):
            return "the first one is special"

    found = verdicts(built(matmuls(), classifier=Mine()))
    assert found["first"]["reason"] == "the first one is special"


def test_a_function_that_fails_is_named():
    def broken(node):
        raise KeyError(node.name)

    with pytest.raises(PassError, match=r"fp16.*KeyError: 'first'"):
        built(matmuls(), classifier=broken)


def test_functions_are_no_options_of_text():
    with pytest.raises(PipelineError, match="no option 'dtypes'"):
        run(matmuls(), "fp16{dtypes=mine}")


def test_accumulator_types_are_requested_in_metadata():
    narrowed = ir.from_proto(rewritten(matmuls(), "fp16"))
    assert [node.metadata_props.get(ACCUMULATE) for node in narrowed.graph if node.name] == [
        None,
        "float32",
        "float32",
        None,
    ]


def test_a_function_returns_types():
    def dtypes(node):
        return OpDtypes("float16", "float16") if node.name == "second" else None

    bundle = built(matmuls(), dtypes=dtypes)
    asked = {n.name: n.metadata_props.get(ACCUMULATE) for n in bundle.methods["main"].graph}
    assert (asked["first"], asked["second"]) == ("float32", "float16")


def test_a_result_in_float32_keeps_a_node_wide():
    def dtypes(node):
        return OpDtypes("float32", "float32") if node.name == "first" else None

    found = verdicts(built(matmuls(), dtypes=dtypes))
    assert found["first"]["decision"] == "red, wide"
    assert found["first"]["reason"] == "its output is to be float32"


@pytest.mark.parametrize("given", [("fp32", "float16"), ("float32", "half"), ("", "float16")])
def test_types_that_are_none(given):
    with pytest.raises(ValueError, match="is none of float64, float32, float16, bfloat16"):
        OpDtypes(*given)


@pytest.mark.parametrize(("asked", "stash"), [("float32", 1), ("float16", 10)])
def test_accumulator_types_by_the_operators_own_attribute(asked, stash):
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("LayerNormalization", ["h", "s"], ["y"], name="norm"),
    ]
    proto = model(nodes, *SHAPES, {"w": floats(16, 16), "s": np.ones(16, np.float32)})

    def dtypes(node):
        return OpDtypes(asked, "float16") if node.name == "norm" else None

    graph = built(proto, dtypes=dtypes).methods["main"].graph
    (norm,) = [node for node in graph if node.name == "norm"]
    assert norm.attributes.get_int("stash_type", 1) == stash
    assert ACCUMULATE not in norm.metadata_props


@pytest.mark.parametrize("turned", [False, True])
def test_matmuls_with_int8_weights_stay_unchanged(turned):
    """Casts around the integers would only be in the way of a kernel for them."""
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s"], ["w"], axis=1),
        *([helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0])] * turned),
        helper.make_node("MatMul", ["x", "t" if turned else "w"], ["h"], name="bytes"),
        helper.make_node("MatMul", ["h", "v"], ["y"], name="floats"),
    ]
    weights = {
        "q": np.ones((16, 16), np.int8),
        "s": np.full(16, 0.1, np.float32),
        "v": floats(16, 16),
    }
    found = verdicts(run(model(nodes, *SHAPES, weights)))
    assert found["bytes"]["reason"] == "its weight is in bytes already"
    assert found["bytes"]["decision"] == "red, wide"
    assert found["floats"]["decision"] == "green, narrow"


# By size


class Eager(ReferenceBackend):
    """Gains a second by every node of this name."""

    name: ClassVar[str] = "eager"

    def __init__(self, node: str, dtype: str) -> None:
        self._node, self._dtype = node, dtype

    def gain(self, node: ir.Node, dtypes: OpDtypes) -> float:
        return float(node.name == self._node and dtypes.output == self._dtype)


def sized(rows, columns):
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], name="matmul")]
    return model(
        nodes, {"x": [rows, columns]}, {"y": [rows, columns]}, {"w": floats(columns, columns)}
    )


@pytest.mark.parametrize(
    ("rows", "columns", "casts"),
    [
        (1, 16, 2),  # 256 elements stored, 32 cast
        (8, 16, 2),  # as many
        (9, 16, 0),
        (1000, 16, 0),
    ],
)
def test_what_saves_fewer_bytes_than_its_casts_move_stays(rows, columns, casts):
    proto = sized(rows, columns)
    assert count(rewritten(proto, "fp16{classifier=sized}")) == casts
    assert count(rewritten(proto, "fp16")) == 2


def test_the_reason_is_reported():
    found = verdicts(run(sized(1000, 16), "fp16{classifier=sized}"))["matmul"]
    assert found["decision"] == "gray, wide"
    assert found["reason"] == "lowering it saves less than its casts may cost"


@pytest.mark.parametrize(
    ("node", "dtype", "color"),
    [
        ("matmul", "float16", Color.GREEN),
        ("matmul", "bfloat16", Color.GRAY),
        ("other", "float16", Color.GRAY),
    ],
)
def test_the_target_is_asked_what_it_gains(node, dtype, color):
    proto = ir.from_proto(sized(1000, 16))
    asked = SizedClassifier().for_target(Eager(node, dtype), "float16")
    assert asked.color(proto.graph[0]) is color


def test_sized_agrees_with_default_on_red():
    nodes = [helper.make_node("Exp", ["x"], ["y"])]
    proto = ir.from_proto(model(nodes, *SHAPES))
    assert SizedClassifier().color(proto.graph[0]) is Color.RED


# The target's own


class Picky(ReferenceBackend):
    name: ClassVar[str] = "picky"
    classifier: ClassVar[OpClassifier | None] = classifier_of(first_stays_wide, name="picky")


@pytest.mark.parametrize(("target", "found"), [(Picky(), (Color.RED, "picky")), (None, None)])
def test_the_targets_classifier(target: Backend | None, found):
    node = ir.from_proto(matmuls()).graph[0]
    assert choose_classifiers("target", {}, target).color(node) == found


def test_a_target_without_a_classifier_has_no_opinion():
    assert constants(rewritten(matmuls(), "fp16{classifier=target+default}")) == {
        "w": HALF,
        "v": HALF,
    }
    assert constants(rewritten(matmuls(), "fp16{classifier=target}"))["w"] == FLOAT
