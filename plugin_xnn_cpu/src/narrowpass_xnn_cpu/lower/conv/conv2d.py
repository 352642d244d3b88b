"""The float32 and bfloat16 convolution, and the parameters of kernel windows."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from narrowpass.errors import AttributesError, BackendError
from narrowpass_planning.plan.step import Run, Shape, Sizing
from narrowpass_planning.weights.weight import Weight
from narrowpass_xnn_cpu.lower.matmul.epilogue import WithEpilogue
from narrowpass_xnn_cpu.lower.op import Op
from narrowpass_xnn_cpu.lowered.op import LoweredOp, PackedStep, Perm
from narrowpass_xnn_cpu.lowered.record import keyword_record
from narrowpass_xnn_cpu.native import target
from narrowpass_xnn_cpu.native.own import fp32, fp32_depthwise
from narrowpass_xnn_cpu.native.own.packed import PackedConvolution
from narrowpass_xnn_cpu.native.problems.convolution import ConvAttributes, Convolution, Image
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue
from narrowpass_xnn_cpu.native.table import create_convolution, select
from narrowpass_xnn_cpu.native.table.row import Selection
from narrowpass_xnn_cpu.native.target import Target
from narrowpass_xnn_cpu.native.weights_cache import Session

CHANNELS_LAST: dict[int, Perm] = {3: (0, 2, 1), 4: (0, 2, 3, 1)}
"""The channels-last layout, by rank: NWC and NHWC."""


@dataclass(frozen=True)
class KernelWindow:
    """Kernel size, pads, strides and dilations in two dimensions; 1-D images have height 1.

    Attributes:
        size: height, width.
        pads: top, left, bottom, right.
        strides: vertical, horizontal.
        dilations: vertical, horizontal.
        only_for: input sizes that the pads of ``auto_pad`` were computed for; None for a dimension
            whose pads do not depend on it.
    """

    size: tuple[int, int]
    pads: tuple[int, int, int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    only_for: tuple[int | str | None, ...] = ()

    def check(self, image: Shape) -> None:
        """Check that the pads were computed for an input of shape [N, H, W, C].

        Raises:
            BackendError: they were computed for another size.
        """
        sizes = image[3 - len(self.only_for) : 3]
        if any(known not in (None, size) for known, size in zip(self.only_for, sizes, strict=True)):
            raise BackendError(f"pads were chosen for {self.only_for}, not for {list(image)}")

    @classmethod
    def of(
        cls, op: Op, size: Sequence[int], dims: Sequence[int | str | None] | None
    ) -> KernelWindow:
        """Read the attributes of an operator.

        Args:
            op: the operator.
            size: of the kernel window, in one or two dimensions.
            dims: spatial dimensions of the input, as far as they are known.

        Raises:
            AttributesError: attributes that no kernel supports, or a size that is not known.
        """
        spatial = len(size)
        if spatial not in (1, 2):
            raise AttributesError(f"kernel windows of {spatial} dimensions have no kernel")
        strides = list(op.get("strides", [1] * spatial))
        dilations = list(op.get("dilations", [1] * spatial))
        pads = list(op.get("pads", [0] * 2 * spatial))
        if not len(strides) == len(dilations) == spatial or len(pads) != 2 * spatial:
            raise AttributesError("strides, dilations or pads do not fit the kernel window")
        mode = op.get("auto_pad", "NOTSET")
        only_for: tuple[int | str | None, ...] = ()
        if mode == "VALID":
            pads = [0] * 2 * spatial
        elif mode in ("SAME_UPPER", "SAME_LOWER"):
            pads = _same_pads(mode, size, strides, dilations, dims)
            sizes = dims or [None] * spatial
            only_for = tuple(
                None if step == 1 else dim for step, dim in zip(strides, sizes, strict=True)
            )
        if min(pads) < 0:
            raise AttributesError(f"negative pads {pads} have no kernel")
        if spatial == 1:
            spread = (0, pads[0], 0, pads[1])
            return cls((1, size[0]), spread, (1, strides[0]), (1, dilations[0]), only_for)
        return cls(
            (size[0], size[1]),
            (pads[0], pads[1], pads[2], pads[3]),
            (strides[0], strides[1]),
            (dilations[0], dilations[1]),
            only_for,
        )


def _same_pads(
    mode: str,
    size: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    dims: Sequence[int | str | None] | None,
) -> list[int]:
    before, after = [], []
    for axis, (kernel, stride, dilation) in enumerate(zip(size, strides, dilations, strict=True)):
        reach = (kernel - 1) * dilation + 1
        if stride == 1:
            total = reach - 1
        else:
            dim = None if dims is None else dims[axis]
            if not isinstance(dim, int):
                raise AttributesError(f"auto_pad {mode} with strides needs sizes that are known")
            total = max(0, (-(-dim // stride) - 1) * stride + reach - dim)
        small, large = total // 2, total - total // 2
        before.append(small if mode == "SAME_UPPER" else large)
        after.append(large if mode == "SAME_UPPER" else small)
    return before + after


def image_of(shape: Shape) -> Shape:
    """Return the shape as [N, H, W, C]; 1-D images [N, W, C] have height 1."""
    return shape if len(shape) == 4 else (shape[0], 1, *shape[1:])


def output_shape(
    operator: Any, kernel_window: KernelWindow, outputs: int, shape: Shape, sizing: Sizing
) -> tuple[Shape, str]:
    """Return the output shape of a convolution operator, and its call.

    Args:
        operator: a packed convolution, or an XNNPACK operator, which is reshaped.
        kernel_window: kernel size, pads, strides and dilations.
        outputs: channels of the result.
        shape: of the operand, with channels last.
        sizing: the thread pool.

    Raises:
        BackendError: the output would be empty.
    """
    image = image_of(shape)
    kernel_window.check(image)
    # The height and width of an empty batch are those of a batch of 1.
    full = (max(1, image[0]), *image[1:])
    if isinstance(operator, PackedConvolution):
        height, width = operator.output_size(full)
    else:
        height, width = operator.reshape(full, sizing.pool)
    if height < 1 or width < 1:
        raise BackendError(f"nothing is left of the output for an input of {list(shape)}")
    line = (image[0], width, outputs)
    result = (image[0], height, width, outputs) if len(shape) == 4 else line
    return result, operator.call if image[0] else ""


def reshape_packed(
    operator: Any, shape: Shape, sizing: Sizing, epilogue: Epilogue | None = None
) -> None:
    """Reshape a packed convolution, which `output_shape` does not do.

    Args:
        operator: of a convolution.
        shape: of the operand, with channels last.
        sizing: the thread pool.
        epilogue: replaces that of the operator; None to keep it.
    """
    if isinstance(operator, PackedConvolution):
        image = image_of(shape)
        operator.reshape((max(1, image[0]), *image[1:]), sizing.pool, epilogue=epilogue)


@keyword_record
class Conv2d(WithEpilogue):
    """A convolution of float32, plain or transposed, over [N, H, W, C] or [N, W, C].

    Operands are the images and the residual.

    Attributes:
        weight: [O, KH, KW, C / groups], or [KH, KW, O] for depthwise; float32 or bfloat16.
        bias: float32 [O], or None.
        kernel_window: kernel size, pads, strides and dilations.
        attributes: pads, strides, dilations and groups of the kernel.
        outputs: channels of the result.
        algorithm: ``direct``, ``depthwise`` or ``transposed``.
        image: known sizes of the images; see `Convolution.image`.
        winograd: whether Winograd's algorithm may be used.
        adjustments: output padding of a transposed convolution.
    """

    mnemonic = "convolution"
    weight: Weight
    bias: Weight | None
    kernel_window: KernelWindow
    attributes: ConvAttributes
    outputs: int
    algorithm: str = "direct"
    image: Image | None = None
    winograd: bool = True
    adjustments: tuple[int, ...] = ()

    @functools.cached_property
    def problem(self) -> Convolution:
        """The problem that the kernel table selects a kernel for."""
        return Convolution(
            self.weight,
            self.bias,
            self.attributes,
            self.epilogue,
            depthwise=self.algorithm == "depthwise",
            adjustments=self.adjustments if self.algorithm == "transposed" else None,
            image=self.image,
            winograd=self.winograd,
        )

    @property
    def _is_bf16(self) -> bool:
        return self.weight.dtype.name == "bfloat16"

    @property
    def is_depthwise_kernel(self) -> bool:
        """Whether the own float32 depthwise kernel computes it."""
        return self._kernel is fp32_depthwise.DEPTHWISE

    @property
    def is_direct_kernel(self) -> bool:
        """Whether the own float32 direct convolution computes it."""
        return self._kernel is fp32.CONVOLUTION

    @property
    def _kernel(self) -> object:
        return select(self.problem, target.current()).kernel

    def kernel_name(self, op: LoweredOp, packed: Any) -> str:
        """See `Computation.kernel_name`."""
        names = {"depthwise": "depthwise convolution", "transposed": "deconvolution"}
        name = "convolution" if self._is_bf16 else names.get(self.algorithm) or packed.name
        return f"{packed.prefix}{name}"

    def precision(self, op: LoweredOp, packed: Any) -> str:
        """See `Computation.precision`."""
        return "bfloat16" if self._is_bf16 else ""

    def select(self, op: LoweredOp, target: Target) -> Selection:
        """See `Computation.select`."""
        return select(self.problem, target).selection

    def pack(self, op: LoweredOp, session: Session | None) -> Any:
        """See `Computation.pack`."""
        return create_convolution(self.problem, session)

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        operator = step.packed
        result, call = output_shape(operator, self.kernel_window, self.outputs, shapes[0], sizing)
        reshape_packed(operator, shapes[0], sizing, self.fitting(shapes, result))
        return Run(result, call, operator, operator.params)
