"""Which kernels compute products and convolutions of float32: XNNPACK's, or ours.

On AVX2, XNNPACK computes all convolutions, windows of 1 x 1 too, with a tile of 5 x 16. In the
build that is bundled, it keeps one of its ten accumulators in memory: each step waits for a store
and a load. The tile of its matmuls has all of them in registers, and so has ours, of 6 x 16.
Billions of operations a second on one core of a Zen 3 at 3.2 GHz, of 103 that there are:

===========================================  =======  ====
convolution                                  XNNPACK  here
===========================================  =======  ====
3 x 3 of 56 x 56, 64 to 64 channels               35    75
3 x 3 of 14 x 14, 256 to 256 channels             33    67
3 x 3 by 2 of 56 x 56, 128 to 128 channels        32    66
1 x 1 by 2 of 56 x 56, 256 to 512 channels        31    67
7 x 7 by 2 of 224 x 224, 3 to 64 channels         31    65
1 x 1 of 56 x 56, 256 to 64 channels, product     32    89
1 x 1 of 14 x 14, 1024 to 256 channels, prod.     33    87
===========================================  =======  ====

On AVX-512 its tiles are 7 x 16 and load 8 registers for 7 that they multiply; ours are 8 x 48 and
6 x 64 and load 11 or 10 for 24. The same on one core of an Ice Lake server at 2.8 GHz, of about 167
(`benchmarks/fp32_kernels.py`; medians by processor time, on a machine with other work to do):

===========================================  =======  ====
product or convolution                       XNNPACK  here
===========================================  =======  ====
128 rows, 768 to 768                              88   135
128 rows, 768 to 3072                             80   138
128 rows, 3072 to 768                             80   133
197 rows, 768 to 768                              94   142
8 rows, 768 to 3072                               20    40
1 row, 768 to 3072 (18 GB/s)                       9     9
3 x 3 of 56 x 56, 64 to 64 channels              111   120
3 x 3 of 14 x 14, 256 to 256 channels            105   130
3 x 3 of 7 x 7, 512 to 512 channels               75   128
1 x 1 of 56 x 56, 256 to 64 channels              87   121
7 x 7 by 2 of 224 x 224, 3 to 64 channels         78   115
3 x 3 by 2 of 224 x 224, 3 to 32 channels         69    59
===========================================  =======  ====

Windows of 3 x 3 that move by 1 may be computed with fewer multiplications: see `winograd_choice`.
The GEMM of matmuls is as fast as XNNPACK's on AVX2, 0.94 to 1.08 times from 128 rows on, and 1.15
to 2.6 times as fast with few rows (a Zen 4 whose instruction sets were capped at AVX2). It ends
with any epilogue: the result is not read and written once more, where XNNPACK only clamps.

Depthwise convolutions have other kernels (`benchmarks/fp32_depthwise.py`), which take at most the
time of XNNPACK's but with kernels of 3 x 3 and a stride of 2 on AVX2: there XNNPACK's take 0.7 to
0.9 of the time, and are used for images of more than 14 columns unless they end with more than a
clamp. XNNPACK has kernels for 3, 4, 9 and 25 taps only; with others, such as 7 x 7, it takes 15 to
50 times as long. XNNPACK's are used on processors without AVX2, and with several outputs for each
channel. What runs on Neon is near the limit of the processor.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence

from narrowpass.errors import BackendError
from narrowpass_planning.weights.weight import Weight
from narrowpass_xnn_cpu.native.epilogue import Epilogue
from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.operators.convolution import Convolution, Movement
from narrowpass_xnn_cpu.native.operators.linear import FullyConnected
from narrowpass_xnn_cpu.native.operators.quantized import UnfitError
from narrowpass_xnn_cpu.native.operators.tiled_depthwise_fp32 import TiledDepthwise
from narrowpass_xnn_cpu.native.operators.tiled_fp32 import TiledConvolution, TiledFullyConnected
from narrowpass_xnn_cpu.native.operators.winograd_choice import Image, tile_for
from narrowpass_xnn_cpu.native.operators.winograd_fp32 import WinogradConvolution
from narrowpass_xnn_cpu.native.weights_cache import Session

AnyConvolution = Convolution | TiledConvolution | TiledDepthwise | WinogradConvolution
AnyFullyConnected = FullyConnected | TiledFullyConnected
_SMALL_IMAGE = 14
"""Columns of one that a depthwise convolution mostly reads at its borders."""


@functools.cache
def _lanes() -> int:
    return int(extension().lib.np_fp32_lanes())


def convolutions_are_ours() -> bool:
    """Tell whether XNNPACK's convolutions are the slower ones on this processor."""
    return _lanes() > 0


def matmuls_are_ours() -> bool:
    """Return whether our GEMM computes matmuls with a constant matrix on this processor."""
    return _lanes() > 0


def is_product(window: tuple[int, int], movement: Movement) -> bool:
    """Tell whether a convolution is better a product of its pixels with a matrix."""
    moved = any(movement.pads) or max(movement.strides) > 1
    return window == (1, 1) and movement.groups == 1 and not moved and convolutions_are_ours()


def depthwise_is_ours(
    kernel: Sequence[int],
    movement: Movement,
    epilogue: Epilogue,
    image: Image | None = None,
) -> bool:
    """Return whether our depthwise kernel computes a convolution that ends so.

    `kernel` is [KH, KW, O], with one output for each input; `image` is as `convolution` has it. On
    AVX2 XNNPACK's is faster for 3 x 3 with a stride of 2, but for small images.
    """
    if kernel[-1] != movement.groups or not convolutions_are_ours():
        return False
    if _lanes() >= 16 or not epilogue.is_clamp:
        return True
    small = image is not None and image[2] is not None and image[2] <= _SMALL_IMAGE
    return small or tuple(kernel[:2]) != (3, 3) or tuple(movement.strides) != (2, 2)


def ends(movement: Movement, outputs: int, *, depthwise: bool) -> bool:
    """Return whether a convolution can end with any epilogue here: a kernel of ours computes it."""
    return convolutions_are_ours() and (not depthwise or outputs == movement.groups)


def convolution(
    kernel: Weight,
    bias: Weight | None,
    movement: Movement,
    epilogue: Epilogue,
    *,
    image: Image | None = None,
    depthwise: bool = False,
    winograd: bool = True,
    session: Session | None = None,
) -> AnyConvolution:
    """Make a convolution; see `Convolution`.

    Args:
        kernel: see `Convolution`.
        bias: see `Convolution`.
        movement: see `Convolution`.
        epilogue: what becomes of sums.
        image: what is known of its input.
        depthwise: see `Convolution`.
        winograd: whether it may be computed by Winograd's algorithm.
        session: of the weights cache; None to pack for this operator alone.

    Raises:
        BackendError: what is not valid; an epilogue where the kernel has none.
    """
    if depthwise and depthwise_is_ours(kernel.shape, movement, epilogue, image):
        return TiledDepthwise(kernel, bias, movement, epilogue, session=session)
    if convolutions_are_ours() and not depthwise:
        tile = tile_for(kernel.shape, movement, image) if winograd else 0
        if tile:
            # Weights that overflow when they are transformed are found when they are packed: then
            # the convolution is computed directly, and `explain` names it so.
            with contextlib.suppress(UnfitError):
                return WinogradConvolution(kernel, bias, movement, tile, epilogue, session=session)
        return TiledConvolution(kernel, bias, movement, epilogue, session=session)
    _check(epilogue)
    return Convolution(kernel, bias, movement, depthwise=depthwise, session=session)


def fully_connected(
    kernel: Weight,
    bias: Weight | None,
    epilogue: Epilogue,
    *,
    transposed: bool = False,
    session: Session | None = None,
) -> AnyFullyConnected:
    """Make a product with a constant matrix of float32; see `FullyConnected`.

    Raises:
        BackendError: what is not valid; an epilogue where the kernel has none.
    """
    if matmuls_are_ours():
        return TiledFullyConnected(kernel, bias, epilogue, transposed=transposed, session=session)
    _check(epilogue)
    limits = epilogue.limits
    return FullyConnected(kernel, bias, limits, transposed=transposed, session=session)


def _check(epilogue: Epilogue) -> None:
    if not epilogue.is_clamp:
        raise BackendError(f"XNNPACK's operators do not end with {epilogue}")
