"""Small models, and the results of the pass on them."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import narrowpass
from narrowpass import Bundle

RNG = np.random.default_rng(33)
Array = np.ndarray[Any, Any]
FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16


def floats(*shape: int, scale: float = 0.3) -> Array:
    return (RNG.standard_normal(shape) * scale).astype(np.float32)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int | str]],
    outputs: Mapping[str, Sequence[int | str] | None],
    constants: Mapping[str, Array] | None = None,
    *,
    opset: int = 20,
    types: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    """Build a model; values are float32 unless `types` says otherwise."""
    kinds = types or {}
    for index, node in enumerate(nodes):
        node.name = node.name or f"n{index}"
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(n, kinds.get(n, FLOAT), s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, kinds.get(n, FLOAT), s) for n, s in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )
    narrowed = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    narrowed.ir_version = 9
    return narrowed


def run(proto: onnx.ModelProto, text: str = "fp16") -> Bundle:
    """Build with the pass, from a model object, which must not change."""
    before = proto.SerializeToString()
    bundle = narrowpass.build(ir.from_proto(proto), text, target="reference")
    assert proto.SerializeToString() == before
    return bundle


def rewritten(proto: onnx.ModelProto, text: str = "fp16") -> onnx.ModelProto:
    """Return the model after the pass; it is checked, and a second run changes nothing."""
    first = ir.to_proto(run(proto, text).methods["main"])
    onnx.checker.check_model(first, full_check=True)
    again = ir.to_proto(run(first, text).methods["main"])
    assert again.SerializeToString() == first.SerializeToString(), "a second run changes the model"
    return first


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


def verdicts(bundle: Bundle) -> dict[str, dict[str, Any]]:
    """Return the report of the last pass, by node."""
    (part,) = bundle.reports[-1].methods.values()
    return {item["node"]: item for item in part.decisions}


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
    import onnxruntime

    results = []
    for each in (proto, narrowed):
        session = onnxruntime.InferenceSession(
            each.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        results.append(session.run(None, dict(feeds)))
    right, got = results
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
