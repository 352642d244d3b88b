"""Integers that follow from shapes alone, and are converted to other ones."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from oracle_kit import expected_outputs

import narrowpass
from narrowpass_testing import model_from_text


def test_rows_for_positions_are_converted_between_scales():
    """As in models whose embeddings another tool has quantized."""
    model = model_from_text(
        """g (float[B,S,8] x, int8[16,8] table, float s, int8 z, float s2, int8 z2)
        => (float[B,S,8] y) {
            axis = Constant <value_ints = [0]> ()
            positions = Constant <value_ints = [0,1,2,3,4,5,6,7]> ()
            count = Shape <start = 1, end = 2> (x)
            some = Slice (positions, axis, count, axis)
            rows = Gather (table, some)
            wide = DequantizeLinear (rows, s, z)
            whole = QuantizeLinear (wide, s2, z2)
            again = DequantizeLinear (whole, s2, z2)
            y = Add (x, again)
        }""",
        opset=21,
    )
    constants = {
        "table": np.arange(128).reshape(16, 8).astype(np.int8),
        "s": np.float32(0.125),
        "z": np.int8(3),
        "s2": np.float32(0.25),
        "z2": np.int8(0),
    }
    for value in [each for each in model.graph.inputs if each.name in constants]:
        model.graph.inputs.remove(value)
        value.const_value = ir.Tensor(np.asarray(constants[value.name]), name=value.name)
        model.graph.initializers[value.name] = value
    proto = ir.to_proto(model)
    with narrowpass.load(narrowpass.Bundle({"main": model}), "xnn-cpu") as native:
        for count in (5, 2, 8):
            feeds = {"x": np.ones((1, count, 8), np.float32)}
            # All scales are powers of two: nothing is rounded but halves, to even.
            np.testing.assert_array_equal(
                native.run(feeds)["y"], expected_outputs(proto, feeds)["y"]
            )
