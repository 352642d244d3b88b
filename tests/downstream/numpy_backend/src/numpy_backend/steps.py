"""The kernels: steps that are sized for the shapes of their inputs, and then called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from narrowpass_planning.plan import Run, Sizing, Slot, Step, python_run
from numpy_backend.packed import Array, Matrix

Shape = tuple[int, ...]


class Pointwise(Step):
    """Computes element by element, so that the output may be written over an input."""

    def __init__(
        self, kind: str, function: Callable[..., Any], inputs: Sequence[Slot], output: Slot
    ) -> None:
        super().__init__(inputs, output)
        self.kernel = f"numpy {kind.lower()}"
        self.in_place = tuple(range(len(inputs)))
        self._function = function

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """Return how it runs; operands are broadcast."""
        return python_run(self, shapes, np.broadcast_shapes(*shapes), self._function)


def sigmoid(x: Array, out: Array) -> None:
    """Compute the logistic function, which must not overflow."""
    np.multiply(x, 0.5, out)
    np.tanh(out, out)
    np.add(out, 1, out)
    np.multiply(out, 0.5, out)


POINTWISE: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "Mul": np.multiply,
    "Relu": lambda x, out: np.maximum(x, 0, out=out),
    "Sigmoid": sigmoid,
}


class Rows(Step):
    """Computes along axes: a Softmax, or a mean that keeps the axes."""

    def __init__(self, kernel: str, axes: tuple[int, ...], given: Slot, output: Slot) -> None:
        super().__init__([given], output)
        self.kernel = f"numpy {kernel}"
        self._axes = axes

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """Return how it runs."""
        (shape,) = shapes
        if self.kernel == "numpy softmax":
            return python_run(self, shapes, shape, self._softmax)
        means = tuple(1 if axis in self._axes else dim for axis, dim in enumerate(shape))
        return python_run(self, shapes, means, self._mean)

    def _softmax(self, x: Array, out: Array) -> None:
        np.exp(x - x.max(self._axes, keepdims=True), out)
        np.divide(out, out.sum(self._axes, keepdims=True), out)

    def _mean(self, x: Array, out: Array) -> None:
        np.mean(x, self._axes, keepdims=True, out=out)


class Transposed(Step):
    """Copies elements to another order of axes."""

    kernel = "numpy transpose"

    def __init__(self, perm: Sequence[int], given: Slot, output: Slot) -> None:
        super().__init__([given], output)
        self._perm = tuple(perm)

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """Return how it runs."""
        shape = tuple(shapes[0][axis] for axis in self._perm)
        return python_run(
            self, shapes, shape, lambda x, out: np.copyto(out, x.transpose(self._perm))
        )


class Reshaped(Step):
    """Another shape of the same bytes: nothing runs."""

    kernel = "view"

    def __init__(self, target: str, given: Slot, output: Slot) -> None:
        super().__init__([given], output)
        self.values = (target,)

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """Return that the output is the input, in the shape that follows from shapes."""
        (given,) = shapes
        target = [int(dim) for dim in sizing.value(self.values[0])]
        dims = [given[axis] if dim == 0 else dim for axis, dim in enumerate(target)]
        return Run(np.empty(given, np.bool_).reshape(dims).shape, view=0)


class FullyConnected(Step):
    """Multiplies rows by a packed matrix."""

    kernel = "numpy matmul"

    def __init__(self, matrix: Matrix, given: Slot, output: Slot) -> None:
        super().__init__([given], output)
        self._matrix = matrix
        if matrix.scales is not None:
            self.kernel = "numpy matmul int8 (weights)"

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """Return how it runs."""
        shape = (*shapes[0][:-1], len(self._matrix.elements))
        return python_run(
            self, shapes, shape, lambda x, out: np.copyto(out, self._matrix.multiply(x))
        )


class Convolution(Step):
    """Convolves images [N, C, H, W]: im2col, and a matmul with a packed matrix [O, C·h·w]."""

    kernel = "numpy im2col"

    def __init__(
        self,
        matrix: Matrix,
        kernel_shape: Sequence[int],
        strides: Sequence[int],
        pads: Sequence[int],
        given: Slot,
        output: Slot,
    ) -> None:
        super().__init__([given], output)
        self._matrix, self._strides = matrix, tuple(strides)
        self._kernel_shape = tuple(kernel_shape)
        self._pads = (0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """Return how it runs."""
        (shape,) = shapes
        sizes = [dim + sum(pad) for dim, pad in zip(shape[2:], self._pads[2:], strict=True)]
        pixels = [
            (dim - reach) // step + 1
            for dim, reach, step in zip(sizes, self._kernel_shape, self._strides, strict=True)
        ]
        result = shape[0], len(self._matrix.elements), *pixels
        return python_run(self, shapes, result, self._convolve)

    def _convolve(self, x: Array, out: Array) -> None:
        patches = sliding_window_view(np.pad(x, self._pads), self._kernel_shape, (2, 3))
        patches = patches[:, :, :: self._strides[0], :: self._strides[1]]
        columns = patches.transpose(0, 2, 3, 1, 4, 5)
        rows = columns.reshape(*columns.shape[:3], -1)
        np.copyto(out, self._matrix.multiply(rows).transpose(0, 3, 1, 2))
