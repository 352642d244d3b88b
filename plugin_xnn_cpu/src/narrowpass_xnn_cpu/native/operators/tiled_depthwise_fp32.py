"""Depthwise convolutions of float32 by our own kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native.epilogue import Epilogue
from narrowpass_xnn_cpu.native.operators import tiled
from narrowpass_xnn_cpu.native.operators.base import checked_shape, checked_weights
from narrowpass_xnn_cpu.native.operators.convolution import Movement
from narrowpass_xnn_cpu.native.operators.tiled_fp32 import Fp32
from narrowpass_xnn_cpu.native.operators.tiled_windows import (
    Windows,
    check_movement,
    reaches,
    sizes_of,
)
from narrowpass_xnn_cpu.native.pool import ThreadPool
from narrowpass_xnn_cpu.weights.session import Session
from narrowpass_xnn_cpu.weights.weight import Weight

_BLOCK = 16
"""Channels whose weights lie together: NP_FP32_DEPTHWISE_BLOCK."""
_TASKS = 4
"""For each thread, where there are several: one that is late leaves some of them to others."""
_FEW_ROWS = 16
"""Of the output, for each thread: with fewer of them channels are divided instead."""


class TiledDepthwise(Fp32):
    """A depthwise 2-D convolution over [N, H, W, C], with as many outputs; see `Convolution`.

    Args:
        kernel: float32 [KH, KW, C].
        bias: float32 [C], or None.
        movement: of the window, with C groups.
        epilogue: what becomes of sums; None to clamp them to the limits of `movement`.
        session: of the weights cache; None to pack for this operator alone.

    Raises:
        BackendError: what is not valid.
    """

    name = "depthwise convolution"
    call = "NP_FP32_DEPTHWISE"
    layout = "NP_FP32_DEPTHWISE_LAYOUT"

    def __init__(
        self,
        kernel: Weight,
        bias: Weight | None,
        movement: Movement,
        epilogue: Epilogue | None = None,
        *,
        session: Session | None = None,
    ) -> None:
        super().__init__()
        height, width, channels = checked_shape(kernel.shape, 3)
        if movement.groups != channels:
            raise BackendError(f"{channels} channels are not {movement.groups} groups of one")
        check_movement(movement)
        checked_weights(kernel, bias, channels, "float32", "float32")
        self.channels = self.outputs = channels
        self._windows = Windows(channels, channels, (height, width), movement)
        self.epilogue = Epilogue(limits=movement.limits) if epilogue is None else epilogue
        sizes = channels, height, width
        lib = self._lib
        self._pack_own(
            session,
            sizes,
            kernel,
            bias,
            None,
            lib.np_fp32_depthwise_packed_size(*sizes),
            lambda block, k, b, _: lib.np_fp32_depthwise_pack(*sizes, k, b, block),
        )

    def reshape(self, shape: Sequence[int], pool: ThreadPool) -> tuple[int, int]:
        """Take an input of `shape` [N, H, W, C]; give the output's height and width."""
        movement = self._windows.movement
        image, out = self._windows.over(shape)
        batch, channels = image[0], image[3]
        band, bands, part, parts = out[0], 1, channels, 1
        if pool.threads > 1:
            if batch * out[0] >= _FEW_ROWS * pool.threads:
                wanted = -(-_TASKS * pool.threads // batch)
                band, bands = tiled.even_bands(out[0], -(-out[0] // wanted), 2)
            else:
                wanted = -(-_TASKS * pool.threads // batch)
                part, parts = tiled.column_parts(channels, 1, wanted, _BLOCK)
        reach, _ = reaches(self._windows.size, movement)
        rows = tiled.checked_elements((band - 1) * movement.strides[0] + reach)
        scratch = tiled.line(8 * rows)
        self.workspace = pool.threads * scratch
        given: dict[str, Any] = {
            "packed": self._packed_weights,
            **sizes_of(image, out),
            "window": self._windows.size,
            "strides": tuple(movement.strides),
            "dilations": tuple(movement.dilations),
            "pads": tuple(movement.pads[:2]),
            "row_tile": band,
            "row_tiles": bands,
            "part": part,
            "parts": parts,
            "epilogue": self.epilogue.params(),
            "target": tiled.target(),
            "thread_scratch": scratch,
        }
        self.params = self._ffi.new("struct np_fp32_depthwise_params *", given)
        return out
