"""Equal layers are sized once; layers of other types, whose elements have other sizes, are not."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import narrowpass

TYPES = [
    TensorProto.FLOAT,
    TensorProto.DOUBLE,
    TensorProto.FLOAT16,
    TensorProto.BFLOAT16,
    TensorProto.INT64,
    TensorProto.INT32,
    TensorProto.INT8,
    TensorProto.UINT8,
    TensorProto.BOOL,
]
RUNS = [(1, 1), (5, 7), (1000, 3)]


def concats(types, axis):
    """Return a model with a Concat of [n] and [m] for each type, between axes of 2."""
    nodes, inputs, outputs = [], [], []
    for number, dtype in enumerate(types):
        shapes = [[2, 2], [2, 2], [2, 2]]
        for shape, size in zip(shapes, ("n", "m", None), strict=True):
            shape.insert(axis, size)
        first, second, joined = (f"{name}{number}" for name in "aby")
        inputs.append(helper.make_tensor_value_info(first, dtype, shapes[0]))
        inputs.append(helper.make_tensor_value_info(second, dtype, shapes[1]))
        outputs.append(helper.make_tensor_value_info(joined, dtype, shapes[2]))
        nodes.append(helper.make_node("Concat", [first, second], [joined], axis=axis))
    graph = helper.make_graph(nodes, "concats", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def feeds(types, axis, sizes, rng):
    found = {}
    for number, dtype in enumerate(types):
        for name, size in zip("ab", sizes, strict=True):
            shape = [2, 2]
            shape.insert(axis, size)
            elements = rng.integers(0, 2 if dtype == TensorProto.BOOL else 100, shape)
            found[f"{name}{number}"] = elements.astype(helper.tensor_dtype_to_np_dtype(dtype))
    return found


def check(types, axis, threads=1, runs=(*RUNS, *RUNS)):
    """Run with sizes that change; numpy is the oracle, and bits are equal: nothing is computed."""
    rng = np.random.default_rng(0)
    with narrowpass.load(concats(types, axis), "xnn-cpu", threads=threads) as program:
        for sizes in runs:
            fed = feeds(types, axis, sizes, rng)
            results = program.run(fed)
            for number in range(len(types)):
                pair = fed[f"a{number}"], fed[f"b{number}"]
                np.testing.assert_array_equal(results[f"y{number}"], np.concatenate(pair, axis))


@pytest.mark.parametrize(
    "types", list(itertools.permutations(TYPES, 2)), ids=lambda types: "-".join(map(str, types))
)
def test_two_types_of_the_same_shapes(types):
    check(types, axis=1)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("threads", [1, 2])
def test_all_types_of_the_same_shapes(axis, threads):
    check(TYPES * 2, axis, threads)


def test_equal_layers_are_sized_once(monkeypatch):
    from narrowpass_xnn_cpu.lower.movement.concat import ConcatPiece

    sized = []
    size = ConcatPiece.size

    def noted(self, step, *given):
        sized.append(step.name)
        return size(self, step, *given)

    monkeypatch.setattr(ConcatPiece, "size", noted)
    check([TensorProto.FLOAT] * 3 + [TensorProto.INT64], axis=1, runs=[(5, 7)])
    assert len(sized) == 2 * 2  # for two types the two pieces of each


def test_masks_and_numbers_of_a_decoder():
    """A mask and positions grow by the same Concat; PyTorch's exporters write such models."""
    n, m = "n", "m"
    inputs = [
        helper.make_tensor_value_info("mask", TensorProto.BOOL, [1, n]),
        helper.make_tensor_value_info("more", TensorProto.BOOL, [1, m]),
        helper.make_tensor_value_info("positions", TensorProto.INT64, [1, n]),
        helper.make_tensor_value_info("next", TensorProto.INT64, [1, m]),
    ]
    nodes = [
        helper.make_node("Concat", ["mask", "more"], ["whole"], axis=1),
        helper.make_node("Concat", ["positions", "next"], ["numbers"], axis=1),
        helper.make_node("Where", ["whole", "numbers", "minus"], ["y"]),
    ]
    minus = onnx.numpy_helper.from_array(np.array([-1], np.int64), "minus")
    result = helper.make_tensor_value_info("y", TensorProto.INT64, [1, None])
    graph = helper.make_graph(nodes, "masks", inputs, [result], [minus])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    fed = {
        "mask": np.array([[True, False, True]]),
        "more": np.array([[True, False]]),
        "positions": np.array([[1 << 40, 2, 3]]),
        "next": np.array([[4, 5]]),
    }
    results = narrowpass.load(model, "xnn-cpu").run(fed)
    np.testing.assert_array_equal(results["y"], [[1 << 40, -1, 3, 4, -1]])
