"""Depthwise convolutions fused with the 1x1 convolutions around them, against float64."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from fp32_kit import EPILOGUES, STEEPEST, apply_epilogue, compare, convolve, run
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from xnn_kit import check, compile_model, feeds_for

from narrowpass.errors import BackendError
from narrowpass_planning.weights.weight import Weight
from narrowpass_xnn_cpu.lower.conv import separable
from narrowpass_xnn_cpu.native.own import fp32, fp32_depthwise
from narrowpass_xnn_cpu.native.own.separable import Separable
from narrowpass_xnn_cpu.native.problems.convolution import ConvAttributes, Convolution
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue
from narrowpass_xnn_cpu.native.problems.matmul import Matmul
from narrowpass_xnn_cpu.native.runtime.pool import shared
from narrowpass_xnn_cpu.native.table import winograd

pytestmark = pytest.mark.usefixtures("fp32_code")

INNER = EPILOGUES.filter(lambda epilogue: not epilogue.residual)


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def pointwise(rng, inputs, outputs, epilogue):
    """Return a 1x1 convolution as a matmul, and the parameters of the same convolution."""
    matrix, bias = normal(rng, outputs, inputs), normal(rng, outputs)
    matmul = fp32.MATMUL.create(Matmul(Weight.of(matrix), Weight.of(bias), epilogue))
    return matmul, (matrix[:, None, None, :], bias, ConvAttributes())


def follow(x, stages, residual):
    """Compute stages in float64; return it, the sum of magnitudes, and the number of terms."""
    y, magnitudes, terms = x, abs(x), 0
    for index, ((kernel, bias, attributes), epilogue) in enumerate(stages):
        added = residual if index == len(stages) - 1 else None
        accumulators = convolve(y, kernel, bias, attributes)
        y = apply_epilogue(accumulators, epilogue, added)
        magnitudes = STEEPEST * convolve(magnitudes, abs(kernel), abs(bias), attributes)
        # Rounding errors of the accumulation, and those of the function in the epilogue.
        terms += kernel[0].size + 2 + 20
    return y, magnitudes + (0 if residual is None else abs(residual)), terms


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    batch=st.integers(1, 3),
    size=st.tuples(st.integers(5, 40), st.integers(5, 20)),
    kernel_shape=st.sampled_from([(3, 3), (3, 3), (5, 5), (2, 3), (1, 1), (4, 1)]),
    stride=st.sampled_from([(1, 1), (2, 2), (3, 1), (5, 2)]),
    dilation=st.sampled_from([(1, 1), (1, 1), (2, 1)]),
    pads=st.one_of(st.just((1, 1, 1, 1)), st.tuples(*[st.integers(0, 7)] * 4)),
    channels=st.tuples(
        st.sampled_from([0, 0, 3, 16]), st.sampled_from([1, 24, 48, 200]), st.integers(1, 40)
    ),
    epilogues=st.tuples(INNER, INNER, EPILOGUES),
    stem=st.booleans(),
    threads=st.sampled_from([1, 2]),
)
def test_fused_blocks_against_float64(
    seed, batch, size, kernel_shape, stride, dilation, pads, channels, epilogues, stem, threads
):
    rng = np.random.default_rng(seed)
    inputs, inner, outputs = channels
    attributes = ConvAttributes(pads, stride, dilation, inner)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel_shape, dilation, strict=True)]
    height, width = map(max, zip(size, reach, strict=True))
    expand, stages = None, []
    x = normal(rng, batch, height, width, inputs or inner)
    if inputs and stem:
        x = normal(rng, batch, 2 * height, 2 * width, inputs)
        by_two = ConvAttributes((1, 1, 1, 1), (2, 2))
        weights, added = normal(rng, inner, 3, 3, inputs), normal(rng, inner)
        stored = Weight.of(weights), Weight.of(added)
        expand = fp32.CONVOLUTION.create(Convolution(*stored, by_two, epilogues[0]))
        stages.append(((weights, added, by_two), epilogues[0]))
    elif inputs:
        expand, given_stage = pointwise(rng, inputs, inner, epilogues[0])
        stages.append((given_stage, epilogues[0]))
    kernel, bias = normal(rng, *kernel_shape, inner), normal(rng, inner)
    depthwise = fp32_depthwise.DEPTHWISE.create(
        Convolution(Weight.of(kernel), Weight.of(bias), attributes, epilogues[1], depthwise=True)
    )
    stages.append(((kernel.transpose(2, 0, 1)[..., None], bias, attributes), epilogues[1]))
    project, last = pointwise(rng, inner, outputs, epilogues[2])
    stages.append((last, epilogues[2]))
    operator = Separable(expand, depthwise, project)
    out = operator.reshape(x.shape, shared(threads))
    residual = normal(rng, batch, *out, outputs) if epilogues[2].residual else None
    expected, magnitudes, terms = follow(x, stages, residual)
    got = run(operator, x, expected.shape, threads, residual)
    compare(got, expected, magnitudes, terms)


@pytest.mark.parametrize("threads", [1, 2])
def test_images_larger_than_a_strip(threads):
    """Images that are larger than what a thread works on at a time."""
    rng = np.random.default_rng(5)
    epilogue = Epilogue(limits=(0.0, 6.0))
    expand, first = pointwise(rng, 8, 160, epilogue)
    kernel, bias = normal(rng, 3, 3, 160), normal(rng, 160)
    attributes = ConvAttributes((1, 1, 1, 1), groups=160)
    depthwise = fp32_depthwise.DEPTHWISE.create(
        Convolution(Weight.of(kernel), Weight.of(bias), attributes, epilogue, depthwise=True)
    )
    project, last = pointwise(rng, 160, 8, Epilogue())
    operator = Separable(expand, depthwise, project)
    x = normal(rng, 1, 60, 40, 8)
    operator.reshape(x.shape, shared(threads))
    assert operator.params.strip < operator.params.span
    assert (operator.params.spans > 1) == (threads > 1)
    middle = (kernel.transpose(2, 0, 1)[..., None], bias, attributes), epilogue
    stages = [(first, epilogue), middle, (last, Epilogue())]
    expected, magnitudes, terms = follow(x, stages, None)
    compare(run(operator, x, expected.shape, threads), expected, magnitudes, terms)


def test_residuals_and_other_channels_are_refused():
    rng = np.random.default_rng(6)
    ones = Weight.of(np.ones((3, 3, 8), np.float32))
    plain = fp32_depthwise.DEPTHWISE.create(
        Convolution(ones, None, ConvAttributes(groups=8), depthwise=True)
    )
    added = fp32_depthwise.DEPTHWISE.create(
        Convolution(
            ones, None, ConvAttributes(groups=8), Epilogue(residual="before"), depthwise=True
        )
    )
    fits, other = pointwise(rng, 8, 8, Epilogue())[0], pointwise(rng, 9, 8, Epilogue())[0]
    with pytest.raises(BackendError, match="do not fit"):
        Separable(None, plain, other)
    with pytest.raises(BackendError, match="residual"):
        Separable(None, added, fits)
    with pytest.raises(BackendError, match="8 channels got 4"):
        Separable(None, plain, fits).reshape((1, 5, 5, 4), shared(1))


def block(outputs=("y",), size=(20, 24), expands=True, kernel_shape=1, batch=1):
    """Return a block as of MobileNetV2: 8 channels become 48, then 8 again, plus the input.

    The first convolution may be missing, or have a larger kernel than 1x1.
    """
    rng = np.random.default_rng(7)
    inner = 48
    weights = {
        "e": normal(rng, inner, 8, kernel_shape, kernel_shape),
        "eb": normal(rng, inner),
        "d": normal(rng, inner, 1, 3, 3),
        "db": normal(rng, inner),
        "p": normal(rng, 8, inner, 1, 1),
        "pb": normal(rng, 8),
        "zero": np.float32(0),
        "six": np.float32(6),
    }
    around = {"group": inner, "pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("Conv", ["x", "e", "eb"], ["a"], pads=[kernel_shape // 2] * 4),
        helper.make_node("Clip", ["a", "zero", "six"], ["b"]),
        helper.make_node("Conv", ["b", "d", "db"], ["c"], **around),
        helper.make_node("Clip", ["c", "zero", "six"], ["m"]),
        helper.make_node("Conv", ["m", "p", "pb"], ["q"]),
        helper.make_node("Add", ["q", "x"], ["y"]),
    ]
    channels = {"x": 8, "b": inner, "m": inner, "y": 8}
    values = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [batch, count, *size])
        for name, count in channels.items()
    }
    if not expands:
        nodes = [nodes[2], nodes[3], nodes[4]]
        nodes[-1].output[0] = "y"
    used = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes,
        "block",
        [values["x" if expands else "b"]],
        [values[name] for name in outputs],
        [numpy_helper.from_array(np.asarray(w), k) for k, w in weights.items() if k in used],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    return model


def kernels_of(model):
    return [plan.kernel for plan in compile_model(model).explain()]


WHOLE = "depth-first convolutions"
HALF = "depthwise and 1x1 convolution"


@pytest.mark.parametrize(("expands", "kernel_shape"), [(True, 1), (True, 3), (False, 1)])
def test_blocks_are_fused(monkeypatch, expands, kernel_shape):
    monkeypatch.setattr(separable, "LEAST_BYTES", 1)
    # 3x3 convolutions of stride 1 would run as Winograd, which has no row tiles.
    monkeypatch.setattr(winograd, "tile_for", lambda *_: 0)
    model = block(expands=expands, kernel_shape=kernel_shape)
    plans = check(model).explain()
    assert {plan.kernel for plan in plans} == {WHOLE if expands else HALF}
    assert len(plans) == len(model.graph.node)


def test_pads_for_another_size_than_that_which_comes(monkeypatch):
    """What a body declares of its inputs need not be so: SAME is resolved for what it declares."""
    monkeypatch.setattr(separable, "LEAST_BYTES", 1)
    rng = np.random.default_rng(8)
    weights = {
        "e": normal(rng, 16, 3, 3, 3),
        "d": normal(rng, 16, 1, 3, 3),
        "p": normal(rng, 8, 16, 1, 1),
    }
    inner = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["goes"]),
            helper.make_node("Identity", ["s"], ["same"]),
            helper.make_node("Conv", ["s", "e"], ["a"], strides=[2, 2], pads=[1, 1, 1, 1]),
            helper.make_node(
                "Conv", ["a", "d"], ["b"], strides=[2, 2], group=16, auto_pad="SAME_UPPER"
            ),
            helper.make_node("Conv", ["b", "p"], ["out"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("s", TensorProto.FLOAT, [1, 3, 32, 32]),
        ],
        [
            helper.make_tensor_value_info("goes", TensorProto.BOOL, []),
            helper.make_tensor_value_info("same", TensorProto.FLOAT, None),
            helper.make_tensor_value_info("out", TensorProto.FLOAT, None),
        ],
        [numpy_helper.from_array(w, k) for k, w in weights.items()],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["one", "", "x"], ["last", "y"], body=inner)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, "h", "w"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.int64(1), "one")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    program = compile_model(model)
    assert program.run({"x": normal(rng, 1, 3, 32, 32)})["y"].shape == (1, 1, 8, 8, 8)
    with pytest.raises(BackendError, match="pads were chosen for"):
        program.run({"x": normal(rng, 1, 3, 30, 30)})


def test_batches_of_any_size(monkeypatch):
    monkeypatch.setattr(separable, "LEAST_BYTES", 1)
    model = block(batch="n")
    program = compile_model(model)
    assert {plan.kernel for plan in program.explain()} == {WHOLE}
    for n in (2, 0, 1):
        feeds = feeds_for(model, sizes={"n": n})
        if n:
            check(model, feeds, program=program)
        else:
            assert program.run(feeds)["y"].shape == (0, 8, 20, 24)


def test_small_images_stay_apart():
    """In L2 they need no row tiles, and threads can divide their channels."""
    assert WHOLE not in kernels_of(block())


def test_unknown_sizes_stay_apart(monkeypatch):
    monkeypatch.setattr(separable, "LEAST_BYTES", 1)
    found = kernels_of(block(size=("h", "w")))
    assert WHOLE not in found
    assert HALF not in found


@pytest.mark.parametrize(("value", "expected"), [("b", HALF), ("m", "depthwise convolution")])
def test_a_value_with_other_readers_is_materialized(monkeypatch, value, expected):
    monkeypatch.setattr(separable, "LEAST_BYTES", 1)
    model = block(outputs=("y", value))
    kernels = {plan.kernel for plan in check(model).explain()}
    assert expected in kernels
    assert WHOLE not in kernels
