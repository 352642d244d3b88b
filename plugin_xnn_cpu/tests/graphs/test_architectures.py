"""Whole networks of the onnx package, with random weights, against onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.backend.test.data
import pytest
from onnx import numpy_helper
from xnn_kit import check

LIGHT = Path(next(iter(onnx.backend.test.data.__path__))) / "light"

TRANSPOSES = {"densenet121": 1, "inception_v2": 1, "resnet50": 1, "squeezenet": 1, "shufflenet": 17}
"""Layout changes: of the input; and a shuffle of channels in each of 16 blocks of one network."""


def with_weights(name: str) -> onnx.ModelProto:
    """Return a network of the onnx package, its constant weights replaced by random ones."""
    model = onnx.load(LIGHT / f"light_{name}.onnx")
    graph = model.graph
    rng = np.random.default_rng(0)
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    kept = []
    for node in graph.node:
        if node.op_type != "ConstantOfShape":
            kept.append(node)
            continue
        shape = tuple(shapes[node.input[0]])
        if len(shape) > 1:
            # The variance of activations stays about the same from layer to layer.
            array = rng.standard_normal(shape) * (1.5 / np.prod(shape[1:])) ** 0.5
        else:
            array = rng.uniform(0.5, 1.0, shape)
        graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), node.output[0]))
    del graph.node[:]
    graph.node.extend(kept)
    weights = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in weights]
    del graph.input[:]
    graph.input.extend(inputs)
    model.ir_version = 8
    return model


@pytest.mark.parametrize("name", TRANSPOSES)
def test_networks_run_as_one_partition(name):
    """One partition, as few transposes as there can be, and onnxruntime's results."""
    model = with_weights(name)
    (given,) = model.graph.input
    shape = [dim.dim_value for dim in given.type.tensor_type.shape.dim]
    feeds = {given.name: np.random.default_rng(1).standard_normal(shape).astype(np.float32)}
    program = check(model, feeds, tolerance=1e-4, oracle="onnxruntime")
    assert program.stats()["partitions"] == 1
    kernels = [row.kernel for row in program.profile(feeds, runs=1)]
    assert kernels.count("transpose") == TRANSPOSES[name]
