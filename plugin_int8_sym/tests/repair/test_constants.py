"""Models with Q/DQ: weights and biases, whose integers change where the numbers can stay."""

from __future__ import annotations

import numpy as np
import pytest
from repair_kit import FEEDS, IMAGE, model, node, pair, repaired, same


class TestWeights:
    """What is beyond [-127, 127] is halved where all of its channel is even, and else left."""

    def model(self, stored, zeros, *, bias=False):
        size = stored.shape[0]
        known = {
            "wq": stored,
            "ws": np.linspace(0.01, 0.02, size).astype(np.float32),
            "wz": np.asarray(zeros, stored.dtype),
            "bq": np.arange(size, dtype=np.int32) * 3 - 4,
            "bs": (np.float32(0.02) * np.linspace(0.01, 0.02, size).astype(np.float32)),
            "xs": np.float32(0.02),
            "xz": np.int8(3),
            "ys": np.float32(0.06),
            "yz": np.int8(4),
        }
        nodes = [
            *pair("x", "xf", "x"),
            node("DequantizeLinear", ["wq", "ws", "wz"], "wf", axis=0),
            *([node("DequantizeLinear", ["bq", "bs"], "bf", axis=0)] if bias else []),
            node("Conv", ["xf", "wf", *(["bf"] if bias else [])], "h"),
            *pair("h", "y", "y"),
        ]
        read = {name for each in nodes for name in each.input}
        inside = {name: value for name, value in known.items() if name in read}
        return model(nodes, {"x": IMAGE}, {"y": [1, size, 8, 8]}, inside)

    def test_even(self):
        stored = np.int8([[-128, 4, 6], [1, -3, 5]]).reshape(2, 3, 1, 1)
        found = repaired(self.model(stored, [0, 0]))
        same(found, FEEDS)
        kept = found.constants()[found.reads("wf")[0]]
        np.testing.assert_array_equal(kept.reshape(2, 3), [[-64, 2, 3], [1, -3, 5]])
        assert found.of("h")[-1].decision == "int8"

    def test_odd(self):
        stored = np.int8([[-128, 4, 7], [1, -3, 5]]).reshape(2, 3, 1, 1)
        found = repaired(self.model(stored, [0, 0]))
        assert not found.modified
        (only,) = found.of("h")
        assert (only.decision, only.measured, only.limit) == ("float", -128, -127)

    def test_even_with_a_bias_of_their_scale(self):
        stored = np.int8([[-128, 4, 6], [1, -3, 5]]).reshape(2, 3, 1, 1)
        found = repaired(self.model(stored, [0, 0], bias=True))
        assert not found.modified
        assert found.of("h")[-1].measured == -128

    def test_zero_points_that_go(self):
        stored = np.uint8([[250, 140, 131], [1, 120, 5]]).reshape(2, 3, 1, 1)
        found = repaired(self.model(stored, [130, 100]))
        same(found, FEEDS)
        kept = found.constants()[found.reads("wf")[0]]
        np.testing.assert_array_equal(kept.reshape(2, 3), [[120, 10, 1], [-99, 20, -95]])

    def test_zero_points_that_stay(self):
        stored = np.uint8([[250, 140, 131], [1, 120, 5]]).reshape(2, 3, 1, 1)
        found = repaired(self.model(stored, [100, 100]))
        same(found, FEEDS)
        (only,) = found.of("h")
        assert (only.measured, only.limit) == (-28, 0)
        assert only.reason.startswith("zero point of the weight")
        assert found.constants()["wq"].dtype == np.uint8

    def test_shared_by_two(self):
        proto = self.model(np.uint8([[250], [1]]).reshape(2, 1, 1, 1).repeat(3, axis=1), [128, 128])
        proto.graph.node.insert(-2, node("Conv", ["xf", "wf"], "k"))
        proto.graph.node.insert(-2, node("Add", ["h", "k"], "a"))
        proto.graph.node[-2].input[0] = "a"
        found = repaired(proto)
        same(found, FEEDS)
        assert [n.op_type for n in found.after.graph.node].count("DequantizeLinear") == 3


class TestBias:
    """Its scale must be that of the accumulators; the integers change only if that is exact."""

    def model(self, bias, scale, zero=None):
        known = {
            "bq": bias,
            "bs": scale,
            **({"bz": zero} if zero is not None else {}),
            "wq": np.int8([[3, -5, 7], [1, 2, 3]]).reshape(2, 3, 1, 1),
            "ws": np.float32([2.0**-6, 2.0**-5]),
            "wz": np.int8([0, 0]),
            "xs": np.float32(2.0**-6),
            "xz": np.int8(3),
            "ys": np.float32(2.0**-5),
            "yz": np.int8(4),
        }
        operands = ["bq", "bs", *(["bz"] if zero is not None else [])]
        nodes = [
            *pair("x", "xf", "x"),
            node("DequantizeLinear", ["wq", "ws", "wz"], "wf", axis=0),
            node("DequantizeLinear", operands, "bf", axis=0),
            node("Conv", ["xf", "wf", "bf"], "h"),
            *pair("h", "y", "y"),
        ]
        return model(nodes, {"x": IMAGE}, {"y": [1, 2, 8, 8]}, known)

    def test_right(self):
        found = repaired(self.model(np.int32([5, -7]), np.float32([2.0**-12, 2.0**-11])))
        assert not found.modified

    @pytest.mark.parametrize(
        ("bias", "scale", "zero"),
        [
            (np.int32([5, -7]), np.float32(2.0**-10), None),
            (np.int8([5, -7]), np.float32(2.0**-10), None),
            (np.int32([5, -7]), np.float32(2.0**-10), np.int32(3)),
        ],
    )
    def test_exact(self, bias, scale, zero):
        found = repaired(self.model(bias, scale, zero))
        same(found, FEEDS)
        name = next(n for n in found.after.graph.node if n.name == "h").input[2]
        producer = next(n for n in found.after.graph.node if n.output[0] == name)
        off = 0 if zero is None else 3
        np.testing.assert_array_equal(
            found.constants()[producer.input[0]], [(5 - off) * 4, (-7 - off) * 2]
        )
        np.testing.assert_array_equal(found.constants()[producer.input[1]], [2.0**-12, 2.0**-11])

    def test_not_exact(self):
        found = repaired(self.model(np.int32([5, -7]), np.float32(0.001)))
        assert not found.modified
        first = found.of("h")[0]
        assert first.reason.startswith("scale of the bias")
        assert first.measured == np.float32(0.001)
        assert len(found.warnings) == 1
