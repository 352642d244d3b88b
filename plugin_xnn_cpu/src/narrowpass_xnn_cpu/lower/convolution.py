"""Convolutions, plain, grouped, depthwise and transposed, in one or two dimensions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.lower.builder import Builder, Perm
from narrowpass_xnn_cpu.lower.ending import Ended, emit, residual_of
from narrowpass_xnn_cpu.lower.facts import Facts
from narrowpass_xnn_cpu.lower.linear import Linear
from narrowpass_xnn_cpu.lower.op import Op, lowers, needs_floats
from narrowpass_xnn_cpu.lower.product import BFLOAT16, Product
from narrowpass_xnn_cpu.native.epilogue import Epilogue
from narrowpass_xnn_cpu.native.operators import (
    Deconvolution,
    DeconvolutionS8,
    Movement,
    fp32_choice,
)
from narrowpass_xnn_cpu.native.operators.bf16_choice import convolution_is_ours
from narrowpass_xnn_cpu.native.operators.fp32_choice import AnyConvolution
from narrowpass_xnn_cpu.native.operators.int8_choice import AnyConvolutionS8
from narrowpass_xnn_cpu.native.operators.int8_tensors import SumS8
from narrowpass_xnn_cpu.native.operators.tiled_bf16 import TiledConvolutionBf16
from narrowpass_xnn_cpu.native.operators.tiled_convolution import TiledConvolutionS8
from narrowpass_xnn_cpu.native.operators.tiled_fp32 import TiledConvolution
from narrowpass_xnn_cpu.native.operators.tiled_windows import TiledWindowsS8
from narrowpass_xnn_cpu.plan.step import Run, Shape, Sizing, Slot
from narrowpass_xnn_cpu.weights.weight import Weight

CHANNELS_LAST: dict[int, Perm] = {3: (0, 2, 1), 4: (0, 2, 3, 1)}
"""The order in which images lie, by rank."""


@dataclass(frozen=True)
class Window:
    """How a window moves over two dimensions; lines count as images of height 1.

    Attributes:
        size: height, width.
        pads: top, left, bottom, right.
        strides: down, right.
        dilations: down, right.
        only_for: sizes of the input that the pads are for; None for one that they all fit.
    """

    size: tuple[int, int]
    pads: tuple[int, int, int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    only_for: tuple[int | str | None, ...] = ()

    def check(self, image: Shape) -> None:
        """Check that the pads are for an input of shape [N, H, W, C].

        Raises:
            BackendError: they are for another size than that which was inferred.
        """
        sizes = image[3 - len(self.only_for) : 3]
        if any(known not in (None, size) for known, size in zip(self.only_for, sizes, strict=True)):
            raise BackendError(f"pads were chosen for {self.only_for}, not for {list(image)}")

    @classmethod
    def of(cls, op: Op, size: Sequence[int], dims: Sequence[int | str | None] | None) -> Window:
        """Read the attributes of an operator.

        Args:
            op: the operator.
            size: of the window, in one or two dimensions.
            dims: sizes of the input in these dimensions, as far as they are known.

        Raises:
            BackendError: what XNNPACK cannot do, or what is not known.
        """
        spatial = len(size)
        if spatial not in (1, 2):
            raise BackendError(f"windows of {spatial} dimensions have no kernel")
        strides = list(op.get("strides", [1] * spatial))
        dilations = list(op.get("dilations", [1] * spatial))
        pads = list(op.get("pads", [0] * 2 * spatial))
        if not len(strides) == len(dilations) == spatial or len(pads) != 2 * spatial:
            raise BackendError("strides, dilations or pads do not fit the window")
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
            raise BackendError(f"negative pads {pads} have no kernel")
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
                raise BackendError(f"auto_pad {mode} with strides needs sizes that are known")
            total = max(0, (-(-dim // stride) - 1) * stride + reach - dim)
        small, large = total // 2, total - total // 2
        before.append(small if mode == "SAME_UPPER" else large)
        after.append(large if mode == "SAME_UPPER" else small)
    return before + after


_Operator = (
    AnyConvolution | TiledConvolutionBf16 | Deconvolution | DeconvolutionS8 | AnyConvolutionS8
)


class Convolve(Ended):
    """A convolution, plain or transposed, over images, or over lines as images of height 1."""

    def __init__(
        self,
        given: Slot,
        output: Slot,
        operator: _Operator,
        window: Window,
        outputs: int,
        name: str,
        epilogue: Epilogue | None = None,
        residual: Slot | None = None,
        fits: bool = True,
    ) -> None:
        super().__init__(given, output, epilogue or Epilogue(), residual, fits)
        self.kernel = f"{operator.maker}{name}"
        self._window = window
        self._operator = operator
        self._outputs = outputs

    def plus(self, other: Slot, output: Slot, added: SumS8) -> Convolve | None:
        """Give the convolution that adds another tensor of its output's shape to that.

        None where its kernel does not; nobody may need this step afterwards.
        """
        operator = self._operator
        if not isinstance(operator, TiledConvolutionS8) or not operator.takes_sum:
            return None
        operator.take_sum(added)
        name = f"{self.kernel.removeprefix(operator.maker)} and add"
        given, window, outputs = self.inputs[0], self._window, self._outputs
        step = Convolve(given, output, operator, window, outputs, name, residual=other)
        step.nodes, step.precision = self.nodes, self.precision
        step.in_place = (1,)  # an element of it is read before the sum is written there
        return step

    @property
    def raisable(self) -> TiledWindowsS8 | None:
        """Give the operator, where it can read and write raised bytes."""
        operator = self._operator
        if isinstance(operator, TiledWindowsS8) and operator.can_be_raised:
            return operator
        return None

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Step.size`."""
        shape = shapes[0]
        image = shape if len(shape) == 4 else (shape[0], 1, *shape[1:])
        self._window.check(image)
        # An empty batch has an output too, of a size that only a full one tells.
        operator = self._operator
        height, width = operator.reshape((max(1, image[0]), *image[1:]), sizing.pool)
        if height < 1 or width < 1:
            raise BackendError(f"nothing is left of the output for an input of {list(shape)}")
        line = (image[0], width, self._outputs)
        result = (image[0], height, width, self._outputs) if len(shape) == 4 else line
        epilogue = self.fitting(shapes, result)
        if isinstance(operator, TiledConvolution | TiledConvolutionBf16):
            operator.end_with(epilogue)
        return Run(result, operator.call if image[0] else "", operator, operator.params)


def _kernel_dims(op: Op, facts: Facts) -> tuple[int, ...] | str:
    kernel = op.input(1)
    if kernel is None or not facts.is_constant(kernel):
        return "its kernel is not a constant"
    dims = facts.dims(kernel) or ()
    sizes = tuple(dim for dim in dims if isinstance(dim, int))
    if len(sizes) not in (3, 4):
        return f"convolutions of {len(sizes) - 2} dimensions have no kernel"
    if 0 in sizes:
        return "its kernel is empty"
    if tuple(op.get("kernel_shape", sizes[2:])) != sizes[2:]:
        return f"kernel_shape {list(op.get('kernel_shape', ()))} is not that of its kernel"
    if facts.rank(op.input(0)) not in (None, len(sizes)):
        return f"its input has rank {facts.rank(op.input(0))}, its kernel {len(sizes)}"
    bias = op.input(2)
    if bias is not None and not facts.is_constant(bias):
        return "its bias is not a constant"
    return sizes


def _window(op: Op, facts: Facts, sizes: tuple[int, ...]) -> Window:
    dims = facts.dims(op.input(0))
    return Window.of(op, sizes[2:], None if dims is None else dims[2:])


def _check_conv(op: Op, facts: Facts) -> str | None:
    reason = needs_floats(op, facts, 3)
    if reason:
        return reason
    sizes = _kernel_dims(op, facts)
    if isinstance(sizes, str):
        return sizes
    groups = op.get("group", 1)
    if groups < 1 or sizes[0] % groups:
        return f"{sizes[0]} output channels cannot form {groups} groups"
    channels = (facts.dims(op.input(0)) or (None, None))[1]
    if isinstance(channels, int) and channels != sizes[1] * groups:
        return f"its input has {channels} channels, its kernel is for {sizes[1] * groups}"
    try:
        _window(op, facts, sizes)
    except BackendError as error:
        return str(error)
    return _check_bias(op, facts, sizes[0])


def _check_bias(op: Op, facts: Facts, channels: int) -> str | None:
    bias = op.input(2)
    if bias is not None and facts.dims(bias) != (channels,):
        return f"its bias is of shape {facts.dims(bias)}, not [{channels}]"
    return None


def _bias(facts: Facts, value: ir.Value | None) -> Weight | None:
    return None if value is None else facts.weight(value)


def _movement(op: Op, window: Window) -> Movement:
    return Movement(window.pads, window.strides, window.dilations, op.get("group", 1), op.limits)


def _is_depthwise(op: Op, per_group: int) -> bool:
    return per_group == 1 and bool(op.get("group", 1) > 1)


def _conv_ends(op: Op, facts: Facts) -> bool:
    sizes = _kernel_dims(op, facts)
    if isinstance(sizes, str):
        return False
    window, depthwise = _window(op, facts, sizes), _is_depthwise(op, sizes[1])
    if facts.stored(op.required(1)).dtype == BFLOAT16 and convolution_is_ours(depthwise=depthwise):
        return True
    return fp32_choice.is_ours(window.size, _movement(op, window), depthwise=depthwise)


@lowers("Conv", check=_check_conv, clamps=True, ends=_conv_ends)
def _conv(op: Op, builder: Builder) -> None:
    facts = builder.facts
    given = op.required(0)
    kernel = facts.stored(op.required(1))
    window = _window(op, facts, kernel.shape)
    outputs, per_group = kernel.shape[:2]
    perm = CHANNELS_LAST[len(kernel.shape)]
    movement = _movement(op, window)
    depthwise = _is_depthwise(op, per_group)
    if kernel.dtype == BFLOAT16 and convolution_is_ours(depthwise=depthwise):
        packed = kernel.reshape(outputs, per_group, *window.size).transpose(0, 2, 3, 1)
        bias, session = _bias(facts, op.input(2)), builder.session
        narrow = TiledConvolutionBf16(packed, bias, movement, op.epilogue, session=session)
        step = Convolve(
            builder.at(given, perm),
            builder.new(op.output),
            narrow,
            window,
            outputs,
            "convolution",
            op.epilogue,
            residual_of(op, builder, perm),
            op.residual_fits,
        )
        step.precision = kernel.dtype.name
        emit(op, builder, step, perm)
        return
    kernel = kernel.cast(np.dtype(np.float32))
    if fp32_choice.is_product(window.size, movement):
        # As floats: bytes of a matrix would be widened in each run.
        floats = dataclasses.replace(kernel.reshape(outputs, per_group), quantized=None)
        product = Product(
            floats.transpose(1, 0),
            _bias(facts, op.input(2)),
            op.epilogue,
            rows=None,
            accumulate="",
            activations="",
            session=builder.session,
        )
        slot = builder.at(given, perm)
        residual = residual_of(op, builder, perm)
        fits = op.residual_fits
        emit(op, builder, Linear(slot, builder.new(op.output), product, residual, fits), perm)
        return
    image = kernel.reshape(outputs, per_group, *window.size)
    if depthwise:
        packed = image.reshape(outputs, *window.size).transpose(1, 2, 0)
    else:
        packed = image.transpose(0, 2, 3, 1)
    operator = fp32_choice.convolution(
        packed,
        _bias(facts, op.input(2)),
        movement,
        op.epilogue,
        depthwise=depthwise,
        session=builder.session,
    )
    name = "depthwise convolution" if depthwise else "convolution"
    step = Convolve(
        builder.at(given, perm),
        builder.new(op.output),
        operator,
        window,
        outputs,
        name,
        op.epilogue,
        residual_of(op, builder, perm),
        op.residual_fits,
    )
    emit(op, builder, step, perm)


def _check_conv_transpose(op: Op, facts: Facts) -> str | None:
    reason = needs_floats(op, facts, 3)
    if reason:
        return reason
    sizes = _kernel_dims(op, facts)
    if isinstance(sizes, str):
        return sizes
    if op.get("output_shape", None) is not None:
        return "an output_shape is given; only pads and output_padding are covered"
    if op.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return f"auto_pad {op.get('auto_pad', '')} of transposed convolutions is not covered"
    groups = op.get("group", 1)
    if groups < 1 or sizes[0] % groups:
        return f"{sizes[0]} input channels cannot form {groups} groups"
    channels = (facts.dims(op.input(0)) or (None, None))[1]
    if isinstance(channels, int) and channels != sizes[0]:
        return f"its input has {channels} channels, its kernel is for {sizes[0]}"
    try:
        window = _window(op, facts, sizes)
    except BackendError as error:
        return str(error)
    extra = list(op.get("output_padding", [0] * (len(sizes) - 2)))
    strides = window.strides[-len(extra) :]
    if any(not 0 <= a < s for a, s in zip(extra, strides, strict=False)):
        return f"output_padding {extra} is not below the strides"
    return _check_bias(op, facts, sizes[1] * groups)


@lowers("ConvTranspose", check=_check_conv_transpose, clamps=True)
def _conv_transpose(op: Op, builder: Builder) -> None:
    facts = builder.facts
    kernel = facts.weight(op.required(1))
    window = _window(op, facts, kernel.shape)
    groups = op.get("group", 1)
    inputs, per_group = kernel.shape[:2]
    outputs = per_group * groups
    grouped = kernel.reshape(groups, inputs // groups, per_group, *window.size)
    packed = grouped.transpose(0, 2, 3, 4, 1).reshape(outputs, *window.size, inputs // groups)
    rank = len(kernel.shape)
    extra = list(op.get("output_padding", [0] * (rank - 2)))
    operator = Deconvolution(
        packed,
        _bias(facts, op.input(2)),
        _movement(op, window),
        [0, *extra] if len(extra) == 1 else extra,
        session=builder.session,
    )
    perm = CHANNELS_LAST[rank]
    given = builder.at(op.required(0), perm)
    name = "deconvolution"
    step = Convolve(given, builder.new(op.output), operator, window, outputs, name)
    builder.emit(step, op.output, perm)
