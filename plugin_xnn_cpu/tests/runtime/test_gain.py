"""The gain the backend predicts for narrow nodes, and how it explains their accumulation."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from xnn_kit import compile_model, fully_connected, one_node

from narrowpass import Color, OpDtypes
from narrowpass.framework.classify import ACCUMULATE, choose_classifiers
from narrowpass_xnn_cpu.backend import XnnCpuBackend
from narrowpass_xnn_cpu.native import isa, target
from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.target import has_float16_gemm

BACKEND = XnnCpuBackend()
HALF = OpDtypes("float32", "float16")
BRAIN = OpDtypes("float32", "bfloat16")


@pytest.fixture
def flags(monkeypatch):
    """Return a function that sets the processor's flags."""

    extension()  # asks for the processor's features itself

    def say(*names):
        monkeypatch.setattr(isa, "flags", lambda: frozenset(names))

    return say


def matmul_node(rows, inner=1024, outer=1024):
    proto = one_node("MatMul", [[rows, inner], np.zeros((inner, outer), np.float32)])
    return ir.from_proto(proto).graph[0]


def test_a_large_float16_matrix_gains_the_reading_of_half_its_bytes(flags):
    flags()
    saved = BACKEND.gain(matmul_node(1), HALF)
    assert (saved > 0) is has_float16_gemm()
    if saved:
        assert_reads(saved, 1024 * 1024 * 2)
        assert BACKEND.gain(matmul_node(1, inner=2048), HALF) == pytest.approx(2 * saved)
    assert BACKEND.gain(matmul_node(8), HALF) == saved
    assert BACKEND.gain(matmul_node(9), HALF) == 0
    assert BACKEND.gain(matmul_node(1, inner=64), HALF) == 0


def assert_reads(seconds, octets):
    """One core reads from memory at 5 (old DDR4) to 100 GB/s (HBM)."""
    assert 5e9 < octets / seconds < 100e9


def assert_computes(seconds, multiplications):
    """What is saved is half the time of float32 arithmetic.

    One core does between 64 (AVX2 at 2 GHz: 2 FMAs of 8 elements) and 320 (AVX-512 at 5 GHz)
    operations of float32 in a nanosecond, two for each multiplication and addition.
    """
    assert 64e9 < multiplications / seconds < 320e9


def convolution(inputs=64, group=1, batch=1):
    weights = np.zeros((64, inputs // group, 3, 3), np.float32)
    proto = one_node("Conv", [[batch, inputs, 30, 30], weights], group=group)
    return ir.from_proto(proto).graph[0]


def test_bfloat16_gains_arithmetic_where_the_processor_has_it(monkeypatch):
    monkeypatch.setitem(target.OVERRIDES, "bf16_level", "avx512bf16")
    few, many = BACKEND.gain(matmul_node(1), BRAIN), BACKEND.gain(matmul_node(512), BRAIN)
    assert_reads(few, 1024 * 1024 * 2)
    assert BACKEND.gain(matmul_node(1, outer=3072), BRAIN) == pytest.approx(3 * few)
    assert_computes(many, 512 * 1024 * 1024)
    assert BACKEND.gain(matmul_node(1536), BRAIN) == pytest.approx(3 * many)
    # As many multiplications as the matmul of the im2col of the convolution.
    unfolded = BACKEND.gain(matmul_node(28**2, inner=64 * 9, outer=64), BRAIN)
    assert BACKEND.gain(convolution(), BRAIN) == pytest.approx(unfolded)
    assert_computes(unfolded, 28**2 * 64 * 64 * 9)
    assert BACKEND.gain(convolution(), HALF) == 0
    assert BACKEND.gain(convolution(group=64), BRAIN) == 0, "depthwise"
    assert BACKEND.gain(convolution(group=2), BRAIN) > 0
    batch = convolution(batch="n"), convolution(batch=3)
    one, three = (BACKEND.gain(node, BRAIN) for node in batch)
    assert three == pytest.approx(3 * one)


@pytest.mark.parametrize("code", ["avx512", "avx2"])
def test_bfloat16_gains_the_reading_of_half_the_bytes_elsewhere(monkeypatch, code):
    monkeypatch.setitem(target.OVERRIDES, "bf16_level", code)
    few = BACKEND.gain(matmul_node(1), BRAIN)
    assert_reads(few, 1024 * 1024 * 2)
    assert 0 < BACKEND.gain(matmul_node(12), BRAIN) < few, "the arithmetic takes longer than that"
    # The gain ends with the kernel: more rows are computed in float32.
    gains = [BACKEND.gain(matmul_node(rows), BRAIN) > 0 for rows in (1, 4, 12, 64, 512)]
    assert gains == sorted(gains, reverse=True)
    assert not gains[-1], "512 rows are bound by arithmetic"
    assert BACKEND.gain(convolution(), BRAIN) == 0


def test_bfloat16_gains_nothing_without_fast_code(monkeypatch):
    monkeypatch.setitem(target.OVERRIDES, "bf16_level", "plain")
    assert BACKEND.gain(matmul_node(1), BRAIN) == 0


def test_nodes_without_a_narrow_kernel_gain_nothing():
    weights = np.zeros((8, 3, 3, 3), np.float32)
    conv = ir.from_proto(one_node("Conv", [[1, 3, 9, 9], weights])).graph[0]
    computed = ir.from_proto(one_node("MatMul", [[4, 1024], [1024, 1024]])).graph[0]
    assert BACKEND.gain(conv, HALF) == BACKEND.gain(computed, HALF) == 0


def test_the_classifier_keeps_numpy_nodes_wide():
    chain = choose_classifiers("target", {}, BACKEND)
    native = matmul_node(4)
    det = ir.from_proto(one_node("Det", [[4, 4]])).graph[0]
    assert chain.color(native) is None
    assert chain.color(det) == (Color.RED, "xnn-cpu")
    assert chain.reason(det) == "Det has no native kernel"


def test_the_classifier_asks_for_whole_patterns():
    """Within GELU, Erf is no node of its own; Bernoulli has no kernel anywhere."""
    numbers = {"r": 2**0.5, "one": 1.0, "half": 0.5}
    nodes = [
        helper.make_node("Div", ["x", "r"], ["a"]),
        helper.make_node("Erf", ["a"], ["b"], name="within"),
        helper.make_node("Add", ["b", "one"], ["c"]),
        helper.make_node("Mul", ["x", "c"], ["d"]),
        helper.make_node("Mul", ["d", "half"], ["e"]),
        helper.make_node("Bernoulli", ["e"], ["y"], name="alone"),
    ]
    constants = [onnx.numpy_helper.from_array(np.float32(v), k) for k, v in numbers.items()]
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", value[:1], value[1:], constants)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    source = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
    chain = choose_classifiers("target", {}, BACKEND)
    colors = {node.name: chain.color(node) for node in source.graph if node.name}
    assert colors == {"within": None, "alone": (Color.RED, "xnn-cpu")}


FEW = "few rows" if target.current().reads_unpacked else "xnn fully connected"


def half_matmul(rows, accumulate=None):
    weight = np.zeros((1024, 1024), np.float16)
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="node")
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT16, [rows, 1024])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT16, [rows, 1024])
    constants = [onnx.numpy_helper.from_array(weight, "w")]
    graph = helper.make_graph([node], "g", [value], [result], constants)
    narrow = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]))
    if accumulate:
        narrow.graph[0].metadata_props[ACCUMULATE] = accumulate
    return narrow


@pytest.mark.parametrize(
    ("requested", "reported"),
    [
        (None, "in float16"),
        ("float32", "in float16"),
        ("float16", "in float16, accumulators in float32 and not float16"),
        ("float64", "in float16, accumulators in float32 and not float64"),
    ],
)
def test_explain_reports_another_accumulation_than_requested(flags, requested, reported):
    flags()
    (plan,) = compile_model(half_matmul(4, requested)).explain()
    wide = f"{fully_connected()} {reported.replace('in float16', 'in float32', 1)}"
    assert plan.kernel == (f"{FEW} {reported}" if has_float16_gemm() else wide)


@pytest.mark.parametrize(
    ("requested", "reported"), [("float32", "float32"), ("float16", "float16")]
)
def test_float32_accumulation_is_kept_where_float16_kernels_have_none(flags, requested, reported):
    """On such processors XNNPACK accumulates float16 in float16."""
    flags("fphp")
    (plan,) = compile_model(half_matmul(4, requested)).explain()
    kernel = FEW if reported == "float16" or target.current().reads_unpacked else fully_connected()
    if not has_float16_gemm():
        kernel, reported = fully_connected(), "float32"
        reported += ", accumulators in float32 and not float16" if requested == "float16" else ""
    assert plan.kernel == f"{kernel} in {reported}"


def test_the_processors_flags_are_read():
    isa.flags.cache_clear()
    found = isa.flags()
    assert not found or {"sse2", "fp", "asimd", "half"} & found
