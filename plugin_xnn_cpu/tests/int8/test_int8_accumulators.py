"""Quantized addition, by XNNPACK and fused into the convolution before it: the same bytes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from int8_kernels_kit import bytes_of, code, run_tape, scales_of
from qdq_graph import QdqGraph
from qdq_kit import off_by

import narrowpass
from narrowpass.bundle import Bundle
from narrowpass_planning.plan.executor import Entry
from narrowpass_planning.weights.weight import Quantized, Weight
from narrowpass_xnn_cpu.backend import XnnCpuBackend
from narrowpass_xnn_cpu.lower.int8.convolution import Conv2dInt8
from narrowpass_xnn_cpu.native import target
from narrowpass_xnn_cpu.native.own import int8, int8_convolution
from narrowpass_xnn_cpu.native.problems.convolution import ConvAttributes, Convolution, Offsets
from narrowpass_xnn_cpu.native.problems.quantization import (
    AddS8,
    Quantization,
    Requantized,
    UnfitError,
)
from narrowpass_xnn_cpu.native.runtime.pool import shared
from narrowpass_xnn_cpu.native.runtime.tape import Tape, aligned
from narrowpass_xnn_cpu.native.xnnpack.elementwise import XnnBinary

__all__ = ["code"]  # a fixture that all tests of this module have


@pytest.fixture(autouse=True)
def _ours(monkeypatch):
    """Take our kernels whatever XNNPACK has for this processor."""
    monkeypatch.setitem(target.OVERRIDES, "int8_is_own", True)


QUANTIZATIONS = st.builds(
    lambda exponent, zero: Quantization(float(np.float32(2.0**exponent)), zero),
    st.floats(-6, 4),
    st.integers(-128, 127),
)


def added_by_xnnpack(a, b, first, second, output):
    """Add two tensors of one shape."""
    operator = XnnBinary("add", (first, second, output))
    operator.reshape(a.shape, b.shape, shared(1))
    tape = Tape([Entry(operator.call, (0, 1), 2, operator, None, True, "add")], 3)
    buffers = [aligned(a.size) for _ in range(3)]
    for number, given_ in enumerate((a, b)):
        buffers[number][: a.size] = given_.reshape(-1).view(np.uint8)
    for number, buffer in enumerate(buffers):
        tape.bind(number, buffer)
    tape.run(shared(1))
    return buffers[2][: a.size].view(np.int8).reshape(a.shape).copy()


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    first=QUANTIZATIONS,
    second=QUANTIZATIONS,
    output=QUANTIZATIONS,
    limits=st.sampled_from([(-128, 127), (-100, 50), (0, 127)]),
    size=st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 16)),
    inputs=st.sampled_from([1, 3, 16]),
    outputs=st.sampled_from([1, 5, 16, 33, 64, 70, 130]),
    extent=st.sampled_from([1, 1, 3]),
    threads=st.sampled_from([1, 2]),
    raised=st.booleans(),
    wide=st.booleans(),
)
def test_a_fused_residual_equals_a_separate_addition(
    seed, first, second, output, limits, size, inputs, outputs, extent, threads, raised, wide
):
    """A convolution with a fused residual equals one alone, added by XNNPACK and clamped."""
    if not int8.layout().is_vnni:
        return
    rng = np.random.default_rng(seed)
    kernel = bytes_of(rng, (outputs, extent, extent, inputs), False, -127)
    scales = scales_of(rng, outputs, inputs * extent**2) / np.float32(first.scale)
    if wide:
        scales[0] = (
            200 * first.scale
        )  # its requantized accumulators saturate before they are converted
    stored = Quantized(Weight.of(kernel), Weight.of(scales), None, 0)
    requantized = Requantized(Quantization(0.5, 3), first)
    x = bytes_of(rng, (*size, inputs), False)
    other = bytes_of(rng, (*size, outputs), False)
    attributes = ConvAttributes((extent // 2,) * 4)
    results = []
    for joined in (False, True):
        operator = int8_convolution.CONVOLUTION.create(
            Convolution(stored, None, attributes, requantized)
        )
        try:
            if joined:
                XnnBinary("add", (first, second, output))
                assert operator.can_add
                operator = operator.variant(
                    added=AddS8.of(first, second, output, limits),
                    offsets=Offsets(output=raised, added=raised),
                )
                assert not operator.can_add
            operator.reshape(x.shape, shared(threads))
        except UnfitError:
            return
        entry = Entry(operator.call, (0, 2), 1, operator, operator.params, True, "int8")
        offsets = operator.problem.offsets
        added = other ^ np.int8(-128) if offsets.added else other
        got = run_tape([entry], operator, x, other.shape, np.int8, threads, added)
        results.append(got ^ np.int8(-128) if offsets.output else got)
    right = added_by_xnnpack(results[0], other, first, second, output)
    np.testing.assert_array_equal(results[1], np.clip(right, *limits))


def test_every_pair_of_bytes():
    rng = np.random.default_rng(5)
    every = np.arange(-128, 128, dtype=np.int8)
    a, b = (np.ascontiguousarray(x) for x in np.meshgrid(every, every))
    for _ in range(20):
        scales = np.exp(rng.uniform(-5, 0, 3)).astype(np.float32).tolist()
        zeros = rng.integers(-128, 128, 3).tolist()
        first, second, output = (Quantization(*one) for one in zip(scales, zeros, strict=True))
        s = AddS8.of(first, second, output, (-128, 127))
        whole = a.astype(np.int64) * s.own + b.astype(np.int64) * s.other + s.bias
        assert np.abs(whole).max() < 2**31
        right = np.clip((whole >> s.shift) + s.zero, -128, 127)
        np.testing.assert_array_equal(added_by_xnnpack(a, b, first, second, output), right)


def residual(relu, swapped, twice):
    """Build a residual block of two convolutions; with `twice`, both operands are convolutions."""
    graph = QdqGraph(3)
    x = graph.quantize(graph.input(["N", 8, 7, 9]), 0.05, 3)
    y = graph.node("Conv", x, graph.weight((24, 8, 3, 3), 0), pads=[1, 1, 1, 1])
    y = graph.quantize(y, 0.3, -5)
    short = graph.quantize(graph.node("Conv", x, graph.weight((24, 8, 1, 1), 0)), 0.2, 7)
    if not twice:
        short = graph.quantize(graph.node("Abs", short), 0.2, 7)
    z = graph.node("Add", *((short, y) if swapped else (y, short)))
    z = graph.quantize(graph.node("Relu", z) if relu else z, 0.4, -90)
    graph.output(graph.node("GlobalAveragePool", z))
    return graph.model()


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("twice", [False, True])
def test_residual_blocks(relu, swapped, twice):
    model = residual(relu, swapped, twice)
    rng = np.random.default_rng(1)
    feeds = {"x": rng.standard_normal((2, 8, 7, 9)).astype(np.float32) * 3}
    assert set(off_by(residual(relu, swapped, twice), feeds)) <= {0, 1}
    quantized = [n.outputs[0].name or "" for n in model.graph if n.op_type == "QuantizeLinear"]
    whole = quantized[-1]
    results, kernels = [], []
    for keep in ((whole,), tuple(quantized)):
        # What is kept is computed by itself.
        options = narrowpass.CompileOptions(keep=keep, cache=False, threads=1)
        bundle = Bundle({"main": residual(relu, swapped, twice)})
        with XnnCpuBackend().compile(bundle, options) as program:
            results.append(program.run(feeds, outputs=[whole])[whole])
            kernels.append([plan.kernel for plan in program.explain() if plan.op_type == "Add"])
    np.testing.assert_array_equal(*results)
    assert kernels[1] in (["xnn add int8"], ["xnn add int8 + table"])
    joined = int8.layout().is_vnni
    assert (kernels[0] == ["convolution int8 and add"]) == joined


@pytest.mark.parametrize("kept", [False, True])
def test_bytes_are_raised_between_convolutions(kept):
    model = residual(False, False, True)
    names = [n.outputs[0].name or "" for n in model.graph if n.op_type == "QuantizeLinear"]
    options = narrowpass.CompileOptions(keep=tuple(names) if kept else (), cache=False, threads=1)
    with XnnCpuBackend().compile(Bundle({"main": model}), options) as program:
        (partition,) = program._methods["main"].partitions
    steps = [s for s in partition.steps if isinstance(s.op.computation, Conv2dInt8)]
    found = [step.packed for step in steps]
    can = int8.layout().is_vnni
    assert [step.op.computation.supports_offset for step in steps] == [can, can]
    if not can:
        return
    short, long = sorted(found, key=lambda operator: operator.can_add, reverse=True)
    # What is quantized at first, and what is averaged at last, are bytes as they are.
    assert short.problem.offsets == Offsets(output=not kept)
    assert long.problem.offsets == Offsets(added=not kept)


def test_a_sum_that_broadcasts_is_one_of_its_own():
    graph = QdqGraph(3)
    x = graph.quantize(graph.input([1, 8, 6, 6]), 0.05, 3)
    y = graph.node("Conv", x, graph.weight((8, 8, 3, 3), 0), pads=[1, 1, 1, 1])
    y = graph.quantize(y, 0.3, -5)
    mean = graph.quantize(graph.node("GlobalAveragePool", x), 0.05, 3)
    graph.output(graph.quantize(graph.node("Add", y, mean), 0.4, 0))
    with XnnCpuBackend().compile(
        Bundle({"main": graph.model()}), narrowpass.CompileOptions(cache=False)
    ) as program:
        (kernel,) = [plan.kernel for plan in program.explain() if plan.op_type == "Add"]
    assert kernel == "xnn add int8"


def test_dimensions_of_one_name_may_differ():
    """Only those of inputs surely do not: a batch of one is added to each of the other operand."""
    graph = QdqGraph(3)
    sizes = graph.constant(np.int64([2, 1]))
    parts = graph.node("SplitToSequence", graph.input(["N", 8, 7, 9]), sizes)
    ends = [graph.node("SequenceAt", parts, graph.constant(np.int64(i))) for i in (0, 1)]
    x, other = (graph.quantize(end, 0.05, 3) for end in ends)
    y = graph.node("Conv", x, graph.weight((8, 8, 3, 3), 0), pads=[1, 1, 1, 1])
    short = graph.node("Conv", other, graph.weight((8, 8, 1, 1), 0))
    short = graph.node("Abs", graph.quantize(short, 0.2, 7))
    total = graph.node("Add", graph.quantize(y, 0.3, -5), graph.quantize(short, 0.2, 7))
    graph.output(graph.quantize(total, 0.4, 0))
    model = graph.model()
    for node in model.graph:
        if node.op_type == "SequenceAt":
            node.outputs[0].dtype = ir.DataType.FLOAT
            node.outputs[0].shape = ir.Shape(["n", 8, 7, 9])
    feeds = {"x": np.random.default_rng(1).standard_normal((3, 8, 7, 9)).astype(np.float32)}
    assert set(off_by(model, feeds)) <= {0, 1}
    quantized = [n.outputs[0].name or "" for n in model.graph if n.op_type == "QuantizeLinear"]
    results = []
    for keep in ((), tuple(quantized)):
        # What is kept is computed by itself.
        options = narrowpass.CompileOptions(keep=keep, cache=False, threads=1)
        with XnnCpuBackend().compile(Bundle({"main": model}), options) as program:
            results += program.run(feeds).values()
    np.testing.assert_array_equal(*results)
