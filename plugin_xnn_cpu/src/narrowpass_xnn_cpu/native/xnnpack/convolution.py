"""XNNPACK's convolutions over [N, H, W, C], plain and transposed, of float32 and of int8."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from narrowpass.errors import BackendError
from narrowpass_planning.weights.weight import Quantized, Weight
from narrowpass_xnn_cpu.native.problems.bounds import (
    check_kernel_size,
    checked_pixels,
    checked_range,
    checked_weights,
)
from narrowpass_xnn_cpu.native.problems.convolution import Convolution, check_transposed_output
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue
from narrowpass_xnn_cpu.native.problems.quantization import (
    Requantized,
    checked_integers,
    checked_requantization,
    checked_scales,
)
from narrowpass_xnn_cpu.native.runtime.pool import ThreadPool
from narrowpass_xnn_cpu.native.weights_cache import Session
from narrowpass_xnn_cpu.native.xnnpack.operator import XnnOperator


@dataclass(frozen=True)
class XnnConvolutionKernel:
    """One of XNNPACK's convolutions.

    Attributes:
        name: of the kernel, as plans print it.
        call: its name in ``kernels.def``.
        kind: part of the names of packed weights in weights caches.
        creating: the function ``xnn_create_*``, which packs.
        reshaping: the function ``xnn_reshape_*``.
    """

    name: str
    call: str
    kind: str
    creating: str
    reshaping: str

    def create(self, problem: Convolution, session: Session | None = None) -> XnnConvolution:
        """Pack the weights, in a session of the weights cache if there is one.

        Raises:
            UnfitError: constants that XNNPACK does not support.
            BackendError: other invalid shapes or types.
        """
        return XnnConvolution(self, problem, session)


CONVOLUTION = XnnConvolutionKernel(
    "convolution",
    "NP_CONVOLUTION",
    "convolution",
    "xnn_create_convolution2d_nhwc_f32",
    "xnn_reshape_convolution2d_nhwc_f32",
)
DECONVOLUTION = XnnConvolutionKernel(
    "deconvolution",
    "NP_DECONVOLUTION",
    "deconvolution",
    "xnn_create_deconvolution2d_nhwc_f32",
    "xnn_reshape_deconvolution2d_nhwc_f32",
)
CONVOLUTION_S8 = XnnConvolutionKernel(
    "convolution int8",
    "NP_CONVOLUTION_S8",
    "convolution s8",
    "xnn_create_convolution2d_nhwc_qs8_qc8w",
    "xnn_reshape_convolution2d_nhwc_qs8_qc8w",
)
DECONVOLUTION_S8 = XnnConvolutionKernel(
    "deconvolution int8",
    "NP_DECONVOLUTION_S8",
    "deconvolution s8",
    "xnn_create_deconvolution2d_nhwc_qs8_qc8w",
    "xnn_reshape_deconvolution2d_nhwc_qs8_qc8w",
)


class XnnConvolution(XnnOperator):
    """A convolution of XNNPACK with its packed weights.

    Attributes:
        kernel: the kernel.
        channels: of the input.
    """

    def __init__(
        self, kernel: XnnConvolutionKernel, problem: Convolution, session: Session | None
    ) -> None:
        super().__init__()
        self.kernel, self.call, self.kind = kernel, kernel.call, kernel.kind
        self.name = "convolution"
        self._problem = problem
        geometry, attributes = problem.geometry, problem.attributes
        self.channels, self.outputs = geometry.channels, geometry.outputs
        groups = attributes.groups
        top, left, bottom, right = attributes.pads
        sizes = (
            *(
                top,
                right,
                bottom,
                left,
                *geometry.kernel_size,
                *attributes.strides,
                *attributes.dilations,
            ),
            *(groups, self.channels // groups, self.outputs // groups),
            *(self.channels, self.outputs),
        )
        adjustments = problem.adjustments
        if adjustments is not None:
            checked_pixels(adjustments, 0, "output padding")
            if any(a >= s for a, s in zip(adjustments, attributes.strides, strict=True)):
                raise BackendError(
                    f"output padding {adjustments} is not below the stride {attributes.strides}"
                )
        flags = self._lib.XNN_FLAG_DEPTHWISE_CONVOLUTION if problem.depthwise else 0
        if isinstance(problem.kernel, Quantized) and isinstance(problem.result, Requantized):
            self._pack_int8(problem.kernel, problem.result, sizes, flags, session)
        elif isinstance(problem.kernel, Weight):
            self._pack_float(problem.kernel, sizes, flags, session)
        else:
            raise BackendError(f"XNNPACK has no convolution of {problem.dtypes}")

    def _pack_float(
        self, kernel: Weight, sizes: tuple[int, ...], flags: int, session: Session | None
    ) -> None:
        problem, attributes = self._problem, self._problem.attributes
        checked_weights(kernel, problem.bias, self.outputs, "float32", "float32")
        low, high = checked_range(clamp_of(problem.epilogue))
        create = getattr(self._lib, self.kernel.creating)

        def call(k: Any, b: Any, cache: Any, handle: Any) -> int:
            return int(create(*sizes, k, b, low, high, flags | self._flags, cache, handle))

        parameters = (attributes.groups, attributes.strides, flags)
        self._packed(session, parameters, kernel, problem.bias, call)

    def _pack_int8(
        self,
        kernel: Quantized,
        requantized: Requantized,
        sizes: tuple[int, ...],
        flags: int,
        session: Session | None,
    ) -> None:
        problem, attributes = self._problem, self._problem.attributes
        requantized.check()
        integers = checked_integers(kernel.integers)
        scales = checked_scales(kernel, self.outputs, 2 if problem.depthwise else 0)
        checked_weights(integers, problem.bias, self.outputs, "int8", "int32")
        source, result, (low, high) = requantized.input, requantized.output, requantized.limits
        create = getattr(self._lib, self.kernel.creating)

        def call(k: Any, b: Any, cache: Any, handle: Any, s: Any) -> int:
            rest = result.zero_point, result.scale, low, high, flags | self._flags, cache, handle
            return int(create(*sizes, source.zero_point, source.scale, s, k, b, *rest))

        # All that determines the packed bytes: the packed bias depends on zero points, and the
        # packed scales on those of input and output.
        parameters = (attributes.groups, attributes.strides, flags, source, result.scale.hex())
        others = [checked_requantization(scales, requantized)]
        self._packed(session, parameters, integers, problem.bias, call, others)

    def reshape(self, shape: Sequence[int], pool: ThreadPool) -> tuple[int, int]:
        """Reshape for an input of `shape` [N, H, W, C]; return the output's height and width."""
        problem, geometry = self._problem, self._problem.geometry
        image = geometry.checked_image(shape)
        function = self.kernel.reshaping
        sizes = self._ffi.new("size_t[3]")
        if problem.adjustments is not None:
            check_transposed_output(
                image, geometry.kernel_size, problem.attributes, problem.adjustments
            )
            rest = *problem.adjustments, sizes, sizes + 1
            self._reshape(function, shape, *image[:3], *rest, pool.handle)
            return sizes[0], sizes[1]
        check_kernel_size(
            image, geometry.kernel_size, problem.attributes.pads, problem.attributes.dilations
        )
        rest = sizes, sizes + 1, sizes + 2
        self._reshape(function, shape, *image[:3], *rest, pool.handle)
        self.workspace = sizes[0]
        return sizes[1], sizes[2]


def clamp_of(epilogue: Epilogue) -> tuple[float, float]:
    """Return the clipping range of an epilogue; XNNPACK has no other one.

    Raises:
        BackendError: an epilogue with another function, or with a residual.
    """
    if not epilogue.is_clamp:
        raise BackendError(f"XNNPACK's operators do not end with {epilogue}")
    return epilogue.limits


def create(problem: Convolution, session: Session | None = None) -> XnnConvolution:
    """Return XNNPACK's operator of a convolution; see `XnnConvolutionKernel.create`."""
    plain, transposed = (
        (CONVOLUTION_S8, DECONVOLUTION_S8)
        if isinstance(problem.kernel, Quantized)
        else (CONVOLUTION, DECONVOLUTION)
    )
    return (plain if problem.adjustments is None else transposed).create(problem, session)
