"""Convolutions, plain, grouped, depthwise and transposed: their geometry, constants and result."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from narrowpass.errors import BackendError
from narrowpass_planning.weights.weight import Quantized, Weight
from narrowpass_xnn_cpu.native.problems.bounds import (
    Shape,
    check_window,
    checked_pixels,
    checked_shape,
)
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue
from narrowpass_xnn_cpu.native.problems.quantization import Quantization, Requantized, SumS8

Image = tuple[int, int | None, int | None]
"""Batch, height and width of an input; None for a size that is known at run time only."""


@dataclass(frozen=True)
class Movement:
    """How a kernel window moves.

    Attributes:
        pads: top, left, bottom, right; of a transposed convolution, what is cut off.
        strides: down, right.
        dilations: down, right.
        groups: of channels.
    """

    pads: Sequence[int] = (0, 0, 0, 0)
    strides: Sequence[int] = (1, 1)
    dilations: Sequence[int] = (1, 1)
    groups: int = 1

    def check(self) -> None:
        """Raise `BackendError` for pads, strides or dilations that are out of range."""
        checked_pixels(self.pads, 0, "padding")
        checked_pixels((*self.strides, *self.dilations), 1, "stride or dilation")

    @property
    def is_plain(self) -> bool:
        """Whether strides and dilations are 1, in one group."""
        return all(step == 1 for step in (*self.strides, *self.dilations, self.groups))

    def reach(self, window: tuple[int, int]) -> tuple[int, int]:
        """Return the rows and columns from the first to the last tap of a kernel window."""
        down, along = self.dilations
        return (window[0] - 1) * down + 1, (window[1] - 1) * along + 1


@dataclass(frozen=True)
class Windows:
    """The geometry of a convolution over [N, H, W, C].

    Attributes:
        channels: C, of all groups.
        outputs: channels of the result.
        size: rows and columns of the kernel window.
        movement: of the window.
    """

    channels: int
    outputs: int
    size: tuple[int, int]
    movement: Movement

    @classmethod
    def of(cls, kernel: Sequence[int], movement: Movement) -> Self:
        """Check the shape of a kernel [O, KH, KW, C / groups], or [KH, KW, C] for depthwise.

        Raises:
            BackendError: what is not valid.
        """
        if len(kernel) == 3:
            height, width, outputs = checked_shape(kernel, 3)
            channels = movement.groups
        else:
            outputs, height, width, per_group = checked_shape(kernel, 4)
            channels = per_group * movement.groups
        if movement.groups < 1 or outputs % movement.groups:
            raise BackendError(f"{outputs} output channels cannot form {movement.groups} groups")
        movement.check()
        return cls(channels, outputs, (height, width), movement)

    @property
    def runs(self) -> tuple[int, int]:
        """How many runs of dense elements a kernel window is, and how long each is."""
        groups, (height, width) = self.movement.groups, self.size
        # A row of the window lies dense where its pixels are whole, and side by side.
        if groups == 1 and (self.movement.dilations[1] == 1 or width == 1):
            return height, width * self.channels
        return height * width, self.channels // groups

    @property
    def reach(self) -> tuple[int, int]:
        """Rows and columns from the first to the last tap."""
        return self.movement.reach(self.size)

    def over(self, shape: Sequence[int]) -> tuple[Shape, tuple[int, int]]:
        """Check an input [N, H, W, C]; return it, and the height and width of the output.

        Raises:
            BackendError: what is not valid.
        """
        image = self.checked_image(shape)
        pads, strides = self.movement.pads, self.movement.strides
        check_window(image, self.size, pads, self.movement.dilations)
        height, width = (
            (image[1 + axis] + pads[axis] + pads[2 + axis] - self.reach[axis]) // strides[axis] + 1
            for axis in (0, 1)
        )
        checked_shape((image[0], height, width, self.outputs))
        return image, (height, width)

    def checked_image(self, shape: Sequence[int]) -> Shape:
        """Check the rank and channels of an input [N, H, W, C]."""
        image = checked_shape(shape, 4)
        if image[3] != self.channels:
            raise BackendError(f"a convolution of {self.channels} channels got {image[3]}")
        return image


@dataclass(frozen=True)
class Dynamic:
    """A result of int8 operands whose scale and zero point are inputs of the step.

    Attributes:
        raw: whether the result is the int32 accumulators, which no scale has part in; float32
            otherwise.
        zero_point: of the input, as int8, where the step has no third input.
    """

    raw: bool = False
    zero_point: int = 0

    @property
    def given(self) -> Quantization:
        """The input's quantization where the step has no inputs for it."""
        return Quantization(1.0, self.zero_point)


@dataclass(frozen=True)
class Offsets:
    """Which tensors of int8 are stored with an offset of +128 (XOR 0x80), as VNNI reads them.

    Attributes:
        input: the image.
        output: the result.
        added: the second input, which is added to the result.
    """

    input: bool = False
    output: bool = False
    added: bool = False


@dataclass(frozen=True)
class Convolution:
    """A 2-D convolution over [N, H, W, C] with a constant kernel.

    Attributes:
        kernel: [O, KH, KW, C / groups], for depthwise [KH, KW, O]: float32 or bfloat16, or int8
            with scales of O.
        bias: [O], or None: float32, int32 where the result is requantized.
        movement: of the kernel window.
        result: the epilogue of float32, None for one that does nothing; or how accumulators of
            int8 are requantized.
        depthwise: whether each input channel is a group of its own, with the kernel so laid out.
        adjustments: of a transposed convolution, rows and columns added below and to the right;
            None for one that is not transposed.
        image: what is known of its input.
        winograd: whether Winograd's algorithm may compute it.
        added: a second input that is added to an int8 result; None for none.
        offsets: which tensors of int8 are stored with an offset.
    """

    kernel: Weight | Quantized
    bias: Weight | None = None
    movement: Movement = Movement()
    result: Epilogue | Requantized | Dynamic | None = None
    depthwise: bool = False
    adjustments: Sequence[int] | None = None
    image: Image | None = None
    winograd: bool = True
    added: SumS8 | None = None
    offsets: Offsets = Offsets()

    @property
    def shape(self) -> Shape:
        """The kernel's shape."""
        kernel = self.kernel
        return kernel.integers.shape if isinstance(kernel, Quantized) else kernel.shape

    @functools.cached_property
    def windows(self) -> Windows:
        """Its geometry, checked."""
        return Windows.of(self.shape, self.movement)

    @property
    def dtypes(self) -> str:
        """The dtypes of image, kernel and result."""
        if isinstance(self.kernel, Weight):
            return f"float32 x {self.kernel.dtype.name}"
        return "dynamic int8 x int8" if isinstance(self.result, Dynamic) else "int8 x int8 -> int8"

    @property
    def kind(self) -> str:
        """``convolution``, ``depthwise`` or ``transposed``."""
        if self.adjustments is not None:
            return "transposed"
        return "depthwise" if self.depthwise else "convolution"

    @property
    def epilogue(self) -> Epilogue:
        """The epilogue of float32."""
        return self.result if isinstance(self.result, Epilogue) else Epilogue()


def check_spread(
    shape: Sequence[int], window: Sequence[int], movement: Movement, adjustments: Sequence[int]
) -> None:
    """Check that a transposed convolution of [N, H, W, C] leaves an output.

    XNNPACK frees what it keeps where the output has no pixels, and goes on using it.
    """
    for axis in (0, 1):
        reach = (window[axis] - 1) * movement.dilations[axis] + 1
        size = (shape[1 + axis] - 1) * movement.strides[axis] + reach + adjustments[axis]
        if size <= movement.pads[axis] + movement.pads[2 + axis]:
            raise BackendError(f"nothing is left of the output for an input of {list(shape)}")
