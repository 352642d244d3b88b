"""Operator sets that the type asks for, and what the summary says."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from corpus_kit import draw
from fp16_kit import HALF, check, constants, count, floats, model, rewritten, run
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import narrowpass
from narrowpass.framework.instruments import Instrument

BF16 = "fp16{dtype=bfloat16}"
BFLOAT = TensorProto.BFLOAT16


def network(opset):
    """Build convolutions, a pooling and a matmul: bfloat16 came to them one after the other."""
    nodes = [
        helper.make_node("Conv", ["x", "k", "b"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p", "l"], ["c"]),
        helper.make_node("GlobalAveragePool", ["c"], ["a"]),
        helper.make_node("Flatten", ["a"], ["f"]),
        helper.make_node("Gemm", ["f", "w", "d"], ["g"]),
        helper.make_node("Elu", ["g"], ["y"]),
    ]
    weights = {"k": floats(4, 4, 3, 3), "b": floats(4), "l": floats(4, 4, 3, 3)}
    weights |= {"w": floats(4, 5), "d": floats(5)}
    return model(nodes, {"x": [2, 4, 10, 10]}, {"y": [2, 5]}, weights, opset=opset)


class Heard(Instrument):
    """Keeps the summary of the last pass."""

    name = "heard"

    def after_pass(self, pass_, result, ctx, seconds):
        self.summary = result.summary


def summary_of(proto, text="fp16"):
    heard = Heard()
    narrowpass.build(ir.from_proto(proto), text, target="reference", instruments=[heard])
    return heard.summary


@pytest.mark.parametrize("opset", [9, 11, 12])
def test_bfloat16_brings_its_operator_set(opset):
    """Below 13 there is no Cast to it."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "w"], ["y"]),
    ]
    proto = model(nodes, {"x": [3, 16]}, {"y": [3, 16]}, {"w": floats(16, 16)}, opset=opset)
    narrowed = rewritten(proto, BF16)
    assert [entry.version for entry in narrowed.opset_import] == [13]
    assert (constants(narrowed), count(narrowed)) == ({"w": BFLOAT}, 2)
    x = floats(3, 16)
    right, got = (ReferenceEvaluator(each).run(None, {"x": x})[0] for each in (proto, narrowed))
    np.testing.assert_allclose(got, right, atol=2e-2 * np.abs(right).max())
    decisions = run(proto, BF16).reports[0].methods["main"].decisions
    reported = [item for item in decisions if item["decision"] == "upgraded"]
    assert reported
    assert f"the model had {opset}" in reported[0]["reason"]


@pytest.mark.parametrize("opset", [13, 17, 18, 20, 21])
def test_operators_that_have_bfloat16_later(opset):
    proto = network(opset)
    narrowed = rewritten(proto, BF16)
    assert [entry.version for entry in narrowed.opset_import] == [22]
    assert set(constants(narrowed).values()) == {BFLOAT}
    assert count(narrowed) == 2
    assert proto.opset_import[0].version == opset
    assert summary_of(proto, BF16) == (
        "8 of 8 nodes in bfloat16, 2 casts, 5 constants stored narrow; operator set upgraded to 22"
    )


def test_float16_keeps_the_operator_set():
    narrowed = check(network(13), {"x": draw(2, 4, 10, 10)})
    assert [entry.version for entry in narrowed.opset_import] == [13]
    assert set(constants(narrowed).values()) == {HALF}


def test_the_first_operator_sets_get_a_cast():
    """Up to 5, Cast named its type by a string."""
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["y"], broadcast=1)]
    weights = {"w": floats(16, 16), "b": floats(16)}
    proto = model(nodes, {"x": [3, 16]}, {"y": [3, 16]}, weights, opset=5)
    narrowed = rewritten(proto)
    assert narrowed.opset_import[0].version >= 6
    assert constants(narrowed)["w"] == HALF


def test_without_a_gain_the_operator_set_stays():
    alone = [helper.make_node("Conv", ["x", "k"], ["h"]), helper.make_node("Exp", ["h"], ["y"])]
    proto = model(alone, {"x": [1, 4, 8, 8]}, {"y": [1, 4, 6, 6]}, {"k": floats(4, 4, 3, 3)})
    kept = rewritten(proto, "fp16{dtype=bfloat16,red=[op:Conv]}")
    assert list(kept.graph.node) == list(proto.graph.node)
    assert kept.opset_import[0].version == 20
    nothing = model([helper.make_node("Exp", ["x"], ["y"])], {"x": [3]}, {"y": [3]}, opset=11)
    assert rewritten(nothing, BF16).opset_import[0].version == 11


def test_functions_cannot_be_upgraded(caplog):
    """What is wide for that stays so, and a warning says it."""
    proto = network(20)
    body = [helper.make_node("Relu", ["a"], ["b"])]
    imports = [helper.make_opsetid("", 20)]
    proto.functions.append(helper.make_function("mine", "F", ["a"], ["b"], body, imports))
    proto.opset_import.append(helper.make_opsetid("mine", 1))
    narrowed = rewritten(proto, BF16)
    assert narrowed.opset_import[0].version == 20
    assert constants(narrowed)["w"] == BFLOAT
    assert constants(narrowed)["k"] == TensorProto.FLOAT
    assert "operators that have bfloat16 from 22 on stay wide" in caplog.text
    text = summary_of(proto, BF16)
    assert "stay 5 (operator set 20 has no bfloat16" in text


def test_ranges_and_tolerance_hold_for_the_upgraded_model():
    samples = [{"x": draw(2, 4, 10, 10, seed=seed)} for seed in range(2)]
    bundle = narrowpass.build(
        ir.from_proto(network(20)),
        "fp16{dtype=bfloat16,tolerance=rel:5e-2}",
        target="reference",
        calibration=samples,
    )
    narrowed = ir.to_proto(bundle.methods["main"])
    onnx.checker.check_model(narrowed, full_check=True)
    assert narrowed.opset_import[0].version == 22
    found = {item["node"]: item for item in bundle.reports[0].methods["main"].decisions}
    assert found["n0"]["measured"] > 0


def test_the_summary_counts_what_stays_wide_by_reason():
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Exp", ["h"], ["e"]),
        helper.make_node("Exp", ["e"], ["f"]),
        helper.make_node("Mul", ["f", "large"], ["g"]),
        helper.make_node("Mul", ["f", "larger"], ["y"]),
    ]
    weights = {"w": floats(16, 16), "large": np.float32(1e5), "larger": np.float32(1e6)}
    proto = model(nodes, {"x": [3, 16]}, {"y": [3, 16], "g": [3, 16]}, weights)
    text = summary_of(proto)
    assert text == (
        "1 of 5 nodes in float16, 2 casts, 1 constant stored narrow; float32 stay "
        "2 (it leaves the range above 11), 2 (an element is too large in a constant)"
    )
