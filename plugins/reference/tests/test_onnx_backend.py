from __future__ import annotations

import numpy as np
import onnx
import pytest

import narrowpass_reference.onnx_backend as backend
from narrowpass.errors import DataError, PipelineError, UsageError, VerificationError

F32 = np.float32

MODEL = onnx.parser.parse_model(
    """<ir_version: 3, opset_import: ["" : 17]>
    main (float[2] w = {10, 20}, float[2] x) => (float[2] y) { y = Sub (x, w) }"""
)


def test_prepare_and_run():
    before = MODEL.SerializeToString()
    prepared = backend.prepare(MODEL)
    x = np.array([1, 2], F32)
    np.testing.assert_array_equal(prepared.run([x])[0], [-9, -18])
    np.testing.assert_array_equal(prepared.run(x)[0], [-9, -18])
    np.testing.assert_array_equal(prepared.run({"x": x, "w": x})[0], [0, 0])
    np.testing.assert_array_equal(prepared.run((x, x))[0], [0, 0])
    with pytest.raises(DataError, match="has 2 inputs, but 3 values"):
        prepared.run([x, x, x])
    assert MODEL.SerializeToString() == before


def test_run_model_takes_numpy_scalars():
    text = """<ir_version: 8, opset_import: ["" : 17]>
    main (int32 x) => (int32 y) { y = Add (x, x) }"""
    (y,) = backend.run_model(onnx.parser.parse_model(text), [np.int32(4)])
    assert y == 8
    assert y.dtype == np.int32


def test_run_node():
    node = onnx.helper.make_node("Clip", ["x", "", "high"], ["y"])
    x = np.array([-1, 5], F32)
    (y,) = backend.run_node(node, [x, np.array(2, F32)])
    np.testing.assert_array_equal(y, np.array([-1, 2], F32), strict=True)
    softmax = onnx.helper.make_node("Softmax", ["x"], ["y"])
    (y,) = backend.run_node(softmax, [np.zeros((1, 2, 2), F32)], opset_version=11)
    np.testing.assert_allclose(y, np.full((1, 2, 2), 0.25))
    concat = onnx.helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0)
    (y,) = backend.run_node(concat, [[x, x]])
    assert y.tolist() == [-1, 5, -1, 5]


def test_what_is_refused():
    assert backend.supports_device("CPU")
    assert backend.supports_device("CPU:0")
    assert not backend.supports_device("CUDA")
    assert not backend.supports_device("abacus")
    with pytest.raises(UsageError, match="'CUDA'"):
        backend.prepare(MODEL, "CUDA")
    with pytest.raises(UsageError, match="no-such"):
        backend.prepare(MODEL, backend="no-such")
    with pytest.raises(PipelineError, match="no-such"):
        backend.prepare(MODEL, pipeline="no-such")
    broken = onnx.ModelProto()
    broken.CopyFrom(MODEL)
    broken.graph.node[0].op_type = "Subb"
    with pytest.raises(VerificationError, match="Subb"):
        backend.prepare(broken)
