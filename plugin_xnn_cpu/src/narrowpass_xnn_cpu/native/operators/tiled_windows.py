"""What our convolutions of int8 share: their constants, and how windows move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native.operators import tiled
from narrowpass_xnn_cpu.native.operators.base import (
    Shape,
    check_window,
    checked_pixels,
    checked_shape,
    checked_weights,
)
from narrowpass_xnn_cpu.native.operators.convolution import Movement
from narrowpass_xnn_cpu.native.operators.int8 import Requantized
from narrowpass_xnn_cpu.native.operators.quantized import checked_integers, checked_scales
from narrowpass_xnn_cpu.weights.session import Session
from narrowpass_xnn_cpu.weights.weight import Quantized, Weight


class TiledWindowsS8(tiled.Tiled):
    """A convolution over [N, H, W, C] of int8 that gives int8.

    Args:
        movement: of the window; its limits are not used.
        requantized: of input and output.

    Attributes:
        in_raised: whether the bytes of its input are raised by 128, where that `can_be_raised`.
        out_raised: the same of its output.
        other_raised: the same of what is added to that.
    """

    channels: int
    outputs: int
    can_be_raised = False
    in_raised = False
    out_raised = False
    other_raised = False

    def __init__(self, movement: Movement, requantized: Requantized) -> None:
        super().__init__()
        check_movement(movement)
        requantized.check()
        self._movement, self._requantized = movement, requantized

    def _pack_windows(
        self,
        session: Session | None,
        parameters: object,
        kernel: Quantized,
        bias: Weight | None,
        terms: int,
        axis: int,
        size: int,
        write: Callable[..., None],
    ) -> None:
        """Pack constants for `self.outputs` sums of `terms` products each.

        Args:
            session: of the weights cache; None to pack for this operator alone.
            parameters: what the packed bytes follow from beside the constants.
            kernel: integers and scales.
            bias: int32 [O], or None.
            terms: of a sum.
            axis: of the integers along which there are scales.
            size: bytes of what is packed.
            write: packs.

        Raises:
            UnfitError: constants that cannot be computed with exactly.
        """
        tiled.checked_sums(terms, "weights")
        integers = checked_integers(kernel.integers)
        scales = checked_scales(kernel, self.outputs, axis)
        checked_weights(integers, bias, self.outputs, "int8", "int32")
        factors = tiled.requantizing(scales, self._requantized)
        self._pack_own(session, parameters, integers, bias, factors, size, write)

    def _image(
        self, shape: Sequence[int], window: tuple[int, int]
    ) -> tuple[Shape, tuple[int, int]]:
        """Check an input [N, H, W, C]; give it, and the height and width of the output."""
        image = checked_shape(shape, 4)
        if image[3] != self.channels:
            raise BackendError(f"a convolution of {self.channels} channels got {image[3]}")
        out = output_size(image, window, self._movement)
        checked_shape((image[0], *out, self.outputs))
        return image, out

    def _requantization(self) -> dict[str, Any]:
        """Give the parameters of a kernel that say how its sums become int8."""
        requantized = self._requantized
        low, high = requantized.limits
        return {
            "in_zero": requantized.given.zero_point,
            "out_zero": requantized.made.zero_point,
            "low": low,
            "high": high,
            "target": tiled.target(),
            "packed": self._packed_weights,
        }


def check_movement(movement: Movement) -> None:
    """Check what moves a window."""
    checked_pixels(movement.pads, 0, "padding")
    checked_pixels((*movement.strides, *movement.dilations), 1, "stride or dilation")


def output_size(
    shape: Sequence[int], window: tuple[int, int], movement: Movement
) -> tuple[int, int]:
    """Give the height and width of what comes of an input of [N, H, W, C]."""
    check_window(tuple(shape), window, movement.pads, movement.dilations)
    reach = reaches(window, movement)
    found = []
    for axis in (0, 1):
        padded = shape[1 + axis] + movement.pads[axis] + movement.pads[2 + axis]
        found.append((padded - reach[axis]) // movement.strides[axis] + 1)
    return found[0], found[1]


def reaches(window: tuple[int, int], movement: Movement) -> tuple[int, int]:
    """Give the rows and columns from the first to the last of a window."""
    down, along = movement.dilations
    return (window[0] - 1) * down + 1, (window[1] - 1) * along + 1
