"""What data says: ranges, and how far the result is from the model as it was."""

from __future__ import annotations

import logging

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from fp16_kit import floats, model, verdicts
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import narrowpass
from narrowpass.errors import NarrowpassError
from narrowpass_reference import ReferenceBackend


def chain(scales, width=16):
    """Build matmuls, each times a number that enlarges its result by that factor."""
    nodes, weights, last = [], {}, "x"
    for index, scale in enumerate(scales):
        weights[f"w{index}"] = np.eye(width, dtype=np.float32) * np.float32(scale)
        nodes.append(helper.make_node("MatMul", [last, f"w{index}"], [f"h{index}"]))
        last = f"h{index}"
    nodes.append(helper.make_node("Identity", [last], ["y"]))
    return model(nodes, {"x": ["N", width]}, {"y": ["N", width]}, weights)


def build(proto, text, data):
    return narrowpass.build(ir.from_proto(proto), text, target="reference", calibration=data)


def result(bundle, feeds):
    with np.errstate(all="ignore"):
        return ReferenceEvaluator(ir.to_proto(bundle.methods["main"])).run(None, feeds)[0]


SAMPLES = [{"x": floats(3, 16)}, {"x": floats(5, 16, scale=1.0)}]


def test_values_that_are_too_large_on_the_data_stay_wide():
    proto = chain([1000, 1000, 1e-3, 1e-3])
    without = build(proto, "fp16", None)
    assert not np.isfinite(result(without, SAMPLES[1])).all()
    bundle = build(proto, "fp16", SAMPLES)
    found = verdicts(bundle)
    assert [found[f"n{i}"]["decision"] for i in range(4)] == [
        "green, narrow",
        "red, wide",
        "red, wide",
        "green, narrow",
    ]
    assert found["n1"]["by"] == "data"
    assert found["n1"]["measured"] > found["n1"]["limit"] == 65504
    for feeds in SAMPLES:
        right = ReferenceEvaluator(proto).run(None, feeds)[0]
        np.testing.assert_allclose(result(bundle, feeds), right, rtol=2e-3)


def test_a_margin_keeps_more_wide():
    proto = chain([1000, 10, 1e-3])
    assert verdicts(build(proto, "fp16", SAMPLES))["n1"]["decision"] == "green, narrow"
    found = verdicts(build(proto, "fp16{margin=8}", SAMPLES))["n1"]
    assert found["decision"] == "red, wide"
    assert found["limit"] == 65504 / 8


def test_bfloat16_has_the_range():
    found = verdicts(build(chain([1000, 1000, 1e-3]), "fp16{dtype=bfloat16}", SAMPLES))
    assert {item["decision"] for item in found.values()} == {"green, narrow", "gray, narrow"}


def test_infinities_of_a_mask_are_no_range():
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Add", ["h", "mask"], ["m"]),
        helper.make_node("MaxPool", ["m"], ["p"], kernel_shape=[2], strides=[2]),
        helper.make_node("MatMul", ["p", "v"], ["y"]),
    ]
    mask = np.where(np.arange(16) % 2, 0, -np.inf).astype(np.float32)
    weights = {"w": floats(16, 16), "v": floats(8, 4), "mask": mask}
    proto = model(nodes, {"x": [1, 3, 16]}, {"y": [1, 3, 4]}, weights)
    found = verdicts(build(proto, "fp16", [{"x": floats(1, 3, 16)}]))
    assert found["n1"]["decision"] == "gray, narrow"


def growing(kind):
    """Build a model whose Loop, or branch, grows a value beyond float16 and shrinks it again."""

    def info(name, kind=TensorProto.FLOAT, shape=(1, 16)):
        return helper.make_tensor_value_info(name, kind, list(shape))

    weights = {
        "w": np.eye(16, dtype=np.float32),
        "n": np.array(4, np.int64),
        "yes": np.array(True),
    }
    if kind == "loop":
        body = helper.make_graph(
            [
                helper.make_node("Identity", ["go"], ["on"]),
                helper.make_node("Mul", ["s", "s"], ["t"]),
            ],
            "body",
            [info("i", TensorProto.INT64, ()), info("go", TensorProto.BOOL, ()), info("s")],
            [info("on", TensorProto.BOOL, ()), info("t")],
        )
        inner = helper.make_node("Loop", ["n", "yes", "h"], ["l"], body=body)
    else:
        branches = [
            helper.make_graph(
                [
                    helper.make_node("Mul", ["h", "h"], ["a" + name]),
                    helper.make_node("Mul", ["a" + name, "a" + name], ["b" + name]),
                    helper.make_node("Mul", ["b" + name, "b" + name], ["c" + name]),
                ],
                name,
                [],
                [info("c" + name)],
            )
            for name in ("then", "else")
        ]
        inner = helper.make_node(
            "If", ["yes"], ["l"], then_branch=branches[0], else_branch=branches[1]
        )
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        inner,
        helper.make_node("Sqrt", ["l"], ["m"]),
        helper.make_node("Sqrt", ["m"], ["r"]),
        helper.make_node("MatMul", ["r", "w"], ["y"]),
    ]
    return model(nodes, {"x": [1, 16]}, {"y": [1, 16]}, weights)


@pytest.mark.parametrize("kind", ["loop", "branch"])
def test_values_within_loops_and_branches_are_not_trusted(kind):
    """They cannot be seen on the data, so that they stay wide where there is any."""
    proto, feeds = growing(kind), {"x": np.full((1, 16), 6, np.float32)}
    (right,) = ReferenceEvaluator(proto).run(None, feeds)
    assert np.isfinite(right).all()
    assert not np.isfinite(result(build(proto, "fp16", None), feeds)).all()
    got = result(build(proto, "fp16", [feeds]), feeds)
    np.testing.assert_allclose(got, right, rtol=2e-3)


def test_numbers_that_are_no_numbers_on_purpose():
    """A model may return NaN where nothing is known; data is at fault where an input is NaN."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Greater", ["h", "zero"], ["c"]),
        helper.make_node("Where", ["c", "h", "nothing"], ["y"]),
    ]
    weights = {"w": floats(16, 16), "zero": np.float32(0), "nothing": np.float32(np.nan)}
    proto = model(nodes, {"x": [3, 16]}, {"y": [3, 16]}, weights)
    bundle = build(proto, "fp16{tolerance=rel:1e-2}", [{"x": np.ones((3, 16), np.float32)}])
    assert verdicts(bundle)["n0"]["decision"] == "green, narrow"


def test_nan_is_found_before_anything_runs_on_it():
    """NaN as an index would fail in the model, for another reason."""
    nodes = [
        helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT64),
        helper.make_node("Gather", ["w", "i"], ["h"]),
        helper.make_node("MatMul", ["h", "w"], ["y"]),
    ]
    proto = model(nodes, {"x": [3]}, {"y": [3, 16]}, {"w": floats(16, 16)})
    with pytest.raises(NarrowpassError, match="input 'x' is NaN on sample 2"):
        build(proto, "fp16", [{"x": np.ones(3, np.float32)}, {"x": np.full(3, np.nan, np.float32)}])


def test_data_that_cannot_be_used():
    proto = chain([1.0])
    with pytest.raises(NarrowpassError, match="input 'x' is NaN on sample 1"):
        build(proto, "fp16", [{"x": np.full((1, 16), np.nan, np.float32)}])
    with pytest.raises(NarrowpassError, match="input 'x'"):
        build(proto, "fp16", [{"x": np.zeros((1, 17), np.float32)}])
    with pytest.raises(NarrowpassError, match="tolerance needs data"):
        build(proto, "fp16{tolerance=rel:1e-2}", None)


def sensitive():
    """Build a model with one matmul that rounding ruins: a small difference of large numbers."""
    rng = np.random.default_rng(4)
    weights = {f"w{i}": (rng.standard_normal((16, 16)) / 4).astype("f4") for i in range(5)}
    weights["large"] = np.float32(3000).reshape(())
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"]),
        helper.make_node("MatMul", ["a", "w1"], ["b"]),
        helper.make_node("Add", ["b", "large"], ["c"]),
        helper.make_node("Sub", ["c", "large"], ["d"]),
        helper.make_node("MatMul", ["d", "w2"], ["e"]),
        helper.make_node("MatMul", ["e", "w3"], ["f"]),
        helper.make_node("MatMul", ["f", "w4"], ["y"]),
    ]
    return model(nodes, {"x": ["N", 16]}, {"y": ["N", 16]}, weights)


def test_nodes_that_take_the_result_out_of_the_tolerance_stay_wide():
    proto = sensitive()
    loose = build(proto, "fp16", SAMPLES)
    right = [ReferenceEvaluator(proto).run(None, feeds)[0] for feeds in SAMPLES]

    def error(bundle):
        pairs = zip(SAMPLES, right, strict=True)
        return max(
            np.abs(result(bundle, feeds) - want).max() / np.abs(want).max() for feeds, want in pairs
        )

    assert error(loose) > 0.1
    bundle = build(proto, "fp16{tolerance=rel:1e-2}", SAMPLES)
    assert error(bundle) <= 1e-2
    found = verdicts(bundle)
    held = {name for name, item in found.items() if item["by"] == "verification"}
    assert held
    assert held <= {"n2", "n3", "n4"}  # the sum, the difference, and what reads it
    assert found["n0"]["decision"] == found["n6"]["decision"] == "green, narrow"
    assert "rel:0.01" in found[next(iter(held))]["reason"]
    # The same again, byte for byte.
    again = build(proto, "fp16{tolerance=rel:1e-2}", SAMPLES)
    one, other = (ir.to_proto(b.methods["main"]).SerializeToString() for b in (bundle, again))
    assert one == other


def test_a_tolerance_that_is_met_changes_nothing():
    proto = chain([1.0, 1.0])
    plain = ir.to_proto(build(proto, "fp16", SAMPLES).methods["main"])
    checked = ir.to_proto(build(proto, "fp16{tolerance=rel:1e-2}", SAMPLES).methods["main"])
    assert plain.SerializeToString() == checked.SerializeToString()


def test_a_tolerance_of_nothing_keeps_all_wide():
    bundle = build(sensitive(), "fp16{tolerance=rel:0}", SAMPLES)
    narrowed = ir.to_proto(bundle.methods["main"])
    assert isinstance(narrowed, onnx.ModelProto)
    for feeds in SAMPLES:
        right = ReferenceEvaluator(sensitive()).run(None, feeds)[0]
        np.testing.assert_array_equal(result(bundle, feeds), right)


def test_the_evaluator_judges_and_not_a_runtime_that_computes_wide():
    assert ReferenceBackend.name == "reference"
    proto = chain([1000, 1000, 1e-3, 1e-3])
    # Without ranges the verification alone must find the overflow.
    from narrowpass.calibration.samples import Samples
    from narrowpass_analysis.metrics import Tolerance
    from narrowpass_analysis.verification import Verification, judging_backends

    source = ir.from_proto(proto)
    samples, log = Samples("here", lambda: SAMPLES), logging.getLogger(__name__)
    judged = Verification(source, samples, Tolerance("rel", 1e-2), judging_backends(None), log)
    assert judged.problem(source.clone()) == ""
    narrow = build(proto, "fp16", None).methods["main"]
    assert "output 'y'" in judged.problem(narrow)


def test_ranges_and_errors_are_reported():
    """For each node: the largest element it gave, and how far it was from the model as it was."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="first"),
        helper.make_node("Relu", ["h"], ["r"], name="relu"),
        helper.make_node("MatMul", ["r", "w"], ["y"], name="second"),
    ]
    weight = floats(16, 16)
    proto = model(nodes, {"x": [3, 16]}, {"y": [3, 16]}, {"w": weight})
    x = floats(3, 16)
    found = verdicts(build(proto, "fp16{tolerance=rel:1e-2}", [{"x": x}]))
    assert found["first"]["measured"] == pytest.approx(np.abs(x @ weight).max(), rel=1e-5)
    assert found["first"]["limit"] == 65504
    for name in ("first", "relu", "second"):
        assert 0 < found[name]["error"] < 2e-3


def test_values_that_red_nodes_alone_touch_are_not_measured():
    """A chain of four matmuls, of which the second may be narrow; oracle: numpy."""
    weights = {f"w{index}": floats(8, 8) for index in range(4)}
    values = ["x", "a", "b", "c", "y"]
    nodes = [
        helper.make_node("MatMul", [values[i], f"w{i}"], [values[i + 1]], name=f"mm{i}")
        for i in range(4)
    ]
    proto = model(nodes, {"x": [3, 8]}, {"y": [3, 8]}, weights)
    fed = floats(3, 8)
    bundle = narrowpass.build(
        ir.from_proto(proto),
        "fp16{red=[mm0,mm2,mm3]}",
        target="reference",
        calibration=[{"x": fed}],
    )
    found = {item["node"]: item for item in bundle.reports[-1].methods["main"].decisions}
    first = fed @ weights["w0"]
    # 8 terms of float32, in another order.
    for node, right in (("mm0", first), ("mm1", first @ weights["w1"])):
        assert found[node]["measured"] == pytest.approx(np.abs(right).max(), rel=1e-5)
    assert found["mm1"]["decision"] == "green, narrow"
    assert all("measured" not in found[node] for node in ("mm2", "mm3"))
    assert all("option red" in found[node]["by"] for node in ("mm0", "mm2", "mm3"))
