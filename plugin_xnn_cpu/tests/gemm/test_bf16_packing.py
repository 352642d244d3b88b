"""Packed weights of bfloat16: alike for all codes, found again, and not taken for others."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from narrowpass_planning.weights.weight import Weight
from narrowpass_xnn_cpu.native import kernels
from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.own import bf16
from narrowpass_xnn_cpu.native.problems.convolution import ConvAttributes, Convolution
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue
from narrowpass_xnn_cpu.native.problems.matmul import Matmul
from narrowpass_xnn_cpu.native.weights_cache import shared

SIZES = ((1, 1, 1, 1), (1, 16, 1, 8), (1, 17, 3, 5), (2, 33, 4, 3), (3, 70, 2, 6))


def packed(groups, outputs, runs, length, weights, bias):
    """Return the panels that C writes, as words."""
    ffi, lib = extension().ffi, extension().lib
    size = lib.np_bf16_packed_size(groups, outputs, runs, length)
    block = np.full(size // 4 + 8, 0xABABABAB, np.uint32)
    pointer = ffi.NULL if bias is None else ffi.from_buffer(bias)
    lib.np_bf16_pack(
        groups, outputs, runs, length, ffi.from_buffer(weights), pointer, ffi.from_buffer(block)
    )
    assert (block[-8:] == 0xABABABAB).all()
    return block[:-8]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("has_bias", [False, True])
def test_layout_of_panels(sizes, has_bias):
    """A panel has the bias and then, for each pair of a run, two weights of each column."""
    groups, outputs, _, length = sizes
    rng = np.random.default_rng(0)
    weights = rng.integers(1, 1 << 16, sizes, np.uint16)
    bias = rng.standard_normal(groups * outputs).astype(np.float32) if has_bias else None
    expected = []
    even = np.pad(weights, [(0, 0)] * 3 + [(0, length % 2)]).astype(np.uint32)
    pairs = (even[..., 0::2] | even[..., 1::2] << 16).reshape(groups, outputs, -1)
    for group in range(groups):
        for first in range(0, outputs, 32):
            columns = min(32, outputs - first)
            width = 32 if columns > 16 else 16
            panel = np.zeros((1 + pairs.shape[2], width), np.uint32)
            if bias is not None:
                own = bias[group * outputs + first :][:columns]
                panel[0, :columns] = own.view(np.uint32)
            panel[1:, :columns] = pairs[group, first : first + columns].T
            expected.append(panel.reshape(-1))
    np.testing.assert_array_equal(packed(*sizes, weights, bias), np.concatenate(expected))


def weight(*shape, name="weights"):
    array = np.ones(shape, ml_dtypes.bfloat16)
    return Weight.of(array, name)


def test_packed_weights_are_shared_by_all_instruction_sets(monkeypatch):
    with shared().begin() as session:
        for target in kernels.TARGETS:
            monkeypatch.setattr(kernels, "TARGET", target)
            bf16.MATMUL.create(Matmul(weight(40, 30), None, Epilogue()), session)
        assert session.counts.hits == len(kernels.TARGETS) - 1
        # A matmul shares the packing of a 1x1 convolution, not of one with another kernel shape.
        bf16.CONVOLUTION.create(Convolution(weight(40, 2, 3, 5), None, ConvAttributes()), session)
        bf16.CONVOLUTION.create(Convolution(weight(40, 3, 2, 5), None, ConvAttributes()), session)
        bf16.CONVOLUTION.create(
            Convolution(weight(40, 1, 1, 30), None, ConvAttributes(groups=2)), session
        )
        assert session.counts.hits == len(kernels.TARGETS) - 1
