"""The kernel table: what it selects for this processor and others, and the page that shows it."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

from narrowpass.errors import BackendError
from narrowpass_planning.weights.weight import Quantized, Weight
from narrowpass_xnn_cpu.native import attention_params, isa, library, table, target
from narrowpass_xnn_cpu.native.own import (
    batched,
    bf16,
    fp32,
    fp32_depthwise,
    fp32_winograd,
    gemv,
    int8_convolution,
    int8_depthwise,
    int8_winograd,
    tiling,
)
from narrowpass_xnn_cpu.native.own import (
    int8 as own_int8,
)
from narrowpass_xnn_cpu.native.problems.convolution import ConvAttributes, Convolution
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue
from narrowpass_xnn_cpu.native.problems.matmul import Matmul
from narrowpass_xnn_cpu.native.problems.quantization import Quantization, Requantized
from narrowpass_xnn_cpu.native.table import Target, candidates, describe, select
from narrowpass_xnn_cpu.native.table.describe import samples
from narrowpass_xnn_cpu.native.xnnpack import convolution as xnn_convolution

PAGE = Path(__file__).parents[3] / "docs/explanation/fast-path/kernels.md"
SAME = Requantized(Quantization(1.0, 0), Quantization(1.0, 0))


def weight(*shape: int, dtype: type = np.float32) -> Weight:
    return Weight.of(np.ones(shape, dtype))


def int8(*shape: int, zero: int = 0) -> Quantized:
    zeros = Weight.of(np.array([zero], np.int8))
    return Quantized(weight(*shape, dtype=np.int8), weight(1), zeros, 0)


def test_the_page_shows_the_table():
    """Write it anew with `describe` where this fails."""
    _, shown = PAGE.read_text("utf-8").split("```text\n")
    assert shown == describe() + "```\n"


def test_selection_does_not_load_the_library(monkeypatch):
    def refuse():
        raise AssertionError("the library is loaded")

    monkeypatch.setattr(library, "_load", refuse)
    with pytest.raises(AssertionError, match="is loaded"):
        library.extension()
    for _, problem in samples():
        for level in isa.LEVELS:
            assert select(problem, Target.named(level)).dtypes == problem.dtypes


def test_the_target_is_the_level_in_use():
    level = isa.in_use(library.extension().lib)
    wide = isa.accumulates_float16_in_float32()
    expected = dataclasses.replace(Target.named(level), float16_accumulates_in_float32=wide)
    assert target.current() == expected
    assert target.current().fp32_lanes == library.extension().lib.np_fp32_lanes()


@pytest.mark.parametrize(
    ("level", "group", "lanes", "bf16"),
    [
        ("sse4", 2, 0, "plain"),
        pytest.param(
            *("plain", 2, 8, "plain"),
            marks=pytest.mark.skipif(
                not isa.is_x86(), reason="XNNPACK's kernels for Neon are used"
            ),
        ),
        ("avx2", 2, 8, "avx2"),
        ("avx512", 2, 16, "avx512"),
        ("avx512vnni", 4, 16, "avx512"),
        ("avx512bf16", 4, 16, "avx512bf16"),
        ("avx512amx", 4, 16, "avx512amx"),
    ],
)
def test_targets_by_name(level, group, lanes, bf16):
    found = Target.named(level)
    assert (found.int8_group, found.fp32_lanes, found.bf16_level) == (group, lanes, bf16)
    assert found.fp32_packing == max(8, lanes)
    # Code of fewer instructions packs as that does, and selects as the processor does.
    plain = Target.named(level, "plain")
    assert (plain.int8_group, plain.fp32_lanes, plain.fp32_packing) == (2, lanes, 8)


def test_reasons_are_named():
    strided = ConvAttributes((1, 1, 1, 1), (2, 2), groups=8)
    problem = Convolution(weight(3, 3, 8), None, strided, depthwise=True)
    own, other = candidates(problem, Target.named("avx2"))
    assert own.reject_reason == "3 x 3 with a stride of 2 on AVX2"
    assert not other.reject_reason
    fused = Convolution(weight(3, 3, 8), None, strided, Epilogue("silu"), depthwise=True)
    assert select(fused, Target.named("avx2")).kernel is fp32_depthwise.DEPTHWISE
    image = (1, 56, 56)
    plain = Convolution(weight(8, 3, 3, 8), None, ConvAttributes(), image=image, winograd=False)
    reasons = [each.reject_reason for each in candidates(plain, Target.named("avx2"))]
    assert reasons == ["Winograd's algorithm is switched off"] * 2 + ["", ""]
    reason = "XNNPACK's is faster on sse4"
    assert [str(each) for each in candidates(plain, Target.named("sse4"))] == [
        f"own winograd 4x4 convolution (NP_FP32_WINOGRAD): {reason}",
        f"own winograd 2x2 convolution (NP_FP32_WINOGRAD): {reason}",
        f"own convolution (NP_FP32_CONVOLUTION): {reason}",
        "xnnpack convolution (NP_CONVOLUTION): accepted",
    ]


def test_zero_points_of_weights_are_for_our_kernels():
    """XNNPACK's have none: ours compute on any processor."""
    for level in isa.LEVELS:
        shifted = Convolution(int8(16, 3, 3, 32, zero=3), None, ConvAttributes(), SAME)
        kernel = select(shifted, Target.named(level)).kernel
        assert kernel is int8_convolution.CONVOLUTION
    plain = Convolution(int8(16, 3, 3, 32), None, ConvAttributes(), SAME)
    assert select(plain, Target.named("avx512")).kernel is xnn_convolution.CONVOLUTION_S8


def test_problems_without_a_row_are_refused():
    problem = Convolution(weight(8, 1, 1, 8, dtype=np.float16))
    with pytest.raises(BackendError, match="float32 x float16"):
        select(problem, Target.named("avx2"))


def test_weights_that_overflow_are_computed_by_the_next_row(monkeypatch):
    """Winograd's transforms of them would: the direct kernel packs them."""
    monkeypatch.setitem(target.OVERRIDES, "fp32_lanes", 8)
    kernel = np.full((64, 3, 3, 64), 2.0**60, np.float32)
    problem = Convolution(Weight.of(kernel), None, ConvAttributes(), image=(1, 56, 56))
    assert select(problem, target.current()).kernel in fp32_winograd.BY_TILE.values()
    assert table.create_convolution(problem).kernel is fp32.CONVOLUTION


def test_the_created_kernel_is_the_selected_one():
    for _, problem in samples():
        row = select(problem, target.current())
        create = table.create_matmul if isinstance(problem, Matmul) else table.create_convolution
        if "BF16" not in row.kernel.call:  # XNNPACK does not have it everywhere
            assert create(problem).kernel is getattr(row.kernel, "kernel", row.kernel)


C_SOURCES = Path(__file__).parents[2] / "csrc"
NUMBERS = {
    ("attention/code.c", "MOST_ROWS"): attention_params._TILE,
    ("gemm/bf16/panel.h", "NP_BF16_COLUMNS"): bf16.NR,
    ("gemm/int8/panel.h", "NP_INT8_MR"): own_int8.MR,
    ("gemm/int8/panel.h", "NP_INT8_NR"): tiling.NR,
    ("gemm/int8/panel.h", "NP_INT8_TILE"): int8_winograd._ELEMENTS,
    ("gemm/int8/panel.h", "NP_INT8_VNNI_PIXEL"): int8_depthwise._VNNI_PIXEL,
    ("gemm/matmul/matmul.h", "NP_MATMUL_BATCH"): batched.BATCH,
    ("gemv/gemv.h", "NP_GEMV_MAX_ROWS"): gemv.MAX_ROWS,
}
"""Sizes of kernels that plans depend on, which need no library."""


@pytest.mark.parametrize(("file", "name"), NUMBERS)
def test_sizes_that_plans_depend_on_are_those_of_the_kernels(file, name):
    text = (C_SOURCES / file).read_text(encoding="utf-8")
    (number,) = re.findall(rf"^#define {name} (\d+)\b", text, re.MULTILINE)
    assert NUMBERS[file, name] == int(number)
