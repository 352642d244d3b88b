"""Chains of operators whose channels differ by orders of magnitude."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from int8_kit import model
from onnx import helper
from onnx.reference import ReferenceEvaluator

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(5)
SCALES = np.float32(10.0) ** np.linspace(-2, 1, 8, dtype=np.float32)
"""Magnitudes of eight channels."""


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def node(kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, list(inputs), [output], name=output, **attributes)


def shaped(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with inferred shapes."""
    return onnx.shape_inference.infer_shapes(proto, strict_mode=True)


def depthwise_chain(*between: onnx.NodeProto, **more: Array) -> onnx.ModelProto:
    """Build a 1x1 Conv to `first`, a depthwise one from `last` on, and a 1x1 one to y.

    Args:
        between: nodes from `first` to `last`.
        more: further constants.
    """
    weights = {
        "w0": numbers(8, 4, 1, 1) * SCALES[:, None, None, None],
        "b0": numbers(8, seed=1) * SCALES,
        "w1": numbers(8, 1, 3, 3, seed=2),
        "b1": numbers(8, seed=3),
        "w2": numbers(5, 8, 1, 1, seed=4),
        **more,
    }
    nodes = [
        node("Conv", ["x", "w0", "b0"], "first"),
        *between,
        node("Conv", ["last", "w1", "b1"], "deep", group=8, pads=[1, 1, 1, 1]),
        node("Relu", ["deep"], "active"),
        node("Conv", ["active", "w2"], "y"),
    ]
    return model(nodes, {"x": ["N", 4, 6, 6]}, {"y": ["N", 5, 6, 6]}, weights)


def images(count: int = 2) -> list[dict[str, Array]]:
    return [{"x": numbers(1, 4, 6, 6, seed=10 + number)} for number in range(count)]


def evaluated(proto: onnx.ModelProto, feeds: Mapping[str, Array], name: str) -> Array:
    """Return a value of a model, computed by onnx's evaluator."""
    clone = onnx.ModelProto()
    clone.CopyFrom(proto)
    del clone.graph.output[:]
    clone.graph.output.append(helper.make_tensor_value_info(name, 1, None))
    (found,) = ReferenceEvaluator(clone).run([name], dict(feeds))
    return np.asarray(found)
