"""Bundles opened by what other people use: onnx by path, onnxruntime, OpenVINO."""

from __future__ import annotations

import functools

import numpy as np
import onnx
import pytest
from bundle_models import (
    TYPES,
    branches,
    create,
    float_tensor,
    linear,
    random_raw,
    raw_tensor,
    read,
    value,
)
from onnx import helper, numpy_helper

from narrowpass.bundle import Bundle

onnxruntime = pytest.importorskip("onnxruntime")
openvino = pytest.importorskip("openvino")

X = np.random.default_rng(3).standard_normal((16, 16)).astype(np.float32)


def use_of(type_name):
    """Yield models that compute with a weight of some type, for peers to choose from."""
    weight = raw_tensor("w", type_name, random_raw(type_name), [29, 37])
    same = [value("y", type_name, [29, 37])]
    floats = [value("y", "FLOAT", [29, 37])]
    scale = numpy_helper.from_array(np.float32(0.5), "s")
    identity = [helper.make_node("Identity", ["w"], ["y"])]
    cast = [helper.make_node("Cast", ["w"], ["y"], to=onnx.TensorProto.FLOAT)]
    dequantize = [helper.make_node("DequantizeLinear", ["w", "s"], ["y"])]
    for opset, version in ((21, 10), (24, 11), (25, 13), (28, 14)):
        yield create(identity, [], same, [weight], opset=opset, ir_version=version)
        yield create(cast, [], floats, [weight], opset=opset, ir_version=version)
        yield create(dequantize, [], floats, [weight, scale], opset=opset, ir_version=version)


def with_onnxruntime(path, feeds):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


@functools.cache
def _openvino():
    return openvino.Core()


def with_openvino(path, feeds):
    compiled = _openvino().compile_model(path, "CPU")
    return list(compiled(feeds or []).values())


def attempt(run, path, feeds):
    """Run a model that the peer may not support."""
    try:
        return run(str(path), feeds)
    except Exception as error:
        # onnxruntime's errors have no common base.
        if isinstance(error, RuntimeError) or "onnxruntime" in type(error).__module__:
            return None
        raise


# What they cannot compute with; no other type may drop out unseen.
NOT_IN_ONNXRUNTIME = {"COMPLEX64", "COMPLEX128", "FLOAT4E2M1", "FLOAT6E2M3", "FLOAT6E3M2"}
NOT_IN_OPENVINO = {
    "COMPLEX64",
    "COMPLEX128",
    "FLOAT8E4M3FNUZ",
    "FLOAT8E5M2FNUZ",
    "UINT2",
    "INT2",
    "FLOAT6E2M3",
    "FLOAT6E3M2",
}


@pytest.mark.parametrize("type_name", TYPES)
@pytest.mark.parametrize(
    ("run", "lacking"),
    [(with_onnxruntime, NOT_IN_ONNXRUNTIME), (with_openvino, NOT_IN_OPENVINO)],
    ids=["onnxruntime", "openvino"],
)
def test_a_peer_computes_the_same_from_the_bundle(tmp_path, type_name, run, lacking):
    for proto in use_of(type_name):
        original = tmp_path / "original.onnx"
        original.write_bytes(proto.SerializeToString())
        expected = attempt(run, original, {})
        if expected is None:
            continue
        Bundle({"main": read(proto), "two": read(proto)}).save(tmp_path / "b")
        for method in ("main", "two"):
            (got,) = run(str(tmp_path / f"b/{method}.onnx"), {})
            assert got.dtype == expected[0].dtype
            assert got.tobytes() == expected[0].tobytes()
        return
    assert type_name in lacking


@pytest.mark.parametrize("type_name", TYPES)
def test_the_full_checker_takes_every_type_by_path(tmp_path, type_name):
    tried = 0
    for proto in use_of(type_name):
        try:
            onnx.checker.check_model(proto, full_check=True)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
            continue
        Bundle({"main": read(proto)}).save(tmp_path / "b")
        onnx.checker.check_model(str(tmp_path / "b/main.onnx"), full_check=True)
        tried += 1
    assert tried


def shaped():
    """Return a model whose operands that decide shapes take 256 bytes and more, beside weights."""
    wide = [16, 16, *[1] * 30]
    nodes = [
        helper.make_node("Reshape", ["w", "wide"], ["r"]),
        helper.make_node("Squeeze", ["r", "axes"], ["p"]),
        helper.make_node("Split", ["v", "sizes"], [f"s{i}" for i in range(40)], axis=0),
    ]
    outputs = [value("p", shape=[16, 16]), value("s3", shape=[1, 64])]
    decide = {"wide": wide, "axes": range(2, 32), "sizes": [1] * 40}
    constants = [numpy_helper.from_array(np.array(v), name) for name, v in decide.items()]
    weights = [float_tensor("w", (16, 16)), float_tensor("v", (40, 64))]
    return create(nodes, [], outputs, [*weights, *constants])


def cases():
    x = X
    old = linear(0, 16)
    inputs = [*old.graph.input, value("w", shape=[16, 16]), value("b", shape=[16])]
    ir3 = create(
        old.graph.node, inputs, old.graph.output, old.graph.initializer, opset=8, ir_version=3
    )
    empty = create(
        [helper.make_node("Concat", ["x", "e", "w"], ["y"], axis=0)],
        [value("x", shape=[16, 16])],
        [value("y", shape=[32, 16])],
        [raw_tensor("e", "FLOAT", b"", [0, 16]), float_tensor("w", (16, 16))],
    )
    tied = create(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node("MatMul", ["h", "v"], ["y"]),
        ],
        [value("x", shape=[16, 16])],
        [value("y", shape=[16, 16])],
        [float_tensor("w", (16, 16)), float_tensor("v", (16, 16))],
    )
    return {
        "linear": (linear(0, 16), {"x": x}),
        "then": (branches(), {"c": np.array(True), "x": x}),
        "else": (branches(), {"c": np.array(False), "x": x}),
        "ir3": (ir3, {"x": x}),
        "empty": (empty, {"x": x}),
        "tied": (tied, {"x": x}),
        "shaped": (shaped(), {}),
    }


@pytest.mark.parametrize("name", cases())
@pytest.mark.parametrize("run", [with_onnxruntime, with_openvino])
def test_a_peer_computes_the_same_as_from_the_original(tmp_path, name, run):
    proto, feeds = cases()[name]
    clashing = linear(9, 16)
    original = tmp_path / "original.onnx"
    original.write_bytes(proto.SerializeToString())
    Bundle({"main": read(clashing), "two": read(proto)}).save(tmp_path / "b")
    path = tmp_path / "b/two.onnx"
    onnx.checker.check_model(str(path), full_check=True)
    expected = attempt(run, original, feeds)
    if expected is None:
        assert (name, run) == ("shaped", with_openvino)
        return
    for got, want in zip(run(str(path), feeds), expected, strict=True):
        np.testing.assert_array_equal(got, want)
