"""Rows of the kernel table for convolutions, XNNPACK's kernels and ours, with measurements.

Float32
-------
On AVX2, XNNPACK computes all convolutions, kernel windows of 1 x 1 too, with a 5 x 16 micro-kernel.
The bundled build spills one of its ten accumulators to the stack: each step of K waits for a store
and a load. The micro-kernel of its matmuls spills none, nor does ours, of 6 x 16.
Billions of multiplications and additions a second on one core of a Zen 3 at 3.2 GHz, whose peak is
103 ("by 2" is the stride):

===========================================  =======  ====
convolution                                  XNNPACK  here
===========================================  =======  ====
3 x 3 of 56 x 56, 64 to 64 channels               35    75
3 x 3 of 14 x 14, 256 to 256 channels             33    67
3 x 3 by 2 of 56 x 56, 128 to 128 channels        32    66
1 x 1 by 2 of 56 x 56, 256 to 512 channels        31    67
7 x 7 by 2 of 224 x 224, 3 to 64 channels         31    65
1 x 1 of 56 x 56, 256 to 64 channels, matmul      32    89
1 x 1 of 14 x 14, 1024 to 256 channels, matmul    33    87
===========================================  =======  ====

On AVX-512 its micro-kernel is 7 x 16, with 8 loads for 7 FMA instructions; ours are 8 x 48 and 6 x
64, with 11 and 10 loads for 24. The same on one core of an Ice Lake server at 2.8 GHz, whose peak
is about 167 (`benchmarks/kernels/fp32_kernels.py`; medians by processor time, on a machine with
other work to do):

===========================================  =======  ====
convolution                                  XNNPACK  here
===========================================  =======  ====
3 x 3 of 56 x 56, 64 to 64 channels              111   120
3 x 3 of 14 x 14, 256 to 256 channels            105   130
3 x 3 of 7 x 7, 512 to 512 channels               75   128
1 x 1 of 56 x 56, 256 to 64 channels              87   121
7 x 7 by 2 of 224 x 224, 3 to 64 channels         78   115
3 x 3 by 2 of 224 x 224, 3 to 32 channels         69    59
===========================================  =======  ====

Convolutions of 3 x 3 with stride 1 may be computed by Winograd's algorithm: see `winograd`.

Depthwise convolutions have other kernels (`benchmarks/kernels/fp32_depthwise.py`), which take at
most the time of XNNPACK's but with kernels of 3 x 3 and a stride of 2 on AVX2: there XNNPACK's take
0.7 to 0.9 of the time, and are used for images of more than 14 columns unless the epilogue is more
than a clamp. XNNPACK has kernels for 3, 4, 9 and 25 taps only; with others, such as 7 x 7, it takes
15 to 50 times as long. XNNPACK's are used on SSE4, and with several outputs for each channel.
XNNPACK's kernels for Neon are near the peak of the processor.

Where NARROWPASS_ISA names `plain`, ours are used though they are slow, for they round as FMA does.

Bfloat16
--------
Our kernel is used with AVX512-BF16, which multiplies pairs of bfloat16 at twice the rate of
float32. Elsewhere weights are upcast to float32 when they are packed: rounding inputs would lose
accuracy and gain no speed. So are those of depthwise convolutions, which are bound by reading
inputs.

Int8
----
XNNPACK's kernels and ours accept the same problems, and their accumulators are exact. On processors
with AVX2 and nothing newer, XNNPACK extends both operands to int16 in the inner loop; ours extends
the input once, and MR is twice as large. On those with AVX-512 and VNNI both multiply bytes in
K-groups of 4, and MR of ours is twice as large too. Billions of operations a second on one core,
and the speedup over XNNPACK (``benchmarks/kernels/int8_kernels.py``): on a Zen 3 at 3.2 GHz, whose
peak with pairs of int16 is 163, and on an Ice Lake at 2.8 GHz, whose peak with VNNI is 600.
Winograd convolution can exceed the peak.

============================================  ====  =====  ====  =====
kernel                                        Zen 3        Ice Lake
============================================  ====  =====  ====  =====
3 x 3 of 56 x 56, 64 to 64 channels            259    2.5   565    1.3
3 x 3 of 14 x 14, 256 to 256 channels          291    2.6   610    1.4
3 x 3 by 2 of 56 x 56, 128 to 128 channels     151    1.4   558    1.3
1 x 1 of 56 x 56, 256 to 64 channels           141    1.4   370    1.1
1 x 1 of 14 x 14, 1024 to 256 channels         153    1.4   560    1.3
7 x 7 by 2 of 224 x 224, 3 to 64 channels      134    5.4   408    3.9
3 x 3 of 56 x 56, 144 channels, depthwise       32    2.1    83    3.2
============================================  ====  =====  ====  =====

Elsewhere XNNPACK's kernels are used; those for ARM have dot products of int8.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from narrowpass_planning.weights.weight import Quantized
from narrowpass_xnn_cpu.native.own import (
    bf16,
    fp32,
    fp32_depthwise,
    fp32_winograd,
    int8_convolution,
    int8_depthwise,
    int8_winograd,
)
from narrowpass_xnn_cpu.native.own.packed import ConvolutionKernel, PackedConvolution
from narrowpass_xnn_cpu.native.problems.convolution import ConvAttributes, Convolution, Image
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue
from narrowpass_xnn_cpu.native.problems.quantization import (
    Quantization,
    Requantized,
    zero_points,
)
from narrowpass_xnn_cpu.native.table import winograd
from narrowpass_xnn_cpu.native.table.row import Row, evaluate_rows
from narrowpass_xnn_cpu.native.target import Target
from narrowpass_xnn_cpu.native.xnnpack import convolution as xnnpack
from narrowpass_xnn_cpu.native.xnnpack.convolution import XnnConvolution

_SMALL_IMAGE = 14
"""Columns of an image for which most of a depthwise convolution's time goes to its borders."""

_FLOAT, _BF16 = "float32 x float32", "float32 x bfloat16"
_INT8, _DYNAMIC = "int8 x int8 -> int8", "dynamic int8 x int8"


def _tile(tile: int) -> Callable[[Convolution, Target], str]:
    def reject_reason(problem: Convolution, target: Target) -> str:
        if not target.fp32_lanes:
            return xnnpack_is_faster(target)
        if not problem.winograd:
            return "Winograd's algorithm is switched off"
        best = winograd.tile_for(
            problem.shape, problem.attributes, problem.image, target.fp32_packing
        )
        return "" if best == tile else f"tiles of {best} are faster" if best else "it does not pay"

    return reject_reason


def xnnpack_is_faster(target: Target) -> str:
    """Return the reason to reject our kernels of float32 on a processor without code for them."""
    return f"XNNPACK's is faster on {target.level}"


def _direct(problem: Convolution, target: Target) -> str:
    return "" if target.fp32_lanes else xnnpack_is_faster(target)


def depthwise_reject_reason(
    kernel: Sequence[int],
    attributes: ConvAttributes,
    epilogue: Epilogue,
    image: Image | None,
    target: Target,
) -> str:
    """Return why XNNPACK's depthwise kernel is used for this shape; empty if ours is.

    On AVX2, XNNPACK's is faster for 3 x 3 with a stride of 2, except for small images.
    """
    if kernel[-1] != attributes.groups:
        return "several outputs for each channel"
    if not target.fp32_lanes:
        return xnnpack_is_faster(target)
    if target.fp32_lanes >= 16 or not target.has_fma or not epilogue.is_clamp:
        return ""
    small = image is not None and image[2] is not None and image[2] <= _SMALL_IMAGE
    strided = tuple(kernel[:2]) == (3, 3) and tuple(attributes.strides) == (2, 2)
    return "3 x 3 with a stride of 2 on AVX2" if strided and not small else ""


def is_pixel_matmul(
    kernel_size: tuple[int, int], attributes: ConvAttributes, target: Target
) -> bool:
    """Return whether a convolution is computed as a GEMM over its pixels: 1 x 1 without stride."""
    padded_or_strided = any(attributes.pads) or max(attributes.strides) > 1
    pointwise = kernel_size == (1, 1) and attributes.groups == 1 and not padded_or_strided
    return pointwise and target.has_fp32_gemm


def fuses_epilogue(
    dtype: np.dtype[Any],
    attributes: ConvAttributes,
    outputs: int,
    target: Target,
    *,
    depthwise: bool,
) -> bool:
    """Return whether the kernel of a convolution with weights of `dtype` fuses all epilogues."""
    if bf16_is_own(dtype, target, depthwise=depthwise):
        return True
    return target.has_fp32_gemm and (not depthwise or outputs == attributes.groups)


def bf16_is_own(dtype: np.dtype[Any], target: Target, *, depthwise: bool) -> bool:
    """Return whether bfloat16 weights stay bfloat16; they are upcast when packed otherwise."""
    return dtype == ml_dtypes.bfloat16 and target.has_bf16_dot and not depthwise


def _int8_kernel(
    kernel: Quantized, attributes: ConvAttributes, target: Target, *, depthwise: bool
) -> ConvolutionKernel | None:
    """Return our int8 kernel of a convolution if it has K-groups of 4 (VNNI); else None."""
    same = Requantized(Quantization(1.0, 0), Quantization(1.0, 0))
    problem = Convolution(kernel, None, attributes, same, depthwise=depthwise)
    found = next(
        each.row
        for each in evaluate_rows(ROWS, problem.kind, problem, target)
        if not each.reject_reason
    )
    own = found.kernel
    vnni = target.int8_group == 4
    return own if vnni and isinstance(own, ConvolutionKernel) else None


def stores_offsets(
    kernel: Quantized, attributes: ConvAttributes, target: Target, *, depthwise: bool
) -> bool:
    """Return whether an int8 convolution reads and writes bytes stored with an offset of +128."""
    found = _int8_kernel(kernel, attributes, target, depthwise=depthwise)
    return found is not None and found.offsets


def adds_residual_int8(kernel: Quantized, attributes: ConvAttributes, target: Target) -> bool:
    """Return whether an int8 convolution can fuse the Add of a residual."""
    found = _int8_kernel(kernel, attributes, target, depthwise=False)
    return found is not None and found.adds


def _depthwise(problem: Convolution, target: Target) -> str:
    epilogue, image = problem.epilogue, problem.image
    return depthwise_reject_reason(problem.shape, problem.attributes, epilogue, image, target)


def _without_bf16_dot(problem: Convolution, target: Target) -> str:
    return "" if target.has_bf16_dot else "no AVX512-BF16"


def _has_weight_zeros(problem: Convolution) -> bool:
    """Return whether weights have zero points, which XNNPACK's kernels do not support."""
    kernel = problem.kernel
    outputs = problem.shape[-1 if problem.depthwise else 0]
    return isinstance(kernel, Quantized) and zero_points(kernel, outputs) is not None


def _int8(problem: Convolution, target: Target) -> str:
    if target.int8_is_own or _has_weight_zeros(problem):
        return ""
    return f"it is not known to be faster on {target.level}"


def _int8_winograd(problem: Convolution, target: Target) -> str:
    if target.int8_group == 4:
        return "VNNI multiplies faster than tiles are transformed"
    if _has_weight_zeros(problem):
        return "weights have zero points"
    if not winograd.pays_for_int8(problem):
        return "it does not pay"
    return _int8(problem, target)


def _int8_depthwise(problem: Convolution, target: Target) -> str:
    if problem.shape[-1] != problem.attributes.groups:
        return "several outputs for each channel"
    return _int8(problem, target)


def _int8_vnni(problem: Convolution, target: Target) -> str:
    if target.int8_group != 4:
        return "no VNNI"
    if _has_weight_zeros(problem):
        return "weights minus zero points need int16"
    return _int8_depthwise(problem, target)


_PANELS = "panels of 16 to 64 columns"
_NHWC = "XNNPACK's"
_TAPS = "blocks of channels by taps"
_VECTOR = "AVX2, AVX-512, plain"

ConvolutionRow = Row[Convolution, PackedConvolution | XnnConvolution]

ROWS: tuple[ConvolutionRow, ...] = (
    *(
        Row[Convolution, PackedConvolution | XnnConvolution](
            "convolution",
            _FLOAT,
            fp32_winograd.BY_TILE[tile],
            f"transformed tiles, {_PANELS}",
            f"{_VECTOR}; 3 x 3 of stride 1 where the cost model finds {tile} x {tile} fastest",
            f"{less} times fewer multiplications; weights take {memory} times the memory",
            _tile(tile),
            may_be_unfit=True,
        )
        for tile, less, memory in ((4, "4", "4"), (2, "2.25", "1.8"))
    ),
    Row(
        "convolution",
        _FLOAT,
        fp32.CONVOLUTION,
        _PANELS,
        _VECTOR,
        "2.0 to 2.2 times as fast as XNNPACK on a Zen 3, 0.9 to 1.7 times on an Ice Lake",
        _direct,
    ),
    Row("convolution", _FLOAT, xnnpack.CONVOLUTION, _NHWC, "elsewhere", "near the limit of Neon"),
    Row(
        "depthwise",
        _FLOAT,
        fp32_depthwise.DEPTHWISE,
        _TAPS,
        f"{_VECTOR}; on AVX2 not 3 x 3 of stride 2 over more than 14 columns that only clamp",
        "at most XNNPACK's time; 15 to 50 times as fast for other than 3, 4, 9 and 25 taps",
        _depthwise,
    ),
    Row(
        "depthwise",
        _FLOAT,
        xnnpack.CONVOLUTION,
        _NHWC,
        "elsewhere",
        "3 x 3 of stride 2 takes 0.7 to 0.9 of our time on AVX2",
    ),
    Row("transposed", _FLOAT, xnnpack.DECONVOLUTION, _NHWC, "everywhere", "no other kernel"),
    Row(
        "convolution",
        _BF16,
        bf16.CONVOLUTION,
        "panels of 32 columns, by pairs",
        "AVX512-BF16",
        "pairs are multiplied at twice the rate of float32",
        _without_bf16_dot,
    ),
    Row(
        "convolution",
        _INT8,
        int8_winograd.WINOGRAD,
        "transformed tiles of int16, panels of 16 columns",
        "AVX2; 3 x 3 of stride 1, 32 channels and more, at most 2^17 weights a tap",
        "259 to 291 billion operations a second on a Zen 3, of 163 that are multiplied directly",
        _int8_winograd,
    ),
    Row(
        "convolution",
        _INT8,
        int8_convolution.CONVOLUTION,
        "panels of 16 columns by pairs, with VNNI of 64 by K-groups of 4",
        "AVX2, AVX-512 with VNNI; anywhere with zero points of weights",
        "1.4 to 5.4 times as fast as XNNPACK on a Zen 3, 1.1 to 3.9 times on an Ice Lake",
        _int8,
    ),
    Row(
        "convolution",
        _INT8,
        xnnpack.CONVOLUTION_S8,
        _NHWC,
        "elsewhere",
        "for AVX-512 alone ours has the code of AVX2; that for ARM multiplies int8 as such",
    ),
    Row(
        "depthwise",
        _INT8,
        int8_depthwise.VNNI,
        "blocks of 64 channels, four taps side by side",
        "AVX-512 with VNNI",
        "3.2 times as fast as XNNPACK on an Ice Lake",
        _int8_vnni,
    ),
    Row(
        "depthwise",
        _INT8,
        int8_depthwise.PAIRS,
        "blocks of 16 channels, pairs of taps of int16",
        "AVX2; anywhere with zero points of weights",
        "2.1 times as fast as XNNPACK on a Zen 3",
        _int8_depthwise,
    ),
    Row(
        "depthwise",
        _INT8,
        xnnpack.CONVOLUTION_S8,
        _NHWC,
        "elsewhere, and with several outputs for each channel",
        "no other kernel",
    ),
    Row("transposed", _INT8, xnnpack.DECONVOLUTION_S8, _NHWC, "everywhere", "no other kernel"),
    Row(
        "convolution",
        _DYNAMIC,
        int8_convolution.CONVOLUTION,
        "panels of 16 columns by pairs, with VNNI of 64 by K-groups of 4",
        "everywhere",
        "no other kernel has scales that are computed",
    ),
)
