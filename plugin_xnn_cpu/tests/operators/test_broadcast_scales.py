"""Norms whose scales have fewer elements than rows, and averages over no images."""

from __future__ import annotations

import numpy as np
import pytest
from xnn_kit import check, compile_model, feeds_for, one_node

RNG = np.random.default_rng(8)


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("axis", "shape"), [(0, (1, 3, 2)), (1, (3, 1)), (1, (1, 2)), (-1, (1,))], ids=str
)
@pytest.mark.parametrize("op_type", ["LayerNormalization", "RMSNormalization"])
@pytest.mark.parametrize("first", [4, "n"])
def test_scale_that_is_broadcast(first, op_type, axis, shape):
    model = one_node(op_type, [(first, 3, 2), floats(*shape)], opset=23, axis=axis)
    check(model, feeds_for(model, sizes={"n": 4}), native=False)


@pytest.mark.parametrize("op_type", ["LayerNormalization", "RMSNormalization"])
def test_bias_that_is_broadcast(op_type):
    inputs = [("n", 3, 4), floats(3, 4)]
    if op_type == "LayerNormalization":
        inputs.append(floats(1, 4))
    model = one_node(op_type, inputs, opset=23, axis=1)
    native = op_type == "RMSNormalization"
    program = check(model, feeds_for(model, sizes={"n": 4}), native=native)
    check(model, feeds_for(model, sizes={"n": 1}), native=native, program=program)


@pytest.mark.parametrize("sizes", [(7,), (7, 6)], ids=str)
def test_average_of_no_images_that_counts_padding(sizes):
    rank = len(sizes)
    attributes = {"kernel_shape": [2] * rank, "pads": [0] * rank + [1] * rank}
    model = one_node("AveragePool", [("n", 8, *sizes)], count_include_pad=1, **attributes)
    with compile_model(model) as program:
        for count in (2, 0, 3):
            feeds = feeds_for(model, sizes={"n": count})
            check(model, feeds, program=program)
            assert program.run(feeds)["y0"].shape == (count, 8, *sizes)
