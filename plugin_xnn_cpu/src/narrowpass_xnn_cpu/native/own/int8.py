"""What our int8 kernels have in common: layouts of packed weights, and packing of the constants.

Results are the same bytes as XNNPACK's: int32 accumulators are multiplied by one float32 factor for
each output channel, rounded to nearest even, and clamped.

Zero points of weights are subtracted from the accumulators. With activations a and weights w, of
zero points z and v, ``sum((a - z) * (w - v))`` is ``sum((a - z) * w) - v * sum(a - z)``: the second
term is one number for each row times one for each column, so that weights stay bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from narrowpass.errors import BackendError
from narrowpass_planning.weights.weight import Array, Quantized
from narrowpass_xnn_cpu.native import target
from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.operator import Fields
from narrowpass_xnn_cpu.native.own.packed import Packing
from narrowpass_xnn_cpu.native.own.tiling import NR
from narrowpass_xnn_cpu.native.problems.bounds import checked_weights
from narrowpass_xnn_cpu.native.problems.convolution import Convolution, DynamicScales
from narrowpass_xnn_cpu.native.problems.quantization import (
    Quantization,
    Requantized,
    check_accumulator_headroom,
    checked_integers,
    checked_scales,
    requantization_factors,
)

MR = 6
"""Rows of the largest micro-kernel of pairs: NP_INT8_MR."""
ROW_TILE_BYTES = 1 << 17
"""Bytes of image rows that a thread converts to int16 at a time: with a panel of weights in L2."""
_ORDER = (0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15)
"""The order of columns within a panel of pairs: np_int8_order."""
_OVERREAD = 64
"""Columns that kernels may read after the last one: NR of the widest micro-kernel."""


@dataclass(frozen=True)
class Layout:
    """The layout of packed int8 weights and of the rows of A; see ``gemm/int8/panel.h``.

    Attributes:
        name: of the layout, which is part of the names of packed weights.
        element: bytes of an operand's element.
        group: the K-group: consecutive elements of K that one instruction multiplies and adds.
        mr: rows of the largest micro-kernel.
        nr: columns of the widest micro-kernel.
        row_tile_bytes: bytes of A that a thread converts at a time; with a panel of weights they
            stay in L2.
    """

    name: str
    element: int
    group: int
    mr: int
    nr: int
    row_tile_bytes: int

    @property
    def is_vnni(self) -> bool:
        """Whether it is the 4-way interleaved layout."""
        return self.group == 4

    def groups(self, elements: int) -> int:
        """Return the number of K-groups of so many elements."""
        return -(-elements // self.group)


PAIRS = Layout("pairs", 2, 2, MR, NR, ROW_TILE_BYTES)
"""int16 in K-groups of 2, which ``vpmaddwd`` of AVX2 multiplies."""
VNNI = Layout("vnni", 1, 4, 14, 64, 3 << 16)
"""Bytes, 4-way interleaved (K-groups of 4), which ``vpdpbusd`` of VNNI multiplies."""
AMX = replace(VNNI, mr=32, row_tile_bytes=1 << 19)
"""The same bytes, which ``tdpbusd`` of AMX multiplies by 32 rows; such cores have 2 MB of L2."""


def layout() -> Layout:
    """Return the layout for the target that kernels are selected for."""
    found = target.current()
    if found.int8_group != VNNI.group:
        return PAIRS
    return AMX if found.has_amx else VNNI


def packers(form: Layout) -> tuple[Callable[..., int], Callable[..., None]]:
    """Return the C functions that compute the packed size and that pack."""
    lib = extension().lib
    return partial(lib.np_int8_packed_size, form.group), partial(lib.np_int8_pack, form.group)


def in_panel_order(zeros: Array, groups: int, form: Layout) -> Array:
    """Return zero points in the order of columns within panels: int32 [groups, n]."""
    each = zeros.reshape(groups, -1)
    count = each.shape[1]
    found = np.zeros((groups, -(-count // _OVERREAD) * _OVERREAD + _OVERREAD), np.int32)
    found[:, :count] = each
    if form is PAIRS:
        for first in range(0, count, NR):
            if count - first > NR // 2:
                panel = found[:, first : first + NR]
                found[:, first : first + NR] = panel[:, _ORDER]
    return found


def packing(
    problem: Convolution,
    parameters: object,
    terms: int,
    size: int,
    write: Callable[..., None],
    form: Layout | None = None,
    zeros: Array | None = None,
    panel_zeros: Array | None = None,
) -> Packing:
    """Return how the constants of a convolution are packed.

    Args:
        problem: the convolution.
        parameters: everything beside the constants that determines the packed bytes.
        terms: number of terms of an accumulator, K.
        size: bytes of the packed weights.
        write: packs; see `Packing.write`.
        form: the layout.
        zeros: zero points of the weights, where the kernel corrects for them.
        panel_zeros: the same in the order of columns within panels.

    Raises:
        UnfitError: constants for which the kernel would not be exact.
    """
    kernel, result = checked_int8(problem)
    check_accumulator_headroom(terms, "weights", zeros)
    outputs = problem.geometry.outputs
    integers = checked_integers(kernel.integers)
    axis = 2 if problem.depthwise else 0
    scales = checked_scales(kernel, outputs, axis, zeros=zeros is not None)
    dynamic = isinstance(result, DynamicScales)
    checked_weights(integers, problem.bias, outputs, "int8", "float32" if dynamic else "int32")
    factors = (
        scales if isinstance(result, DynamicScales) else requantization_factors(scales, result)
    )
    return Packing(parameters, integers, problem.bias, factors, size, write, form, panel_zeros)


def checked_int8(problem: Convolution) -> tuple[Quantized, Requantized | DynamicScales]:
    """Check an int8 convolution, but not the elements of its weights; return kernel and result."""
    kernel, result = problem.kernel, problem.result
    if not isinstance(kernel, Quantized) or not isinstance(result, Requantized | DynamicScales):
        raise BackendError(f"a convolution of {problem.dtypes} is not one of int8")
    problem.attributes.check()
    if isinstance(result, Requantized):
        result.check()
    return kernel, result


def requantization(problem: Convolution) -> Fields:
    """Return the fields of requantization: zero points and clipping range."""
    _, result = checked_int8(problem)
    if isinstance(result, DynamicScales):
        result = Requantized(result.input, Quantization(1.0, 0))
    low, high = result.limits
    return {
        "in_zero": result.input.zero_point,
        "out_zero": result.output.zero_point,
        "low": low,
        "high": high,
    }
