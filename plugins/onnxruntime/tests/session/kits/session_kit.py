"""Models for tests of sessions, and both classes for one."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import narrowpass_onnxruntime

RNG = np.random.default_rng(11)
FLOAT, INT64, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING

ORIGINAL = onnxruntime.InferenceSession
"""onnxruntime's own class, before any test replaces it."""

OURS = narrowpass_onnxruntime.InferenceSession


def value(name, shape=("n", 3), kind=FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes, inputs, outputs, weights=(), *, opset=18, ir_version=10, domains=()):
    graph = helper.make_graph(nodes, "graph", inputs, outputs, list(weights))
    imports = [helper.make_opsetid("", opset), *domains]
    return helper.make_model(graph, opset_imports=imports, ir_version=ir_version)


def node(op_type, inputs, outputs, **attributes):
    return helper.make_node(op_type, inputs, outputs, name=f"{op_type} {outputs[0]}", **attributes)


def tensor(array, name):
    return numpy_helper.from_array(np.asarray(array), name)


def perceptron(width=3, *, ir_version=10):
    """``y = relu(x @ w) @ v``, ``z = relu(x @ w)``: float32 [n, width]."""
    weights = [
        tensor(RNG.standard_normal((width, width)).astype(np.float32), name) for name in "wv"
    ]
    nodes = [
        node("MatMul", ["x", "w"], ["m"]),
        node("Relu", ["m"], ["z"]),
        node("MatMul", ["z", "v"], ["y"]),
    ]
    shapes = [value(name, ("n", width)) for name in "xyz"]
    return model(nodes, shapes[:1], shapes[1:], weights, ir_version=ir_version)


def identity(kind=FLOAT, shape=("n", 3)):
    return model(
        [node("Identity", ["x"], ["y"])],
        [value("x", shape, kind)],
        [value("y", shape, kind)],
        opset=21,
    )


def overridable(ir_version=10):
    """``y = x + w`` where the default of ``w`` is an initializer."""
    weight = tensor(np.ones((1, 3), np.float32), "w")
    nodes = [node("Add", ["x", "w"], ["y"])]
    return model(
        nodes, [value("x"), value("w", (1, 3))], [value("y")], [weight], ir_version=ir_version
    )


def classifier(**classes):
    """Scores of two classes as maps, as converters of scikit-learn write them."""
    key = STRING if "classlabels_strings" in classes else INT64
    kind = helper.make_sequence_type_proto(
        helper.make_map_type_proto(key, helper.make_tensor_type_proto(FLOAT, []))
    )
    nodes = [
        node("Softmax", ["x"], ["scores"], axis=1),
        node("ZipMap", ["scores"], ["p"], domain="ai.onnx.ml", **classes),
    ]
    return model(
        nodes,
        [value("x", ("n", 2))],
        [helper.make_value_info("p", kind)],
        domains=[helper.make_opsetid("ai.onnx.ml", 3)],
    )


def external(folder, *, width=64):
    """Write a perceptron with external data into a folder; return the path of the model."""
    path = folder / "model.onnx"
    onnx.save_model(
        perceptron(width),
        path,
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    return path


def both(given, options=None, **more):
    """Return a session of each class: onnxruntime's, and ours."""
    if isinstance(given, onnx.ModelProto):
        given = given.SerializeToString()
    providers = ["CPUExecutionProvider"]
    return (
        ORIGINAL(given, options, providers=providers, enable_fallback=0, **more),
        OURS(given, options, providers=providers, **more),
    )


def feeds_of(session, rows=2):
    """Return random feeds for the inputs of a session, with `rows` for each free dimension."""
    kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
    return {
        arg.name: RNG.standard_normal(
            [dim if isinstance(dim, int) else rows for dim in arg.shape]
        ).astype(kinds[arg.type])
        for arg in session.get_inputs()
    }


def samples():
    """Yield two samples of the perceptron of width 512."""
    for scale in (1, 2):
        yield {"x": np.full((2, 512), scale, np.float32)}
