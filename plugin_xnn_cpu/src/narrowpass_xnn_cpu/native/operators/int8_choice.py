"""Which kernels compute with int8 here: XNNPACK's, or ours.

Both take the same arguments and sum exactly. On processors with AVX2 and nothing newer, XNNPACK
widens both operands in the inner loop; ours widens the input once, and a tile of it takes twice as
many rows. Windows of 3 x 3 that move by 1 need fewer multiplications here. On those with AVX-512
and VNNI both multiply bytes by fours, and the tile of ours has twice as many rows too.

Billions of operations a second on one core, and how many times as fast as XNNPACK that is
(``benchmarks/int8_kernels.py``): on a Zen 3 at 3.2 GHz, where products of int16 by pairs and their
sums reach 163 at most, and on an Ice Lake at 2.8 GHz, where those of bytes reach 600.

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
128 rows, 384 to 1536 channels                 149    1.4   546    1.4
1 row, 2048 to 1000 channels                    52    1.0    59    1.0
============================================  ====  =====  ====  =====

Elsewhere the kernels are XNNPACK's: those for ARM multiply int8 as such too.
"""

from __future__ import annotations

import functools

from narrowpass_planning.weights.weight import Quantized, Weight
from narrowpass_xnn_cpu.native import isa
from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.operators import tiled
from narrowpass_xnn_cpu.native.operators.base import UNBOUNDED, Range
from narrowpass_xnn_cpu.native.operators.convolution import Movement
from narrowpass_xnn_cpu.native.operators.int8 import Quantization, Requantized
from narrowpass_xnn_cpu.native.operators.int8_rows import FullyConnectedS8, FullyConnectedS8F32
from narrowpass_xnn_cpu.native.operators.int8_windows import ConvolutionS8
from narrowpass_xnn_cpu.native.operators.quantized import FullyConnectedInt8
from narrowpass_xnn_cpu.native.operators.tiled_convolution import TiledConvolutionS8
from narrowpass_xnn_cpu.native.operators.tiled_depthwise import TiledDepthwiseS8
from narrowpass_xnn_cpu.native.operators.tiled_product import (
    TiledFullyConnectedInt8,
    TiledFullyConnectedS8,
    TiledFullyConnectedS8F32,
)
from narrowpass_xnn_cpu.native.operators.tiled_winograd import (
    WinogradConvolutionS8,
    fits_winograd,
)
from narrowpass_xnn_cpu.native.operators.zero_points import zero_points
from narrowpass_xnn_cpu.native.weights_cache import Session

AnyConvolutionS8 = ConvolutionS8 | TiledConvolutionS8 | TiledDepthwiseS8 | WinogradConvolutionS8
AnyFullyConnectedS8 = FullyConnectedS8 | TiledFullyConnectedS8
AnyFullyConnectedS8F32 = FullyConnectedS8F32 | TiledFullyConnectedS8F32
AnyFullyConnectedInt8 = FullyConnectedInt8 | TiledFullyConnectedInt8


@functools.cache
def ours() -> bool:
    """Tell whether our kernels of int8 are the faster ones on this processor."""
    return isa.in_use(extension().lib) in {"avx2", "avx512vnni", "avx512bf16"}


def _takes(matrix: Quantized, transposed: bool) -> bool:
    """Tell whether our kernels multiply with a matrix: XNNPACK's take no zero points."""
    outputs = matrix.integers.shape[1 if transposed else 0]
    return ours() or zero_points(matrix, outputs) is not None


def convolution_s8(
    kernel: Quantized,
    bias: Weight | None,
    movement: Movement,
    requantized: Requantized,
    *,
    depthwise: bool = False,
    session: Session | None = None,
) -> AnyConvolutionS8:
    """Make a convolution of int8; see `ConvolutionS8`."""
    outputs = kernel.integers.shape[-1 if depthwise else 0]
    multiplied = depthwise and outputs != movement.groups
    shifted = zero_points(kernel, outputs) is not None
    if multiplied or not (ours() or shifted):
        return ConvolutionS8(
            kernel, bias, movement, requantized, depthwise=depthwise, session=session
        )
    if depthwise:
        return TiledDepthwiseS8(kernel, bias, movement, requantized, session=session)
    quads = tiled.layout() is tiled.QUADS
    fast = not quads and not shifted and fits_winograd(kernel, movement)
    kind = WinogradConvolutionS8 if fast else TiledConvolutionS8
    return kind(kernel, bias, movement, requantized, session=session)


def fully_connected_s8(
    matrix: Quantized,
    bias: Weight | None,
    requantized: Requantized,
    *,
    transposed: bool = False,
    session: Session | None = None,
) -> AnyFullyConnectedS8:
    """Make a product of int8 that gives int8; see `FullyConnectedS8`."""
    kind = TiledFullyConnectedS8 if _takes(matrix, transposed) else FullyConnectedS8
    return kind(matrix, bias, requantized, transposed=transposed, session=session)


def fully_connected_s8_f32(
    matrix: Quantized,
    bias: Weight | None,
    given: Quantization,
    limits: Range = UNBOUNDED,
    *,
    transposed: bool = False,
    session: Session | None = None,
) -> AnyFullyConnectedS8F32:
    """Make a product of int8 that gives float32; see `FullyConnectedS8F32`."""
    kind = TiledFullyConnectedS8F32 if _takes(matrix, transposed) else FullyConnectedS8F32
    return kind(matrix, bias, given, limits, transposed=transposed, session=session)


def fully_connected_int8_rows(
    matrix: Quantized,
    bias: Weight | None,
    limits: Range = UNBOUNDED,
    *,
    transposed: bool = False,
    session: Session | None = None,
) -> AnyFullyConnectedInt8:
    """Make a product of rows that are quantized each by its range; see `FullyConnectedInt8`."""
    if _takes(matrix, transposed):
        return TiledFullyConnectedInt8(matrix, bias, limits, transposed=transposed, session=session)
    return FullyConnectedInt8(
        matrix, bias, limits, transposed=transposed, rows_too=True, session=session
    )
