"""Descriptors of convolutions, also grouped, depthwise and transposed."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from narrowpass.errors import BackendError
from narrowpass_planning.weights.weight import Quantized, Weight
from narrowpass_xnn_cpu.native.problems.bounds import (
    Shape,
    check_kernel_size,
    checked_pixels,
    checked_shape,
)
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue
from narrowpass_xnn_cpu.native.problems.quantization import AddS8, Quantization, Requantized

Image = tuple[int, int | None, int | None]
"""Batch, height and width of an input; None for a size that is known at run time only."""


@dataclass(frozen=True)
class ConvAttributes:
    """Pads, strides, dilations and groups, ONNX's attributes of a convolution.

    Attributes:
        pads: top, left, bottom, right; a transposed convolution crops them from its output.
        strides: vertical, horizontal.
        dilations: vertical, horizontal.
        groups: groups of channels.
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

    def extent(self, kernel_size: tuple[int, int]) -> tuple[int, int]:
        """Return height and width of the dilated kernel window."""
        vertical, horizontal = self.dilations
        return (kernel_size[0] - 1) * vertical + 1, (kernel_size[1] - 1) * horizontal + 1


@dataclass(frozen=True)
class ConvGeometry:
    """The geometry of a convolution over [N, H, W, C].

    Attributes:
        channels: input channels of all groups.
        outputs: output channels.
        kernel_size: height and width of the kernel window, not dilated.
        attributes: pads, strides, dilations and groups.
    """

    channels: int
    outputs: int
    kernel_size: tuple[int, int]
    attributes: ConvAttributes

    @classmethod
    def of(cls, kernel: Sequence[int], attributes: ConvAttributes) -> Self:
        """Check the shape of a kernel [O, KH, KW, C / groups], or [KH, KW, O] for depthwise.

        Raises:
            BackendError: an invalid shape, or groups that do not divide the outputs.
        """
        if len(kernel) == 3:
            height, width, outputs = checked_shape(kernel, 3)
            channels = attributes.groups
        else:
            outputs, height, width, per_group = checked_shape(kernel, 4)
            channels = per_group * attributes.groups
        if attributes.groups < 1 or outputs % attributes.groups:
            raise BackendError(f"{outputs} output channels cannot form {attributes.groups} groups")
        attributes.check()
        return cls(channels, outputs, (height, width), attributes)

    @property
    def runs(self) -> tuple[int, int]:
        """Number and length of the contiguous runs of input elements below a kernel window."""
        groups, (height, width) = self.attributes.groups, self.kernel_size
        # A row of the kernel window is contiguous if it has all channels of adjacent pixels.
        if groups == 1 and (self.attributes.dilations[1] == 1 or width == 1):
            return height, width * self.channels
        return height * width, self.channels // groups

    @property
    def extent(self) -> tuple[int, int]:
        """Height and width of the dilated kernel window."""
        return self.attributes.extent(self.kernel_size)

    def infer_sizes(self, shape: Sequence[int]) -> tuple[Shape, tuple[int, int]]:
        """Check an input [N, H, W, C]; return it, and the height and width of the output.

        Raises:
            BackendError: other channels, or a kernel window larger than the padded input.
        """
        image = self.checked_image(shape)
        pads, strides = self.attributes.pads, self.attributes.strides
        check_kernel_size(image, self.kernel_size, pads, self.attributes.dilations)
        height, width = (
            (image[1 + axis] + pads[axis] + pads[2 + axis] - self.extent[axis]) // strides[axis] + 1
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
class DynamicScales:
    """The result of int8 operands whose scales and zero points are only known at run time.

    Attributes:
        raw: whether the result is the int32 accumulators; float32, times the scales, otherwise.
        zero_point: zero point of the input, as int8, where the step has no input for it.
    """

    raw: bool = False
    zero_point: int = 0

    @property
    def input(self) -> Quantization:
        """The input's quantization where the step has no inputs for it."""
        return Quantization(1.0, self.zero_point)


@dataclass(frozen=True)
class Offsets:
    """Which int8 tensors are stored with an offset of +128 (XOR 0x80), as u8 for VNNI.

    Attributes:
        input: the input.
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
        attributes: pads, strides, dilations and groups.
        result: the epilogue of float32, None for none; or the requantization of int32
            accumulators.
        depthwise: whether each input channel is a group, and the kernel is [KH, KW, O].
        adjustments: of a transposed convolution, rows and columns added below and to the right;
            None for one that is not transposed.
        image: sizes of the input that are known; None for unknown.
        winograd: whether Winograd's algorithm may compute it.
        added: a second input that is added to an int8 result; None for none.
        offsets: which int8 tensors are stored with an offset of +128.
    """

    kernel: Weight | Quantized
    bias: Weight | None = None
    attributes: ConvAttributes = ConvAttributes()
    result: Epilogue | Requantized | DynamicScales | None = None
    depthwise: bool = False
    adjustments: Sequence[int] | None = None
    image: Image | None = None
    winograd: bool = True
    added: AddS8 | None = None
    offsets: Offsets = Offsets()

    @property
    def shape(self) -> Shape:
        """The kernel's shape."""
        kernel = self.kernel
        return kernel.integers.shape if isinstance(kernel, Quantized) else kernel.shape

    @functools.cached_property
    def geometry(self) -> ConvGeometry:
        """Its geometry; raises `BackendError` for an invalid one."""
        return ConvGeometry.of(self.shape, self.attributes)

    @functools.cached_property
    def dtypes(self) -> str:
        """The dtypes of image, kernel and result."""
        if isinstance(self.kernel, Weight):
            return f"float32 x {self.kernel.dtype.name}"
        return (
            "dynamic int8 x int8"
            if isinstance(self.result, DynamicScales)
            else "int8 x int8 -> int8"
        )

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


def check_transposed_output(
    shape: Sequence[int],
    kernel_size: tuple[int, int],
    attributes: ConvAttributes,
    adjustments: Sequence[int],
) -> None:
    """Check that the output of a transposed convolution of [N, H, W, C] is not empty.

    XNNPACK is not given one that is.
    """
    extent = attributes.extent(kernel_size)
    for axis in (0, 1):
        size = (shape[1 + axis] - 1) * attributes.strides[axis] + extent[axis] + adjustments[axis]
        if size <= attributes.pads[axis] + attributes.pads[2 + axis]:
            raise BackendError(
                f"the output for an input of {list(shape)} is empty: pads crop all of it"
            )


MAX_INT8_CHANNELS = (1 << 29) // (9 * 255 * 128)
"""Headroom: F(2 x 2, 3 x 3) scales int32 accumulators by 4, which fits up to 1842 channels."""


def fits_winograd(kernel: Sequence[int], attributes: ConvAttributes) -> bool:
    """Return whether a kernel [O, KH, KW, C] is 3 x 3, of stride 1, in one group."""
    return len(kernel) == 4 and tuple(kernel[1:3]) == (3, 3) and attributes.is_plain
