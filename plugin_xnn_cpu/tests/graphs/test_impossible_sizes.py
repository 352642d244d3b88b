"""Sizes that cannot be are errors with the node's name, also where numpy has other exceptions."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from xnn_kit import compile_model

from narrowpass.errors import BackendError

HEAD = '<ir_version: 8, opset_import: ["": 18]> '
SPLITS = {
    "shape arithmetic": "g (float[n, 4] x, int64[m] s) => (int64[k] y) "
    "{ a = Shape(x) y = Split <axis = 0> (a, s) }",
    "a constant": "g (int64[m] s, float[n, 4] x) => (int64[k] y) <int64[1] a = {0}>"
    "{ y = Split <axis = 0> (a, s) }",
    "integers": "g (int64[n, 4] x, int64[m] s) => (int64[k, 4] y) { y = Split <axis = 0> (x, s) }",
    "floats": "g (float[n, 4] x, int64[m] s) => (float[k, 4] y) { y = Split <axis = 0> (x, s) }",
}


@pytest.mark.parametrize("sizes", [[1, 1], [5], [3, -1], []], ids=str)
@pytest.mark.parametrize("text", SPLITS.values(), ids=SPLITS.keys())
def test_sizes_of_a_split(text, sizes):
    model = onnx.parser.parse_model(HEAD + text)
    model.graph.node[-1].name = "cut"
    with compile_model(model) as program:
        dtype = np.int64 if "int64[n, 4] x" in text else np.float32
        feeds = {"x": np.ones((2, 4), dtype), "s": np.array(sizes, np.int64)}
        with pytest.raises(BackendError, match="cut"):
            program.run(feeds)
        size = 1 if "int64[1] a" in text else 2
        (y,) = program.run({**feeds, "s": np.array([size], np.int64)}).values()
        assert len(y) == size


@pytest.mark.parametrize("dims", [40, 64, 70])
def test_more_dimensions_than_numpy_broadcasts(dims):
    text = "g (int64[4] x, int64[m] s) => (int64[...] y) { y = Expand(x, s) }"
    text = text.replace("int64[...]", "int64[" + ",".join(f"d{i}" for i in range(3)) + "]")
    model = onnx.parser.parse_model(HEAD + text)
    model.graph.node[0].name = "wide"
    with compile_model(model) as program:
        feeds = {"x": np.ones(4, np.int64), "s": np.ones(dims, np.int64)}
        with pytest.raises(BackendError, match="wide"):
            program.run(feeds)
        y = program.run({**feeds, "s": np.array([2, 1, 4], np.int64)})["y"]
        assert y.shape == (2, 1, 4)


@pytest.mark.parametrize("dtype", ["int64", "float", "float16"])
def test_batches_of_gather_nd_that_differ(dtype):
    text = f"g ({dtype}[n, 3, 4] x, int64[m, 3, 1] i) => ({dtype}[k, 3] y)"
    text += " { y = GatherND <batch_dims = 2> (x, i) }"
    model = onnx.parser.parse_model(HEAD + text)
    model.graph.node[0].name = "picked"
    kind = {"float": np.float32, "float16": np.float16}.get(dtype, np.int64)
    with compile_model(model) as program:
        feeds = {"x": np.ones((1, 3, 4), kind), "i": np.zeros((2, 3, 1), np.int64)}
        with pytest.raises(BackendError, match="picked"):
            program.run(feeds)
