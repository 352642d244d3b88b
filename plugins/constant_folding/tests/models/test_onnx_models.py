"""Models of the onnx package: the light networks, and its node tests with constant inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from folding_kit import assert_stable, check_onnxruntime, fold
from onnx_cases_kit import node_cases

from narrowpass import Context
from narrowpass_constant_folding.passes.fold import Fold
from narrowpass_ir.verify import verify

LIGHT = sorted((Path(onnx.__file__).parent / "backend/test/data/light").glob("light_*.onnx"))


def feeds_of(proto):
    given = {item.name for item in proto.graph.initializer}
    rng = np.random.default_rng(7)
    return {
        value.name: rng.random([dim.dim_value for dim in value.type.tensor_type.shape.dim]).astype(
            np.float32
        )
        for value in proto.graph.input
        if value.name not in given
    }


@pytest.mark.parametrize("path", LIGHT, ids=lambda path: path.stem)
def test_light_models_keep_their_outputs(path):
    proto = onnx.load(path)
    after, model, _ = fold(proto)
    verify(model)
    assert after.ByteSize() <= ir.to_proto(ir.from_proto(proto)).ByteSize()
    check_onnxruntime(proto, after, feeds_of(proto))


@pytest.mark.parametrize("path", LIGHT, ids=lambda path: path.stem)
def test_light_models_with_constant_weights_do_not_grow(path):
    proto = onnx.load(path)
    proto.ir_version = 8
    given = {item.name for item in proto.graph.initializer}
    inputs = [value for value in proto.graph.input if value.name not in given]
    del proto.graph.input[:]
    proto.graph.input.extend(inputs)
    after, model, ctx = fold(proto)
    verify(model)
    assert after.ByteSize() <= ir.to_proto(ir.from_proto(proto)).ByteSize()
    assert ctx.counters["failed"] == 0
    check_onnxruntime(proto, after, feeds_of(proto))


def with_constant_inputs(case):
    """Return the model of a node test with its tensor inputs as initializers, and its outputs."""
    inputs, outputs = case.data_sets[0]
    proto = onnx.ModelProto()
    proto.CopyFrom(case.model)
    left = [value for value in proto.graph.input if not value.type.HasField("tensor_type")]
    for value, data in zip(proto.graph.input, inputs, strict=False):
        if value.type.HasField("tensor_type"):
            tensor = data if isinstance(data, onnx.TensorProto) else tensor_of(data)
            proto.graph.initializer.add().CopyFrom(tensor)
            proto.graph.initializer[-1].name = value.name
    del proto.graph.input[:]
    proto.graph.input.extend(left)
    return proto, outputs


def tensor_of(data):
    return onnx.numpy_helper.from_array(np.asarray(data))


def fold_all(cases):
    """Fold node tests with constant inputs; return how many fold to their expected results."""
    folded = 0
    for case in cases:
        proto, outputs = with_constant_inputs(case)
        model = ir.from_proto(proto)
        Fold(max_growth=1 << 20).run(model, Context())
        assert_stable(model, Fold(max_growth=1 << 20))
        if len(model.graph):
            continue
        folded += 1
        for value, expected in zip(model.graph.outputs, outputs, strict=True):
            check_expected(case, value.const_value, expected)
    return folded


def test_node_tests_with_constant_inputs_fold_to_expected_results():
    cases = node_cases()
    assert len(cases) > 150
    assert fold_all(cases) > 0.8 * len(cases)


@pytest.mark.long
def test_all_node_tests_with_constant_inputs(record_property):
    cases = node_cases(1)
    folded = fold_all(cases)
    print(f"{folded} of {len(cases)} node tests fold away entirely")  # shown by pytest -s
    record_property("folded", folded)
    assert len(cases) > 1800
    assert folded >= 1650


def check_expected(case, tensor, expected):
    if isinstance(expected, onnx.TensorProto):
        expected = onnx.numpy_helper.to_array(expected)
    expected = np.asarray(expected)
    actual = tensor.numpy()
    assert actual.shape == expected.shape, case.name
    if tensor.dtype == ir.DataType.STRING:
        assert [item.decode() for item in actual.ravel()] == [str(t) for t in expected.ravel()]
        return
    assert actual.dtype == expected.dtype, case.name
    if actual.dtype.kind not in "fiubc":
        actual, expected = actual.astype(np.float32), expected.astype(np.float32)
    np.testing.assert_allclose(actual, expected, case.rtol, case.atol, err_msg=case.name)
