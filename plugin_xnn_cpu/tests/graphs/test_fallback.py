"""What falls back to the reference evaluator is as right as onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from xnn_kit import check, one_node

RNG = np.random.default_rng(11)


def floats(*shape):
    return np.asarray(RNG.standard_normal(shape), np.float32)


NODES = {
    "global max pool, lines": ("GlobalMaxPool", [[2, 3, 7]], {}, 18),
    "global max pool, volumes": ("GlobalMaxPool", [[2, 3, 4, 5, 6]], {}, 18),
    "global p-norm pool": ("GlobalLpPool", [[2, 3, 4, 5]], {}, 18),
    "bilinear grid": ("GridSample", [[2, 3, 4, 5], [2, 6, 7, 2]], {"mode": "bilinear"}, 16),
    "bicubic grid": ("GridSample", [[2, 3, 4, 5], [2, 6, 7, 2]], {"mode": "bicubic"}, 16),
    "1-norm": ("LpNormalization", [[2, 3, 4]], {"p": 1}, 18),
    "max pool, same lower": (
        "MaxPool",
        [[2, 3, 7, 8]],
        {"kernel_shape": [4, 3], "strides": [2, 1], "auto_pad": "SAME_LOWER"},
        18,
    ),
    "max pool, volumes": (
        "MaxPool",
        [[2, 3, 7, 8, 5]],
        {"kernel_shape": [3, 3, 2], "pads": [1, 0, 1, 0, 1, 0]},
        18,
    ),
    "transposed, volumes in groups": (
        "ConvTranspose",
        [[1, 6, 5, 5, 4], floats(6, 2, 3, 3, 2)],
        {"group": 3, "strides": [2, 2, 1]},
        18,
    ),
    "transposed, shape of the output": (
        "ConvTranspose",
        [[1, 4, 5, 6], floats(4, 3, 3, 4)],
        {"group": 2, "strides": [2, 2], "output_shape": [10, 13]},
        18,
    ),
    "convolution of volumes": (
        "Conv",
        [[1, 4, 6, 7, 8], floats(4, 2, 3, 2, 2)],
        {"dilations": [2, 1, 3], "group": 2},
        18,
    ),
    "negative pads": ("Pad", [[2, 3, 4, 5], np.array([0, 0, -1, 1, 0, -1, 1, -2])], {}, 18),
    "linear upsample": (
        "Upsample",
        [[2, 3, 4, 5], np.float32([1, 1, 2, 1.5])],
        {"mode": "linear"},
        9,
    ),
}


@pytest.mark.parametrize("name", NODES)
def test_single_nodes(name):
    op_type, given, attributes, opset = NODES[name]
    model = one_node(op_type, given, opset=opset, **attributes)
    check(model, native=None, oracle="onnxruntime")


def test_a_float16_dilated_convolution():
    """Whatever runs it: dot products of 24 elements, rounded once or twice."""
    model = one_node("Conv", [[1, 8, 64], floats(4, 8, 3)], dilations=[16])
    node = model.graph.node[0]
    node.input[:] = ["narrow_x", "narrow_w"]
    node.output[0] = "narrow_y"
    for name, other in (("x0", "narrow_x"), ("x1", "narrow_w")):
        model.graph.node.insert(0, helper.make_node("Cast", [name], [other], to=10))
    model.graph.node.append(helper.make_node("Cast", ["narrow_y"], ["y0"], to=1))
    check(model, native=None, oracle="onnxruntime", tolerance=2e-3)
