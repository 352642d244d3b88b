"""Operators with packed weights: what a session keeps, and what operators share of it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from int8_kernels_kit import bytes_of, convolve, requantize, run, scales_of

from narrowpass.errors import BackendError
from narrowpass_planning.plan.executor import Entry
from narrowpass_planning.weights.weight import Quantized, Weight
from narrowpass_xnn_cpu.native import target
from narrowpass_xnn_cpu.native.own import fp32, fp32_depthwise, int8, int8_convolution, int8_matmul
from narrowpass_xnn_cpu.native.own.gemv import reads_panel_width
from narrowpass_xnn_cpu.native.own.separable import Separable
from narrowpass_xnn_cpu.native.problems.convolution import ConvAttributes, Convolution, Offsets
from narrowpass_xnn_cpu.native.problems.matmul import Matmul, PerToken
from narrowpass_xnn_cpu.native.problems.quantization import AddS8, Quantization, Requantized
from narrowpass_xnn_cpu.native.runtime.pool import shared
from narrowpass_xnn_cpu.native.runtime.tape import Tape, aligned
from narrowpass_xnn_cpu.native.weights_cache import WeightsCache

REQUANTIZED = Requantized(Quantization(0.5, 3), Quantization(0.25, -7))
PADS = ConvAttributes((1, 1, 1, 1))


def int8_problem(seed, zeros=False):
    """Return an int8 convolution of 8 channels, and its kernel, bias, scales and zero points."""
    rng = np.random.default_rng(seed)
    kernel = bytes_of(rng, (70, 3, 3, 8), False, -127)
    bias = rng.integers(-5000, 5000, 70).astype(np.int32)
    scales = scales_of(rng, 70, 72)
    points = rng.integers(-9, 10, 70).astype(np.int8) if zeros else None
    stored = Quantized(
        Weight.of(kernel, "k"),
        Weight.of(scales, "s"),
        None if points is None else Weight.of(points, "z"),
        0,
    )
    problem = Convolution(stored, Weight.of(bias, "b"), PADS, REQUANTIZED)
    return problem, kernel, bias, scales, points


def in_each_way(create):
    """Return operators: packed in own memory, in a session, and found there by another one."""
    cache = WeightsCache()
    with cache.begin() as first:
        packed = create(first)
    with cache.begin() as second:
        found = create(second)
    assert (first.counts.packs, second.counts.packs, second.counts.hits) == (1, 0, 1)
    assert (packed.owner, found.owner) == (first, second)
    alone = create(None)
    assert alone.owner is not None
    return alone, packed, found


def image(shape, operator, x):
    """Run an operator of float32 on x."""
    tape = Tape([Entry(operator.call, (0,), 1, operator, operator.params, True, "image")], 2)
    given = aligned(x.nbytes)[: x.nbytes].view(np.float32)
    given[...] = x.reshape(-1)
    result = np.empty(shape, np.float32)
    tape.bind_workspace(aligned(operator.workspace), 0)
    tape.bind(0, given)
    tape.bind(1, result)
    tape.run(shared(1))
    return result


@pytest.mark.parametrize("zeros", [False, True], ids=["no zero points", "zero points"])
def test_int8_convolutions_are_the_same_wherever_they_are_packed(zeros):
    """Zero points of weights are no part of the packed bytes, but of the name."""
    problem, kernel, bias, scales, points = int8_problem(1, zeros)
    x = bytes_of(np.random.default_rng(2), (1, 5, 6, 8), False)
    around = kernel.astype(np.int64) - (0 if points is None else points[:, None, None, None])
    right = requantize(convolve(x, around, bias, PADS, 3), scales, REQUANTIZED)
    for operator in in_each_way(lambda s: int8_convolution.CONVOLUTION.create(problem, s)):
        assert operator.output_size(x.shape) == right.shape[1:3]
        assert operator.reshape(x.shape, shared(1)) == right.shape[1:3]
        assert (operator.params.weight_zeros != operator._ffi.NULL) == zeros
        np.testing.assert_array_equal(run(operator, x, right.shape, np.int8, 1), right)


def test_a_variant_has_the_packed_weights_of_its_operator():
    """With tensors at an offset of +128 where the processor has such a kernel."""
    problem, kernel, bias, scales, _ = int8_problem(3)
    cache = WeightsCache()
    with cache.begin() as session:
        operator = int8_convolution.CONVOLUTION.create(problem, session)
    assert operator.can_offset == operator.can_add == int8.layout().is_vnni
    changed = Offsets(operator.can_offset, operator.can_offset)
    variant = operator.variant(offsets=changed)
    assert (variant.packed, variant.owner) == (operator.packed, session)
    assert operator.problem.offsets == Offsets()
    assert (session.counts.packs, cache.packed_count) == (1, 1)
    x = bytes_of(np.random.default_rng(4), (2, 4, 4, 8), False)
    right = requantize(convolve(x, kernel, bias, PADS, 3), scales, REQUANTIZED)
    for each in (operator, variant, operator):
        turned = np.int8(-128 if each.problem.offsets.input else 0)
        each.reshape(x.shape, shared(1))
        found = run(each, x ^ turned, right.shape, np.int8, 1)
        np.testing.assert_array_equal(found ^ turned, right)


@pytest.mark.parametrize("layout", [int8.PAIRS, int8.VNNI], ids=["pairs", "vnni"])
def test_what_a_kernel_fuses_follows_from_the_layout(monkeypatch, layout):
    """Whatever the processor has: nothing runs here."""
    monkeypatch.setitem(target.OVERRIDES, "int8_group", layout.group)
    problem, *_ = int8_problem(5)
    operator = int8_convolution.CONVOLUTION.create(problem)
    assert operator.can_offset == operator.can_add == layout.is_vnni
    each = Quantization(0.5, 0), Quantization(0.25, 1), Quantization(0.5, 2)
    added = operator.variant(added=AddS8.of(*each, (-128, 127)))
    assert added.can_offset == layout.is_vnni
    assert not added.can_add, "there is one already"
    plain = dataclasses.replace(int8_convolution.CONVOLUTION, offsets=False, adds=False)
    assert not plain.create(problem).can_offset
    assert not plain.create(problem).can_add
    floats = fp32.CONVOLUTION.create(Convolution(Weight.of(np.ones((4, 1, 1, 4), np.float32))))
    assert not floats.can_offset
    assert not floats.can_add


def test_the_pixels_of_an_image_are_rows_of_a_matmul():
    """As a depthwise convolution is fused with a matmul; another number of channels is an error."""
    rng = np.random.default_rng(6)
    matrix, kernel = rng.standard_normal((5, 8)), rng.standard_normal((3, 3, 8))
    x = rng.standard_normal((1, 6, 7, 8))
    x, matrix, kernel = (each.astype(np.float32) for each in (x, matrix, kernel))
    inner = np.zeros((1, 4, 5, 8))
    for i in range(3):
        for j in range(3):
            inner += x[:, i : i + 4, j : j + 5].astype(np.float64) * kernel[i, j]
    right = inner @ matrix.T.astype(np.float64)
    depthwise = fp32_depthwise.DEPTHWISE.create(
        Convolution(Weight.of(kernel), None, ConvAttributes(groups=8), depthwise=True)
    )
    problem = Matmul(Weight.of(matrix, "m"))
    for project in in_each_way(lambda session: fp32.MATMUL.create(problem, session)):
        operator = Separable(None, depthwise, project)
        assert operator.reshape(x.shape, shared(1)) == (4, 5)
        found = image(right.shape, operator, x)
        np.testing.assert_allclose(found, right, rtol=0, atol=1e-5 * np.abs(right).max())
        with pytest.raises(BackendError, match="a matmul of 8 channels got 9"):
            project.reshape_image((1, 4, 5, 9), shared(1), 4)


def test_gemv_reads_some_matrices_that_a_gemm_has_packed():
    """Panels of float32 of widths that it knows; those of int8 of ours none."""
    rng = np.random.default_rng(7)
    for outputs in (8, 16, 40, 48, 64, 80, 96, 100, 128, 160):
        matrix = rng.standard_normal((outputs, 24)).astype(np.float32)
        with WeightsCache().begin() as session:
            operator = fp32.MATMUL.create(Matmul(Weight.of(matrix)), session)
        panels, gemv = operator.panels(), operator.gemv()
        assert (panels is None) == (gemv is None)
        assert panels is None or reads_panel_width(panels.layout.width)
        assert panels is None or panels.owner is session
        for each, rows in ((operator, 9), (gemv, 2)):
            if each is not None:
                x = rng.standard_normal((rows, 24)).astype(np.float32)
                each.reshape(rows, shared(1))
                right = x.astype(np.float64) @ matrix.T.astype(np.float64)
                found = image((rows, outputs), each, x)
                np.testing.assert_allclose(found, right, rtol=0, atol=1e-5 * np.abs(right).max())
    stored = Quantized(
        Weight.of(np.ones((40, 24), np.int8)), Weight.of(np.ones(40, np.float32)), None, 0
    )
    with WeightsCache().begin() as session:
        narrow = int8_matmul.PER_TOKEN.create(Matmul(stored, None, operand=PerToken()), session)
    assert narrow.form is int8.layout()
    assert narrow.panels() is None
    assert narrow.gemv() is None


@pytest.mark.parametrize("width", [None, 16], ids=["not read", "read"])
def test_panels_are_those_that_the_kernel_says(width):
    """Whatever the processor's panels are: nothing runs here."""
    layouts = {16: fp32.PanelLayout("NP_PANELS_F32", 16, 4, 4)}
    kernel = dataclasses.replace(fp32.MATMUL, panels=lambda problem, packing: layouts.get(width))
    operator = kernel.create(Matmul(Weight.of(np.ones((16, 8), np.float32))))
    panels = operator.panels()
    assert (operator.gemv() is None) == (panels is None) == (width is None)
    if panels is not None:
        assert panels.owner is operator.owner
        assert panels.layout is layouts[width]
