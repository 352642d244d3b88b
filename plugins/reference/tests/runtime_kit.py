"""Single nodes on the reference backend and on onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from narrowpass.bundle import Bundle
from narrowpass.runtime.backend import CompileOptions
from narrowpass_reference import ReferenceBackend


def floats(*shape, seed=0):
    return np.asarray(np.random.default_rng(seed).standard_normal(shape), np.float32)


def node_model(op_type, inputs, opset, outputs=1, **attributes):
    """Create a model of one node, whose inputs have the types of arrays; None if left out."""
    names = ["" if value is None else f"x{index}" for index, value in enumerate(inputs)]
    results = [f"y{index}" for index in range(outputs)]
    graph = helper.make_graph(
        [helper.make_node(op_type, names, results, name="node", **attributes)],
        "g",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
            )
            for name, value in zip(names, inputs, strict=True)
            if name
        ],
        [onnx.ValueInfoProto(name=name) for name in results],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model)


def _feeds(inputs):
    return {f"x{index}": value for index, value in enumerate(inputs) if value is not None}


def evaluate(op_type, inputs, opset=18, outputs=1, **attributes):
    """Return the outputs of a node on the reference backend."""
    model = node_model(op_type, inputs, opset, outputs, **attributes)
    program = ReferenceBackend().compile(Bundle({"main": ir.from_proto(model)}), CompileOptions())
    return list(program.run(_feeds(inputs)).values())


def as_onnxruntime(op_type, inputs, opset=18, outputs=1, **attributes):
    """Compare the outputs of a node with onnxruntime's, and return them."""
    runtime = pytest.importorskip("onnxruntime")
    model = node_model(op_type, inputs, opset, outputs, **attributes)
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    expected = session.run(None, _feeds(inputs))
    got = evaluate(op_type, inputs, opset, outputs, **attributes)
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=2e-5, strict=True)
    return got
