"""Large and small numbers that are not in a weight that a node reads: masks, attributes."""

from __future__ import annotations

import numpy as np
import pytest
from fp16_kit import FLOAT, check, constants, floats, model, rewritten, run, verdicts
from onnx import TensorProto, helper

LEAST = np.float32(-3.4028235e38)
WEIGHTS = {"w": floats(16, 16), "v": floats(16, 16)}


def masked(*nodes):
    """Return scores, a mask m that `nodes` compute, softmax and a matmul."""
    return [
        helper.make_node("MatMul", ["x", "w"], ["s"], name="scores"),
        *nodes,
        helper.make_node("Add", ["s", "m"], ["a"], name="add"),
        helper.make_node("Softmax", ["a"], ["p"], name="softmax"),
        helper.make_node("MatMul", ["p", "v"], ["y"], name="matmul"),
    ]


MASKS = {
    "chosen": [helper.make_node("Where", ["keep", "zero", "least"], ["m"])],
    "moved": [
        helper.make_node("Where", ["keep", "zero", "least"], ["m0"]),
        helper.make_node("Unsqueeze", ["m0", "axes"], ["m1"]),
        helper.make_node("Squeeze", ["m1", "axes"], ["m"]),
    ],
    "multiplied": [
        helper.make_node("Not", ["keep"], ["drop"]),
        helper.make_node("Cast", ["drop"], ["d"], to=FLOAT),
        helper.make_node("Mul", ["d", "least"], ["m"]),
    ],
    "joined": [
        helper.make_node("Concat", ["one", "fifteen"], ["least1"], axis=0),
        helper.make_node("Where", ["keep", "zero", "least1"], ["m"]),
    ],
}


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_is_as_large_after_its_producer(name):
    """With a row that is masked altogether: infinity instead of the least would lead to NaN."""
    constants_ = {
        **WEIGHTS,
        "zero": np.zeros(1, np.float32),
        "least": np.full(1, LEAST),
        "one": np.full(1, LEAST),
        "fifteen": np.full(15, LEAST),
        "axes": np.array([0]),
    }
    proto = model(
        masked(*MASKS[name]),
        {"x": [3, 16], "keep": [3, 16]},
        {"y": [3, 16]},
        constants_,
        types={"keep": TensorProto.BOOL},
    )
    keep = np.ones((3, 16), bool)
    keep[0] = False
    keep[1, 4:] = False
    check(proto, {"x": floats(3, 16), "keep": keep})
    found = verdicts(run(proto))
    assert found["add"]["decision"] == "red, wide"
    assert found["add"]["reason"] == "a constant is added, which leaves 'm' too large"
    assert found["softmax"]["decision"] == "red, wide"
    assert found["matmul"]["decision"] == "green, narrow"


def test_a_mask_in_range_is_narrow():
    constants_ = {**WEIGHTS, "zero": np.zeros(1, np.float32), "least": np.float32([-1e4])}
    proto = model(
        masked(*MASKS["chosen"]),
        {"x": [3, 16], "keep": [3, 16]},
        {"y": [3, 16]},
        constants_,
        types={"keep": TensorProto.BOOL},
    )
    check(proto, {"x": floats(3, 16), "keep": np.ones((3, 16), bool)})
    assert verdicts(run(proto))["softmax"]["decision"] == "gray, narrow"


NUMBERS = [
    ("Clip", {"min": 1e-12, "max": 6.0}, "min", 10),
    ("Clip", {"min": -1e5, "max": 1e5}, "m", 10),
    ("LeakyRelu", {"alpha": 1e-6}, "alpha", 20),
    ("ThresholdedRelu", {"alpha": 1e5}, "alpha", 20),
    ("HardSigmoid", {"alpha": 1e-9, "beta": 0.5}, "alpha", 20),
]


@pytest.mark.parametrize(("op_type", "numbers", "named", "opset"), NUMBERS)
def test_numbers_of_attributes(op_type, numbers, named, opset):
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node(op_type, ["h"], ["r"], name="node", **numbers),
        helper.make_node("MatMul", ["r", "v"], ["y"]),
    ]
    proto = model(nodes, {"x": [3, 16]}, {"y": [3, 16]}, WEIGHTS, opset=opset)
    found = verdicts(run(proto))["node"]
    assert found["decision"] == "red, wide"
    assert f"its attribute '{named}" in found["reason"]
    check(proto, {"x": floats(3, 16)})


@pytest.mark.parametrize(
    ("op_type", "numbers", "opset"),
    [
        ("Clip", {"min": 0.0, "max": float(-LEAST)}, 10),
        ("LeakyRelu", {"alpha": 0.01}, 20),
        ("LayerNormalization", {"epsilon": 1e-12}, 20),
    ],
)
def test_numbers_of_attributes_that_do_no_harm(op_type, numbers, opset):
    """No bound, an ordinary slope, and what is added to a variance in float32."""
    more = ["s"] if op_type == "LayerNormalization" else []
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node(op_type, ["h", *more], ["r"], name="node", **numbers),
        helper.make_node("MatMul", ["r", "v"], ["y"]),
    ]
    weights = {**WEIGHTS, "s": np.ones(16, np.float32)}
    proto = model(nodes, {"x": [3, 16]}, {"y": [3, 16]}, weights, opset=opset)
    assert verdicts(run(proto))["node"]["decision"] == "gray, narrow"
    assert constants(rewritten(proto))["w"] == TensorProto.FLOAT16
