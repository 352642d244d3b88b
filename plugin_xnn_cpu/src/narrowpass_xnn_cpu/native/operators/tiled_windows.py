"""What our convolutions share: how windows move; and the constants of those of int8."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from narrowpass.errors import BackendError
from narrowpass_planning.weights.weight import Array, Quantized, Weight
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
from narrowpass_xnn_cpu.native.operators.zero_points import check_terms
from narrowpass_xnn_cpu.native.weights_cache import Session


@dataclass(frozen=True)
class Windows:
    """The windows of a convolution over [N, H, W, C].

    Attributes:
        channels: C, of all groups.
        outputs: channels of what comes of it.
        size: rows and columns of a window.
        movement: of the window.
    """

    channels: int
    outputs: int
    size: tuple[int, int]
    movement: Movement

    @classmethod
    def of(cls, kernel: Sequence[int], movement: Movement) -> Self:
        """Check the shape of a kernel [O, KH, KW, C / groups], and what moves it.

        Raises:
            BackendError: what is not valid.
        """
        outputs, height, width, per_group = checked_shape(kernel, 4)
        groups = movement.groups
        if groups < 1 or outputs % groups:
            raise BackendError(f"{outputs} output channels cannot form {groups} groups")
        check_movement(movement)
        return cls(per_group * groups, outputs, (height, width), movement)

    @property
    def runs(self) -> tuple[int, int]:
        """How many runs of dense elements a window is, and how long each is."""
        groups, (height, width) = self.movement.groups, self.size
        # A row of the window lies dense where its pixels are whole, and side by side.
        if groups == 1 and (self.movement.dilations[1] == 1 or width == 1):
            return height, width * self.channels
        return height * width, self.channels // groups

    def over(self, shape: Sequence[int]) -> tuple[Shape, tuple[int, int]]:
        """Check an input [N, H, W, C]; give it, and the height and width of the output.

        Raises:
            BackendError: what is not valid.
        """
        image = checked_shape(shape, 4)
        if image[3] != self.channels:
            raise BackendError(f"a convolution of {self.channels} channels got {image[3]}")
        out = output_size(image, self.size, self.movement)
        checked_shape((image[0], *out, self.outputs))
        return image, out

    def params(self, image: Sequence[int], out: tuple[int, int]) -> dict[str, Any]:
        """Give the parameters of a kernel that say what it makes of an image [N, H, W, C]."""
        runs, run_length = self.runs
        return {
            **sizes_of(image, out),
            "outputs": self.outputs,
            "groups": self.movement.groups,
            "window": self.size,
            "dilations": tuple(self.movement.dilations),
            "pads": tuple(self.movement.pads[:2]),
            "runs": runs,
            "run_length": run_length,
        }

    def scratch(self, copied: int, count: int) -> dict[str, int]:
        """Give a thread's scratch memory: a copy of so many bytes, then where things start.

        That is said of `count` windows, and of the runs in one.
        """
        pixels = tiled.line(copied)
        runs = pixels + tiled.line(4 * count)
        size = runs + tiled.line(4 * self.runs[0])
        return {"pixels_offset": pixels, "runs_offset": runs, "thread_scratch": size}


def sizes_of(image: Sequence[int], out: tuple[int, int]) -> dict[str, int]:
    """Give the parameters that all kernels of images have: sizes of [N, H, W, C] and the output."""
    batch, height, width, channels = image
    return {
        "batch": batch,
        "height": height,
        "width": width,
        "channels": channels,
        "out_height": out[0],
        "out_width": out[1],
    }


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
    _bias_dtype = "int32"
    _zeros: Array | None = None
    """Zero points of the weights, where the kernel takes such."""

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
        check_terms(terms, "weights", self._zeros)
        integers = checked_integers(kernel.integers)
        scales = checked_scales(kernel, self.outputs, axis, zeros=self._zeros is not None)
        checked_weights(integers, bias, self.outputs, "int8", self._bias_dtype)
        self._pack_own(session, parameters, integers, bias, self._factors(scales), size, write)

    def _factors(self, scales: Weight) -> Weight:
        """Give what accumulators are multiplied by, from the scales of the weights."""
        return tiled.requantizing(scales, self._requantized)

    def _image(
        self, shape: Sequence[int], window: tuple[int, int]
    ) -> tuple[Shape, tuple[int, int]]:
        """Check an input [N, H, W, C]; give it, and the height and width of the output."""
        return Windows(self.channels, self.outputs, window, self._movement).over(shape)

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
