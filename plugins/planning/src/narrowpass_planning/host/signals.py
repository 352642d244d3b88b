"""Numpy kernels: DFT and STFT."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from narrowpass_planning.graph.op import Op

Array = np.ndarray[Any, Any]
Kernel = Callable[..., Any]


def _complex(x: Array) -> Array:
    """Return the numbers whose parts are along the last axis, which may lack the imaginary one."""
    if x.shape[-1] == 1:
        return x[..., 0]
    numbers: Array = x[..., 0] + 1j * x[..., 1]
    return numbers


def _parts(x: Array, dtype: np.dtype[Any]) -> Array:
    return np.stack([x.real, x.imag], -1).astype(dtype)


def dft(op: Op) -> Kernel:
    """Transform along an axis; see ONNX's DFT."""
    inverse, half = bool(op.get("inverse", 0)), bool(op.get("onesided", 0))
    if inverse and half:
        raise KeyError("inverse and onesided")

    def run(x: Array, length: Array | None = None, along: Array | None = None) -> Array:
        given = op.get("axis", 1) if op.version < 20 else -2
        axis = int(given if along is None else along.item()) % x.ndim
        numbers = _complex(x)
        size = numbers.shape[axis] if length is None else int(length.item())
        spectrum = (np.fft.ifft if inverse else np.fft.fft)(numbers, size, axis)
        if half:
            spectrum = spectrum.take(range(size // 2 + 1), axis)
        return _parts(spectrum, x.dtype)

    return run


def stft(op: Op) -> Kernel:
    """Transform frames of a signal [batch, samples, parts]; see ONNX's STFT."""
    half = bool(op.get("onesided", 1))

    def run(
        signal: Array,
        step: Array,
        window_function: Array | None = None,
        length: Array | None = None,
    ) -> Array:
        numbers, by = _complex(signal), int(step.item())
        if window_function is not None:
            size = window_function.size
        else:
            size = numbers.shape[1] if length is None else int(length.item())
        if by < 1 or not 0 < size <= numbers.shape[1]:
            raise ValueError(f"frames of {size} by {by} do not fit {list(signal.shape)}")
        frames = np.lib.stride_tricks.sliding_window_view(numbers, size, axis=1)[:, ::by]
        weighted = frames if window_function is None else frames * window_function
        if half and not np.iscomplexobj(weighted):
            spectrum = np.fft.rfft(weighted, size, -1)
        else:
            spectrum = np.fft.fft(weighted, size, -1)
            spectrum = spectrum[..., : size // 2 + 1] if half else spectrum
        return _parts(spectrum, signal.dtype)

    return run
