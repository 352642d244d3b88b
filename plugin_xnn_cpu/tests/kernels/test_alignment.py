"""Arrays at addresses that are no multiples of their element size are copied for C."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper
from xnn_kit import check, compile_model

from narrowpass_planning.weights.weight import Weight
from narrowpass_xnn_cpu.native.runtime.tape import Tape, readable

INTEGERS = [np.dtype(f"{sign}int{bits}") for sign in ("u", "") for bits in (8, 16, 32, 64)]
FLOATS = [np.dtype(name) for name in ("float16", "float32", "float64")]
DTYPES = [np.dtype(np.bool_), *INTEGERS, *FLOATS, np.dtype(ml_dtypes.bfloat16)]


def shifted(array: np.ndarray, by: int) -> np.ndarray:
    """Return a dense copy whose address is `by` bytes behind a multiple of 8."""
    memory = np.zeros(array.nbytes + 8 + 4096, np.uint8)  # bytes behind it may be read, too
    start = -memory.ctypes.data % 8 + by
    view = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_misaligned_arrays_are_copied(dtype):
    values = (np.arange(33) % 2 if dtype == np.bool_ else np.arange(33)).astype(dtype)
    for by in range(8):
        array = shifted(values, by)
        assert array.flags.aligned == (by % dtype.alignment == 0)
        for found in (readable(array), Tape([], 1).bind_readable([(0, 0)], array)):
            assert found.ctypes.data % dtype.alignment == 0
            assert (found is array) == array.flags.aligned
            np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_misaligned_weights_are_copied(dtype):
    """As a file has them, of whose offsets models may choose any."""
    array = shifted(np.zeros((3, 5), dtype), 1)
    weight = Weight.of(array)
    for found in (weight.array(), weight.view()):
        assert found.flags.aligned
        assert found.flags.c_contiguous
        assert np.shares_memory(found, array) == array.flags.aligned


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS], ids=str)
@pytest.mark.parametrize("layout", ["dense", "strided"])
def test_misaligned_feeds(dtype, layout):
    element = helper.np_dtype_to_tensor_dtype(dtype)
    given = [helper.make_tensor_value_info(name, element, ["N"]) for name in ("a", "b")]
    result = helper.make_tensor_value_info("y", onnx.TensorProto.BOOL, ["N"])
    graph = helper.make_graph([helper.make_node("Less", ["a", "b"], ["y"])], "g", given, [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    program = compile_model(model)
    rng = np.random.default_rng(3)
    for by in range(8):
        a, b = (shifted(rng.integers(0, 9, 66).astype(dtype), by) for _ in range(2))
        if layout == "strided":
            a, b = a[::2], b[::-2]
        # The oracle gets aligned copies; onnx's evaluator has the types that onnxruntime lacks.
        wanted = np.less(a.copy(), b.copy())
        np.testing.assert_array_equal(program.run({"a": a, "b": b})["y"], wanted)
    check(model, {"a": a.copy(), "b": b.copy()}, program=program, native=None)
