"""The step of a convolution, and how its window moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from narrowpass.errors import BackendError
from narrowpass_planning.plan.step import Run, Shape, Sizing, Slot
from narrowpass_xnn_cpu.lower.builder import Perm
from narrowpass_xnn_cpu.lower.ending import Ended
from narrowpass_xnn_cpu.lower.op import Op
from narrowpass_xnn_cpu.native.epilogue import Epilogue
from narrowpass_xnn_cpu.native.operators import Deconvolution, DeconvolutionS8
from narrowpass_xnn_cpu.native.operators.fp32_choice import AnyConvolution
from narrowpass_xnn_cpu.native.operators.int8_choice import AnyConvolutionS8
from narrowpass_xnn_cpu.native.operators.int8_tensors import SumS8
from narrowpass_xnn_cpu.native.operators.separable import Separable
from narrowpass_xnn_cpu.native.operators.tiled_bf16 import TiledConvolutionBf16
from narrowpass_xnn_cpu.native.operators.tiled_convolution import TiledConvolutionS8
from narrowpass_xnn_cpu.native.operators.tiled_fp32 import Fp32
from narrowpass_xnn_cpu.native.operators.tiled_windows import TiledWindowsS8

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
    AnyConvolution
    | TiledConvolutionBf16
    | Deconvolution
    | DeconvolutionS8
    | AnyConvolutionS8
    | Separable
)


class Convolve(Ended):
    """A convolution, plain or transposed, over images, or over lines as images of height 1.

    Attributes:
        operator: what computes it.
        window: how its window moves.
    """

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
        self.window = window
        self.operator = operator
        self._outputs = outputs

    def plus(self, other: Slot, output: Slot, added: SumS8) -> Convolve | None:
        """Give the convolution that adds another tensor of its output's shape to that.

        None where its kernel does not; nobody may need this step afterwards.
        """
        operator = self.operator
        if not isinstance(operator, TiledConvolutionS8) or not operator.takes_sum:
            return None
        operator.take_sum(added)
        name = f"{self.kernel.removeprefix(operator.maker)} and add"
        given, window, outputs = self.inputs[0], self.window, self._outputs
        step = Convolve(given, output, operator, window, outputs, name, residual=other)
        step.nodes, step.precision = self.nodes, self.precision
        step.in_place = (1,)  # an element of it is read before the sum is written there
        return step

    @property
    def raisable(self) -> TiledWindowsS8 | None:
        """Give the operator, where it can read and write raised bytes."""
        operator = self.operator
        if isinstance(operator, TiledWindowsS8) and operator.can_be_raised:
            return operator
        return None

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Step.size`."""
        shape = shapes[0]
        image = shape if len(shape) == 4 else (shape[0], 1, *shape[1:])
        self.window.check(image)
        # An empty batch has an output too, of a size that only a full one tells.
        operator = self.operator
        height, width = operator.reshape((max(1, image[0]), *image[1:]), sizing.pool)
        if height < 1 or width < 1:
            raise BackendError(f"nothing is left of the output for an input of {list(shape)}")
        line = (image[0], width, self._outputs)
        result = (image[0], height, width, self._outputs) if len(shape) == 4 else line
        epilogue = self.fitting(shapes, result)
        if isinstance(operator, Fp32 | TiledConvolutionBf16):
            operator.end_with(epilogue)
        return Run(result, operator.call if image[0] else "", operator, operator.params)
