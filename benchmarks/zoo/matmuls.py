"""A chain of matmuls with random weights, as small or large as a comparison needs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def matmuls_model(count: int, size: int, *, relu: bool = False) -> onnx.ModelProto:
    """Build `count` matmuls of `size` x `size`, each followed by a Relu with `relu`.

    The input ``x`` and the output ``y`` have rows of `size` numbers.
    """
    rng = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"
    for index in range(count):
        matrix = rng.standard_normal((size, size), np.float32) / np.float32(size**0.5)
        weights.append(numpy_helper.from_array(matrix, f"w{index}"))
        after = "y" if index == count - 1 else f"h{index}"
        result = f"m{index}" if relu else after
        nodes.append(helper.make_node("MatMul", [last, f"w{index}"], [result]))
        if relu:
            nodes.append(helper.make_node("Relu", [result], [after]))
        last = after
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["rows", size]) for n in "xy")
    graph = helper.make_graph(nodes, "matmuls", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def write_matmuls(path: Path, count: int, size: int, *, relu: bool = False) -> Path:
    """Write such a model, unless its file is there; return the path."""
    if not path.exists():
        onnx.save(matmuls_model(count, size, relu=relu), path)
    return path
