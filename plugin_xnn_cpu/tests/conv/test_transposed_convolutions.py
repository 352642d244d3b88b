"""Transposed convolutions that are computed as a GEMM or a convolution, against onnxruntime.

Elements may be off by 1e-5 of the largest: fp32 accumulation in another order.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import narrowpass
from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native import target

ort = pytest.importorskip("onnxruntime")

RNG = np.random.default_rng(171)


def convolved(kernel, *, bias=True, relu=False, **attributes):
    """Return a model of a ConvTranspose whose sizes are not known."""
    weights = RNG.standard_normal(kernel).astype(np.float32)
    outputs = kernel[1] * attributes.get("group", 1)
    added = RNG.standard_normal(outputs).astype(np.float32)
    names = ["x", "w", "b"] if bias else ["x", "w"]
    nodes = [helper.make_node("ConvTranspose", names, ["c"], name="c", **attributes)]
    nodes.append(helper.make_node("Relu" if relu else "Neg", ["c"], ["z"], name="z"))
    dims = [None, kernel[0], *(None,) * (len(kernel) - 2)]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [None] * len(kernel))],
        [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(added, "b")][
            : len(names) - 1
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def assert_as_onnxruntime(model, *shapes, kernel=None):
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    bundle = narrowpass.build(ir.from_proto(model), "")
    with narrowpass.load(bundle, "xnn-cpu", threads=2) as program:
        for shape in shapes:
            x = RNG.standard_normal(shape).astype(np.float32)
            (wanted,) = session.run(None, {"x": x})
            got = program.run({"x": x})["z"]
            assert got.shape == wanted.shape
            assert np.abs(got - wanted).max(initial=0) <= 1e-5 * np.abs(wanted).max(initial=0)
        found = {plan.op_type: plan.kernel for plan in program.explain()}["ConvTranspose"]
    if kernel is not None and target.current().has_fp32_gemm:
        assert found.split(" + ")[0] == kernel


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kernel_shape", [(2, 2), (3, 2), (1, 4), (4, 1), (1, 1)])
def test_stride_of_the_kernel_is_a_gemm(kernel_shape, bias, relu):
    model = convolved((5, 7, *kernel_shape), bias=bias, relu=relu, strides=list(kernel_shape))
    shapes = (1, 5, 4, 6), (3, 5, 1, 1), (2, 5, 9, 3)
    assert_as_onnxruntime(model, *shapes)


def test_upsampling_of_images_is_a_fully_connected():
    model = convolved((16, 8, 2, 2), strides=[2, 2])
    assert_as_onnxruntime(model, (2, 16, 8, 8), (1, 16, 3, 5), kernel="fully connected")


@pytest.mark.parametrize("size", [1, 2, 5])
def test_lines_are_a_gemm_too(size):
    model = convolved((6, 9, size), strides=[size], relu=True)
    assert_as_onnxruntime(model, (1, 6, 11), (2, 6, 1), kernel="fully connected")


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(
    ("kernel_shape", "attributes"),
    [
        ((3, 3), {"pads": [1, 1, 1, 1]}),
        ((3, 3), {}),
        ((3, 2), {"pads": [0, 1, 2, 0]}),
        ((3, 3), {"pads": [2, 0, 1, 3], "dilations": [2, 3]}),
        ((1, 1), {}),
        ((5,), {"pads": [1, 3]}),
        ((4,), {"dilations": [3], "pads": [9, 0]}),
    ],
)
def test_stride_of_one_is_a_convolution(kernel_shape, attributes, relu):
    model = convolved((5, 7, *kernel_shape), relu=relu, **attributes)
    spatial = len(kernel_shape)
    assert_as_onnxruntime(
        model, *((n, 5, *(7, 9)[:spatial]) for n in (1, 3)), (1, 5, *(8, 5)[:spatial])
    )


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(
    ("kernel", "attributes"),
    [
        ((5, 7, 4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ((5, 7, 4, 2), {"strides": [2, 1], "pads": [1, 0, 2, 1]}),
        ((5, 7, 6, 4), {"strides": [2, 4], "pads": [3, 1, 2, 0]}),
        ((5, 7, 4, 4), {"strides": [2, 2], "pads": [0, 1, 1, 1], "output_padding": [1, 1]}),
        ((5, 7, 2, 2), {"strides": [2, 2], "pads": [1, 0, 0, 1]}),
        ((5, 7, 1, 4), {"strides": [1, 2], "pads": [0, 1, 0, 1]}),
        ((5, 7, 16), {"strides": [8], "pads": [4, 4]}),
        ((5, 7, 4), {"strides": [2], "pads": [1, 1], "output_padding": [1]}),
        ((5, 7, 8), {"strides": [4]}),
    ],
)
def test_kernel_of_several_strides_is_a_convolution(kernel, attributes, relu):
    spatial = len(kernel) - 2
    shapes = [(n, kernel[0], *(6, 7)[:spatial]) for n in (1, 3)]
    assert_as_onnxruntime(
        convolved(kernel, relu=relu, **attributes),
        *shapes,
        (1, kernel[0], *(5, 4)[:spatial]),
        kernel="convolution",
    )


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(
    ("kernel", "attributes"),
    [
        ((5, 7, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}),
        ((6, 2, 3, 3), {"strides": [2, 2], "group": 3}),
        ((4, 1, 4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1], "group": 4}),
        ((5, 7, 3), {"strides": [2]}),
    ],
)
def test_other_strides_and_groups_are_a_deconvolution(kernel, attributes, relu):
    shape = (1, kernel[0], *(6, 7)[: len(kernel) - 2])
    model = convolved(kernel, relu=relu, **attributes)
    assert_as_onnxruntime(model, shape, kernel="xnn deconvolution")


@pytest.mark.parametrize(
    ("kernel", "attributes"),
    [
        ((5, 7, 2, 2), {"strides": [2, 2]}),
        ((5, 7, 3, 3), {"pads": [1, 1, 1, 1]}),
        ((5, 7, 4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ],
)
def test_nonfinite_numbers_reach_their_outputs_only(kernel, attributes):
    model = convolved(kernel, **attributes)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x = RNG.standard_normal((1, 5, 6, 7)).astype(np.float32)
    x[0, 2, 1, 3], x[0, 4, 5, 6] = np.inf, np.nan
    (wanted,) = session.run(None, {"x": x})
    bundle = narrowpass.build(ir.from_proto(model), "")
    with narrowpass.load(bundle, "xnn-cpu", threads=1) as program:
        got = program.run({"x": x})["z"]
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(wanted))


def test_empty_batches_and_sizes_without_an_output():
    model = convolved((5, 7, 4, 4), strides=[2, 2], pads=[3, 3, 3, 3])
    assert_as_onnxruntime(model, (1, 5, 4, 4), (1, 5, 3, 5))
    program = narrowpass.load(narrowpass.build(ir.from_proto(model), ""), "xnn-cpu", threads=1)
    assert program.run({"x": np.empty((0, 5, 4, 4), np.float32)})["z"].shape == (0, 7, 4, 4)
    with pytest.raises(BackendError, match="is empty"):
        program.run({"x": np.ones((1, 5, 1, 1), np.float32)})
    upsampling = convolved((5, 7, 2, 2), strides=[2, 2])
    program = narrowpass.load(narrowpass.build(ir.from_proto(upsampling), ""), "xnn-cpu", threads=1)
    assert program.run({"x": np.empty((0, 5, 4, 3), np.float32)})["z"].shape == (0, 7, 8, 6)


@pytest.mark.parametrize(
    ("kernel", "attributes"),
    [
        ((5, 7, 2, 2), {"strides": [3, 3], "output_padding": [1, 0]}),
        ((5, 7, 2, 2), {"strides": [2, 2], "dilations": [2, 2]}),
        ((6, 2, 2, 2), {"strides": [2, 2], "group": 2}),
        ((6, 2, 3, 3), {"group": 3}),
        ((5, 7, 3, 3), {"pads": [3, 1, 1, 1]}),
        ((5, 7, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}),
    ],
)
def test_others_are_right_too(kernel, attributes):
    spatial = len(kernel) - 2
    shapes = ((n, kernel[0], *(6, 7)[:spatial]) for n in (1, 2))
    assert_as_onnxruntime(convolved(kernel, **attributes), *shapes)
