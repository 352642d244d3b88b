"""Small models, and the results of the pass on them."""

from __future__ import annotations

import functools
import importlib.util
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import passes_kit
import pytest
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator
from onnxruntime_kit import run_onnxruntime
from passes_kit import verdicts

from narrowpass import Bundle

__all__ = ["verdicts"]

RNG = np.random.default_rng(33)
Array = np.ndarray[Any, Any]
FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16


def floats(*shape: int, scale: float = 0.3) -> Array:
    return (RNG.standard_normal(shape) * scale).astype(np.float32)


model = functools.partial(passes_kit.model, opset=20, ir_version=9)


def run(proto: onnx.ModelProto, text: str = "fp16") -> Bundle:
    """Build with the pass, from a model object, which must not change."""
    return passes_kit.build(proto, text)


def rewritten(proto: onnx.ModelProto, text: str = "fp16") -> onnx.ModelProto:
    """Return the model after the pass; it is checked, and a second run changes nothing."""
    return passes_kit.rewritten(proto, text)


def count(proto: onnx.ModelProto) -> int:
    """Count the casts of a model, those in subgraphs too."""
    return sum(node.op_type == "Cast" for node in nodes_of(proto.graph))


def nodes_of(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    found = []
    for node in graph.node:
        found.append(node)
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                found += nodes_of(attribute.g)
    return found


def constants(proto: onnx.ModelProto) -> dict[str, int]:
    """Return the types of initializers."""
    return {tensor.name: tensor.data_type for tensor in proto.graph.initializer}


def check(
    proto: onnx.ModelProto,
    feeds: Mapping[str, Array],
    text: str = "fp16",
    tolerance: float = 5e-3,
    *,
    reference: bool = True,
) -> onnx.ModelProto:
    """Rewrite, and compare the results by onnx's evaluator and by onnxruntime.

    Where onnxruntime is absent by intent (see conftest.py), onnx's evaluator alone compares.

    Args:
        proto: in float32.
        feeds: what it is run on.
        text: the pipeline.
        tolerance: of each element, and of the largest one.
        reference: whether the evaluator can run the model.
    """
    narrowed = rewritten(proto, text)
    if reference:
        right = ReferenceEvaluator(proto).run(None, dict(feeds))
        compare(ReferenceEvaluator(narrowed).run(None, dict(feeds)), right, tolerance)
    if importlib.util.find_spec("onnxruntime") is None:
        if not reference:
            pytest.skip("onnx's evaluator cannot run the model, and onnxruntime is not installed")
        return narrowed
    right, got = (run_onnxruntime(each, feeds, optimized=True) for each in (proto, narrowed))
    assert [array.dtype for array in got] == [array.dtype for array in right]
    compare(got, right, tolerance)
    return narrowed


def compare(got: Sequence[Array], right: Sequence[Array], tolerance: float) -> None:
    """Hold results to others."""
    for a, b in zip(got, right, strict=True):
        limit = tolerance * max(1.0, float(np.abs(b[np.isfinite(b)]).max(initial=0)))
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=limit)


def operators(proto: onnx.ModelProto) -> Counter[str]:
    """Count the operators of a model."""
    return Counter(node.op_type for node in nodes_of(proto.graph))
