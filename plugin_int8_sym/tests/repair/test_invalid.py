"""Scales and zero points that are invalid: a reason, and the node is not changed."""

from __future__ import annotations

import numpy as np
import pytest
from repair_kit import MICROSOFT, floats, integers, model, node, on_onnxruntime, repaired

GOOD = {
    "xs": np.float32(0.02),
    "xz": np.uint8(100),
    "w": integers(np.uint8, 8, 4, zero=128),
    "ws": np.float32(0.01),
    "wz": np.uint8(128),
    "ys": np.float32(0.05),
    "yz": np.uint8(120),
}


def product(form, **changed):
    """Write a MatMul: with Q/DQ, or in one node."""
    nodes = [node("QuantizeLinear", ["x", "xs", "xz"], "xq")]
    if form == "one node":
        nodes.append(node("QLinearMatMul", ["xq", "xs", "xz", "w", "ws", "wz", "ys", "yz"], "yq"))
    else:
        nodes += [
            node("DequantizeLinear", ["xq", "xs", "xz"], "xf"),
            node("DequantizeLinear", ["w", "ws", "wz"], "wf", axis=1),
            node("MatMul", ["xf", "wf"], "h"),
            node("QuantizeLinear", ["h", "ys", "yz"], "yq"),
        ]
    nodes.append(node("DequantizeLinear", ["yq", "ys", "yz"], "y"))
    return model(nodes, {"x": [5, 8]}, {"y": [5, 4]}, {**GOOD, **changed})


SCALES = [np.nan, 0.0, -0.01, np.inf, -np.inf]


@pytest.mark.parametrize("form", ["Q/DQ", "one node"])
@pytest.mark.parametrize("which", ["xs", "ws", "ys"])
@pytest.mark.parametrize("scale", SCALES)
def test_scales(form, which, scale):
    found = repaired(product(form, **{which: np.float32(scale)}))
    reasons = [each.reason for each in found.decisions if "not above 0 and finite" in each.reason]
    assert reasons
    assert all(repr(which) in reason for reason in reasons)
    assert found.warnings
    assert len(found.warnings) == len(set(found.warnings))
    assert "int8" not in {each.decision for each in found.decisions}
    if form == "one node":
        assert "QLinearMatMul" in found.kinds()


@pytest.mark.parametrize("scale", SCALES)
def test_a_scale_of_one_channel(scale):
    scales = np.float32([0.01, 0.02, scale, 0.01])
    found = repaired(product("Q/DQ", ws=scales, wz=np.full(4, 128, np.uint8)))
    assert "not above 0 and finite" in found.of("wf")[0].reason
    assert found.constants()["w"].dtype == np.uint8


BAD = {
    "fewer scales than channels": (
        {"ws": np.full(3, 0.01, np.float32), "wz": np.full(3, 128, np.uint8)},
        "3 scales along axis",
    ),
    "fewer zero points than scales": (
        {"ws": np.full(4, 0.01, np.float32), "wz": np.full(3, 128, np.uint8)},
        "4 scales and 3 zero points",
    ),
    "no scale": ({"ws": np.zeros(0, np.float32), "wz": np.zeros(0, np.uint8)}, "is empty"),
    "a matrix of scales": (
        {"ws": np.full((1, 4), 0.01, np.float32), "wz": np.full((1, 4), 128, np.uint8)},
        "has 2 dimensions",
    ),
}


@pytest.mark.parametrize("form", ["Q/DQ", "one node"])
@pytest.mark.parametrize("name", BAD)
def test_sizes(name, form):
    changed, reason = BAD[name]
    found = repaired(product(form, **changed))
    assert any(reason in each.reason for each in found.decisions)
    assert found.warnings


def test_scales_that_are_computed():
    nodes = [
        node("ReduceMax", ["x"], "top", keepdims=0),
        node("QuantizeLinear", ["x", "top", "xz"], "xq"),
        node("DequantizeLinear", ["xq", "top", "xz"], "xf"),
        node("Relu", ["xf"], "h"),
        node("QuantizeLinear", ["h", "top", "xz"], "yq"),
        node("DequantizeLinear", ["yq", "top", "xz"], "y"),
    ]
    found = repaired(model(nodes, {"x": [8]}, {"y": [8]}, {"xz": np.uint8(100)}))
    assert not found.modified
    assert "'top' is computed" in found.of("h")[0].reason


def test_zero_points_that_are_computed():
    nodes = [
        node("Cast", ["x"], "z", to=2),
        node("Squeeze", ["z"], "zz"),
        node("QuantizeLinear", ["x", "xs", "zz"], "xq"),
        node("DequantizeLinear", ["xq", "xs", "zz"], "y"),
    ]
    found = repaired(model(nodes, {"x": [1]}, {"y": [1]}, {"xs": np.float32(0.1)}))
    assert not found.modified
    assert "zero point 'zz' is computed" in found.of("xq")[0].reason


def test_scales_of_half_precision():
    nodes = [
        node("Cast", ["x"], "xh", to=10),
        node("QuantizeLinear", ["xh", "xs", "xz"], "xq"),
        node("DequantizeLinear", ["xq", "xs", "xz"], "yh"),
        node("Cast", ["yh"], "y", to=1),
    ]
    known = {"xs": np.float16(0.1), "xz": np.uint8(100)}
    found = repaired(model(nodes, {"x": [8]}, {"y": [8]}, known))
    assert not found.modified
    assert "'xs' is float16" in found.of("xq")[0].reason


def test_integers_of_16_bits():
    nodes = [
        node("QuantizeLinear", ["x", "xs", "xz"], "xq"),
        node("DequantizeLinear", ["xq", "xs", "xz"], "y"),
    ]
    known = {"xs": np.float32(0.1), "xz": np.int16(100)}
    found = repaired(model(nodes, {"x": [8]}, {"y": [8]}, known))
    assert not found.modified
    assert "int16, not 8 bits" in found.of("xq")[0].reason


def test_blocks():
    nodes = [
        node("DequantizeLinear", ["w", "ws"], "wf", axis=0, block_size=4),
        node("MatMul", ["x", "wf"], "y"),
    ]
    known = {"w": integers(np.int8, 8, 4), "ws": np.full((2, 4), 0.01, np.float32)}
    found = repaired(model(nodes, {"x": [5, 8]}, {"y": [5, 4]}, known))
    assert not found.modified
    assert found.of("wf")[0].reason == "it is quantized in blocks"


def test_constants_with_nan():
    weight = floats(8, 4)
    weight[3, 2] = np.nan
    nodes = [
        node("QuantizeLinear", ["v", "ws", "wz"], "w"),
        node("DequantizeLinear", ["w", "ws", "wz"], "wf"),
        node("MatMul", ["x", "wf"], "y"),
    ]
    known = {"v": weight, "ws": GOOD["ws"], "wz": GOOD["wz"]}
    found = repaired(model(nodes, {"x": [5, 8]}, {"y": [5, 4]}, known))
    assert not found.modified
    assert found.of("w")[0].reason == "the constant has NaN"


def test_infinite_constants_are_clipped_as_when_they_run():
    weight = floats(8, 4)
    weight[3, 2], weight[1, 1] = np.inf, -np.inf
    nodes = [
        node("QuantizeLinear", ["v", "ws", "wz"], "w"),
        node("DequantizeLinear", ["w", "ws", "wz"], "wf"),
        node("MatMul", ["x", "wf"], "y"),
    ]
    known = {"v": weight, "ws": GOOD["ws"], "wz": GOOD["wz"]}
    found = repaired(model(nodes, {"x": [5, 8]}, {"y": [5, 4]}, known))
    feeds = {"x": floats(5, 8)}
    # 128 times 0.01 for each of them; accumulators over 8 terms in float32.
    np.testing.assert_allclose(
        on_onnxruntime(found.after, feeds)[0], on_onnxruntime(found.before, feeds)[0], rtol=1e-6
    )


def test_weights_that_are_fed():
    """A weight with a default that is an input may be another when the model runs."""
    proto = product("Q/DQ")
    given = model([], {"w": [8, 4]}, {}, {}, types={"w": np.uint8})
    proto.graph.input.extend(given.graph.input)
    found = repaired(proto)
    assert "w" in [value.name for value in found.after.graph.input]
    assert found.constants()["w"].dtype == np.uint8


def test_too_few_inputs():
    nodes = [node("QLinearConcat", ["xs", "xz", "x", "xs"], "y", MICROSOFT)]
    known = {"xs": np.float32(0.1), "xz": np.uint8(0)}
    proto = model(nodes, {"x": [8]}, {"y": [8]}, known, types={"x": np.uint8, "y": np.uint8})
    found = repaired(proto)
    assert "4 inputs" in found.of("y")[0].reason
