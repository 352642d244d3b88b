"""Operators of ``ai.onnx.ml`` that onnx's evaluator gets wrong, against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from narrowpass.bundle import Bundle
from narrowpass.errors import BackendError
from narrowpass.runtime.backend import CompileOptions
from narrowpass_reference import ReferenceBackend

MIN, MAX = 2, 3


def compare(body, x, version):
    """Run ``y = BODY(x)`` here and on onnxruntime; return the result, which must be the same."""
    runtime = pytest.importorskip("onnxruntime")
    kind = onnx.TensorProto.DataType.Name(onnx.helper.np_dtype_to_tensor_dtype(x.dtype)).lower()
    shape = ", ".join(map(str, x.shape))
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 18, "ai.onnx.ml": {version}]>
        g ({kind}[{shape}] x) => (y) {{ y = ai.onnx.ml.{body} }}"""
    )
    session = runtime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (expected,) = session.run(None, {"x": x})
    program = ReferenceBackend().compile(Bundle({"main": ir.from_proto(model)}), CompileOptions())
    got = program.run({"x": x})["y"]
    # Elements are 0, 1, or weights of leaves: nothing is rounded.
    np.testing.assert_array_equal(got, expected, strict=True)
    return got


ENCODER = "OneHotEncoder<cats_int64s = [-2, 0, 1, 5]>(x)"


@pytest.mark.parametrize("shape", [(7,), (7, 1), (1, 7, 1)], ids=str)
def test_one_hot_encoder_cuts_numbers_off(shape):
    x = np.array([-2.9, -2, -0.9, 0.5, 1.99, 5.5, 3], np.float32)
    got = compare(ENCODER, x.reshape(shape), 3)
    columns = [0, 0, 1, 1, 2, 3]
    np.testing.assert_array_equal(got.reshape(7, 4)[:6].argmax(axis=1), columns)
    assert not got.reshape(7, 4)[6].any()


def test_one_hot_encoder_of_integers_and_texts():
    compare(ENCODER, np.array([-2, 5, 4], np.int64), 3)
    strings = np.array(["a", "c", "b"], object)
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 18, "ai.onnx.ml": 3]>
        g (string[3] x) => (float[3, 2] y)
        { y = ai.onnx.ml.OneHotEncoder<cats_strings = ["a", "b"]>(x) }"""
    )
    program = ReferenceBackend().compile(Bundle({"main": ir.from_proto(model)}), CompileOptions())
    np.testing.assert_array_equal(program.run({"x": strings})["y"], [[1, 0], [0, 0], [0, 1]])


def test_one_hot_encoder_that_refuses_what_it_does_not_know():
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 18, "ai.onnx.ml": 3]>
        g (float[1] x) => (float[1, 1] y)
        { y = ai.onnx.ml.OneHotEncoder<cats_int64s = [3], zeros = 0>(x) }"""
    )
    program = ReferenceBackend().compile(Bundle({"main": ir.from_proto(model)}), CompileOptions())
    np.testing.assert_array_equal(program.run({"x": np.float32([3.5])})["y"], [[1]])
    with pytest.raises(BackendError, match="any defined category"):
        program.run({"x": np.float32([4])})


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.float32, np.float64])
@pytest.mark.parametrize("constants", ["0.1875", "0.1875, -2.5, 3.0"])
def test_scaler_computes_in_float32(dtype, constants):
    x = np.array([[-5, 0, 7], [1, 2, 300]], dtype)
    # Of few bits each, so that neither rounds.
    compare(f"Scaler<offset = [{constants}], scale = [{constants}]>(x)", x, 1)


@pytest.mark.parametrize("aggregate", [MIN, MAX])
@pytest.mark.parametrize("kind", ["float", "double"])
def test_extremes_of_no_leaves_are_zero(kind, aggregate):
    body = f"""TreeEnsemble<aggregate_function = {aggregate}, n_targets = 3, tree_roots = [0],
        nodes_featureids = [0], nodes_modes = uint8[1] {{0}}, nodes_splits = {kind}[1] {{0.5}},
        nodes_truenodeids = [0], nodes_trueleafs = [1], nodes_falsenodeids = [1],
        nodes_falseleafs = [1], leaf_targetids = [0, 2],
        leaf_weights = {kind}[2] {{-1.5, 2.5}}>(x)"""
    x = np.array([[0.25], [0.75]], np.float32 if kind == "float" else np.float64)
    got = compare(body, x, 5)
    np.testing.assert_array_equal(got, [[-1.5, 0, 0], [0, 0, 2.5]])


@pytest.mark.parametrize("aggregate", ["MIN", "MAX", "SUM"])
def test_extremes_of_a_regressor(aggregate):
    body = f"""TreeEnsembleRegressor<aggregate_function = "{aggregate}", n_targets = 3,
        nodes_treeids = [0, 0, 0], nodes_nodeids = [0, 1, 2], nodes_featureids = [0, 0, 0],
        nodes_modes = ["BRANCH_LEQ", "LEAF", "LEAF"], nodes_values = [0.5, 0.0, 0.0],
        nodes_truenodeids = [1, 0, 0], nodes_falsenodeids = [2, 0, 0],
        target_treeids = [0, 0], target_nodeids = [1, 2], target_ids = [0, 2],
        target_weights = [-1.5, 2.5]>(x)"""
    got = compare(body, np.array([[0.25], [0.75]], np.float32), 1)
    np.testing.assert_array_equal(got, [[-1.5, 0, 0], [0, 0, 2.5]])
