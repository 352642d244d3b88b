"""Models with Q/DQ: conversions move past operators that only move elements."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser
from repair_kit import FEEDS, IMAGE, floats, integers, model, node, pair, repaired, same

from narrowpass.runtime.quantization import QuantizationSpec


class TestMoves:
    """Operators of one quantization: the conversion comes after them, or before Concat."""

    def between(
        self, operator, x=0.02, y=0.05, *, dtype=np.int8, y_zero=-7, shape=IMAGE, more=None
    ):
        nodes = [*pair("x", "xf", "x"), operator, *pair("h", "y", "y")]
        known = {
            "xs": np.float32(x),
            "xz": dtype(3),
            "ys": np.float32(y),
            "yz": dtype(y_zero),
            **(more or {}),
        }
        return repaired(model(nodes, {"x": IMAGE}, {"y": [None] * len(shape)}, known))

    @pytest.mark.parametrize(
        "operator",
        [
            node("MaxPool", ["xf"], "h", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
            node("Relu", ["xf"], "h"),
            node("Reshape", ["xf", "size"], "h"),
            node("Slice", ["xf", "from", "to"], "h"),
            node("Pad", ["xf", "pads"], "h"),
            node("Clip", ["xf", "low"], "h"),
            node("Resize", ["xf", "", "factor"], "h", mode="nearest"),
        ],
        ids=lambda operator: operator.op_type,
    )
    def test_after(self, operator):
        more = {
            "size": np.int64([1, 3, 64, 1]),
            "from": np.int64([0, 1]),
            "to": np.int64([1, 3]),
            "pads": np.int64([0, 0, 1, 1, 0, 0, 1, 1]),
            "low": np.float32(0),
            "factor": np.float32([1, 1, 2, 2]),
        }
        kept = {name: value for name, value in more.items() if name in operator.input}
        found = self.between(operator, more=kept)
        same(found, FEEDS)
        assert [each.decision for each in found.of("h")] == ["repaired", "int8"]
        assert len(found.kinds()) == 7

    @pytest.mark.parametrize(("value", "moved"), [(0.02 * 4, True), (0.03, False)])
    def test_what_a_pad_adds_must_be_among_the_numbers(self, value, moved):
        more = {"pads": np.int64([0, 0, 1, 1, 0, 0, 1, 1]), "v": np.float32(value)}
        found = self.between(node("Pad", ["xf", "pads", "v"], "h"), more=more)
        same(found, FEEDS)
        assert (found.of("h")[-1].decision == "int8") is moved
        assert found.modified is moved

    def test_before_concat(self):
        nodes = [
            *pair("x", "xf", "x"),
            *pair("z", "zf", "y"),
            node("Concat", ["xf", "zf"], "h", axis=1),
            *pair("h", "y", "y"),
        ]
        known = {
            "xs": np.float32(0.02),
            "xz": np.int8(3),
            "ys": np.float32(0.05),
            "yz": np.int8(-7),
        }
        proto = model(nodes, {"x": IMAGE, "z": IMAGE}, {"y": [1, 6, 8, 8]}, known)
        found = repaired(proto)
        same(found, {**FEEDS, "z": floats(*IMAGE)})
        assert found.of("h")[-1].decision == "int8"
        assert len(found.kinds()) == len(nodes) + 2

    def test_q_dq_left_out_behind_them(self):
        """NNCF writes none behind MaxPool and Reshape: the matmul reads the same numbers."""
        nodes = [
            *pair("x", "xf", "x"),
            node("MaxPool", ["xf"], "p", kernel_shape=[8, 8]),
            node("Flatten", ["p"], "f"),
            node("DequantizeLinear", ["w", "ws"], "wf"),
            node("MatMul", ["f", "wf"], "h"),
            *pair("h", "y", "y"),
        ]
        known = {
            "xs": np.float32(0.02),
            "xz": np.uint8(33),
            "w": integers(np.int8, 3, 4),
            "ws": np.float32(0.01),
            "ys": np.float32(0.05),
            "yz": np.uint8(99),
        }
        found = repaired(model(nodes, {"x": IMAGE}, {"y": [1, 4]}, known))
        same(found, FEEDS)
        assert [found.of(name)[-1].decision for name in "pfh"] == ["int8"] * 3

    def test_floats_behind_them_stay(self):
        nodes = [
            *pair("x", "xf", "x"),
            node("MaxPool", ["xf"], "p", kernel_shape=[8, 8]),
            node("Exp", ["p"], "y"),
        ]
        known = {"xs": np.float32(0.02), "xz": np.int8(33)}
        found = repaired(model(nodes, {"x": IMAGE}, {"y": [1, 3, 1, 1]}, known))
        assert not found.modified
        assert found.of("p")[-1].reason == "its result is not quantized"

    def test_a_backend_that_asks_for_nothing(self):
        operator = node("MaxPool", ["xf"], "h", kernel_shape=[3, 3])
        nodes = [*pair("x", "xf", "x"), operator, *pair("h", "y", "y")]
        known = {
            "xs": np.float32(0.02),
            "xz": np.int8(3),
            "ys": np.float32(0.05),
            "yz": np.int8(-7),
        }
        proto = model(nodes, {"x": IMAGE}, {"y": [None] * 4}, known)
        assert not repaired(proto, QuantizationSpec()).modified


@pytest.mark.parametrize("moved", ["Gather(c, at)", "Unsqueeze(c, at)"])
def test_an_output_behind_a_move_keeps_what_it_declares(moved):
    """The value that takes its place is known in full where the output declares nothing."""
    dims = "?, ?, ?, ?" + (", ?" if moved.startswith("Uns") else "")
    proto = parser.parse_model(f"""<ir_version: 10, opset_import: ["": 21]>
    g (int64[1] at) => (int8[{dims}] y)
    <int8[2, 1, 1, 1] x = {{91, -117}}, int8[2, 1, 1, 1] w = {{8, -32}}, float xs = {{0.08}},
     int8 xz = {{3}}, float ws = {{0.06}}, int8 wz = {{0}}, float ys = {{4.3}}, int8 yz = {{7}}>
    {{ c = QLinearConv(x, xs, xz, w, ws, wz, ys, yz) y = {moved} }}""")
    found = repaired(proto)
    assert found.modified
    same(found, {"at": np.zeros(1, np.int64)}, steps=1)
