"""What our kernels of int8 share: the layouts of packed weights, and the constants of a problem.

Results are the same bytes as XNNPACK's: accumulators of int32, times one float32 factor for each
output, rounded to even and clamped.

Zero points of weights are taken away from the accumulators. With activations a and weights w, of
zero points z and v, ``sum((a - z) * (w - v))`` is ``sum((a - z) * w) - v * sum(a - z)``: the second
term is one number for each row times one for each column, so that weights stay bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from narrowpass.errors import BackendError
from narrowpass_planning.weights.weight import Array, Quantized
from narrowpass_xnn_cpu.native import target
from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.operator import Fields
from narrowpass_xnn_cpu.native.own.packed import Packing
from narrowpass_xnn_cpu.native.own.tiling import COLUMNS
from narrowpass_xnn_cpu.native.problems.bounds import checked_weights
from narrowpass_xnn_cpu.native.problems.convolution import Convolution, Dynamic
from narrowpass_xnn_cpu.native.problems.quantization import (
    Quantization,
    Requantized,
    check_terms,
    checked_integers,
    checked_scales,
    requantizing,
)

ROWS = 6
"""Of the largest tile of pairs: NP_INT8_ROWS."""
BAND_BYTES = 1 << 17
"""What a thread widens at a time; beside a panel of weights it stays in L2."""
_ORDER = (0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15)
"""The columns of a panel of pairs: np_int8_order."""
_BEHIND = 64
"""Columns that kernels may read behind the last: of the widest tile."""


@dataclass(frozen=True)
class Layout:
    """How packed weights of int8 lie, and what is multiplied with them; see ``gemm/int8/panel.h``.

    Attributes:
        name: of the layout, as it stands in names of packed weights.
        element: bytes of what is multiplied.
        group: elements that are multiplied and added at a time: the K-group.
        rows: of the largest tile (MR).
        columns: of the widest one (NR).
        band_bytes: what a thread brings into this form at a time; beside a panel of weights it
            stays in L2.
    """

    name: str
    element: int
    group: int
    rows: int
    columns: int
    band_bytes: int

    def groups(self, elements: int) -> int:
        """Return the groups that so many elements take."""
        return -(-elements // self.group)


PAIRS = Layout("pairs", 2, 2, ROWS, COLUMNS, BAND_BYTES)
"""Of int16 by K-groups of 2, for processors that multiply these and add them by twos."""
QUADS = Layout("quads", 1, 4, 14, 64, 3 << 16)
"""Of bytes, 4-way interleaved, for processors with VNNI."""


def layout() -> Layout:
    """Return the layout of operators that are created now."""
    return QUADS if target.current().int8_group == QUADS.group else PAIRS


def packers(form: Layout) -> tuple[Callable[..., int], Callable[..., None]]:
    """Return the functions of C that report how large packed weights are, and pack them."""
    lib = extension().lib
    return partial(lib.np_int8_packed_size, form.group), partial(lib.np_int8_pack, form.group)


def in_panels(zeros: Array, groups: int, form: Layout) -> Array:
    """Return zero points in the order in which panels have their columns: int32 [groups, n]."""
    each = zeros.reshape(groups, -1)
    count = each.shape[1]
    found = np.zeros((groups, -(-count // _BEHIND) * _BEHIND + _BEHIND), np.int32)
    found[:, :count] = each
    if form is PAIRS:
        for first in range(0, count, COLUMNS):
            if count - first > COLUMNS // 2:
                panel = found[:, first : first + COLUMNS]
                found[:, first : first + COLUMNS] = panel[:, _ORDER]
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
        parameters: what the packed bytes follow from beside the constants.
        terms: of an accumulator.
        size: bytes of what is packed.
        write: packs.
        form: the layout.
        zeros: zero points of the weights, where the kernel corrects for them.
        panel_zeros: the same in the order of the panels.

    Raises:
        UnfitError: constants that cannot be computed with exactly.
    """
    kernel, result = checked_int8(problem)
    check_terms(terms, "weights", zeros)
    outputs = problem.windows.outputs
    integers = checked_integers(kernel.integers)
    axis = 2 if problem.depthwise else 0
    scales = checked_scales(kernel, outputs, axis, zeros=zeros is not None)
    dynamic = isinstance(result, Dynamic)
    checked_weights(integers, problem.bias, outputs, "int8", "float32" if dynamic else "int32")
    factors = scales if isinstance(result, Dynamic) else requantizing(scales, result)
    return Packing(parameters, integers, problem.bias, factors, size, write, form, panel_zeros)


def checked_int8(problem: Convolution) -> tuple[Quantized, Requantized | Dynamic]:
    """Check what is known of a convolution of int8 without its elements; return its constants."""
    kernel, result = problem.kernel, problem.result
    if not isinstance(kernel, Quantized) or not isinstance(result, Requantized | Dynamic):
        raise BackendError(f"a convolution of {problem.dtypes} is not one of int8")
    problem.movement.check()
    if isinstance(result, Requantized):
        result.check()
    return kernel, result


def requantization(problem: Convolution) -> Fields:
    """Return the fields of how accumulators become int8."""
    _, result = checked_int8(problem)
    if isinstance(result, Dynamic):
        result = Requantized(result.given, Quantization(1.0, 0))
    low, high = result.limits
    return {
        "in_zero": result.given.zero_point,
        "out_zero": result.made.zero_point,
        "low": low,
        "high": high,
    }
