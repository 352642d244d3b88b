"""Between ``onnxruntime.OrtValue`` and numpy arrays, on the same memory."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass_onnxruntime.session.errors import error, is_installed, unsupported

Array = np.ndarray[Any, Any]


def is_ort_value(value: object) -> bool:
    """Return whether a value is an ``OrtValue``, without importing onnxruntime."""
    loaded = sys.modules.get("onnxruntime")
    return loaded is not None and isinstance(value, loaded.OrtValue)


def view_of(value: Any) -> Any:
    """Return what an ``OrtValue`` on the CPU holds: a view of a tensor, or a list of arrays.

    Raises:
        NotImplemented: it is on another device, or holds something else.
    """
    if value.device_name() != "cpu":
        raise unsupported(f"an OrtValue on {value.device_name()!r}", "create it on the CPU")
    if value.is_tensor():
        kind = ir.DataType(value.element_type())
        if kind == ir.DataType.STRING:
            return value.numpy()
        return array_at(value.data_ptr(), kind, value.shape(), value)
    return value.numpy()


def array_at(address: int, kind: ir.DataType, shape: Sequence[int], owner: object = None) -> Array:
    """Return the array that lies at an address.

    Args:
        address: of the first element.
        kind: of the elements.
        shape: of the array.
        owner: lives as long as the array; without one, the caller keeps the memory.

    Raises:
        NotImplemented: elements of less than a byte, or strings.
    """
    if kind == ir.DataType.STRING or kind.bitwidth < 8:  # bits of a byte
        raise unsupported(f"memory of {kind.name.lower()} by its address", "bind an array")
    dtype = np.dtype(kind.numpy())
    size = math.prod(shape) * dtype.itemsize
    if size == 0:
        return np.empty(tuple(shape), dtype)
    buffer: Any = (ctypes.c_uint8 * size).from_address(address)
    buffer.owner = owner  # an attribute of ours
    found: Array = np.frombuffer(buffer, np.uint8).view(dtype).reshape(tuple(shape))
    return found


def kind_of_element(given: Any) -> ir.DataType:
    """Return the element type that a caller names: a number of ONNX's, or a type of numpy."""
    if isinstance(given, int):
        return ir.DataType(given)
    dtype = np.dtype(given)
    return ir.DataType.STRING if dtype.kind in "OU" else ir.DataType.from_numpy(dtype)


def ort_value_of(value: Any) -> Any:
    """Return an ``OrtValue`` on the memory of an array; strings are copied.

    Raises:
        Fail: onnxruntime is not installed.
        NotImplemented: a value that is no tensor, which onnxruntime cannot create from Python.
    """
    if not is_installed():
        raise error("Fail", "OrtValue is a class of onnxruntime, which is not installed")
    import onnxruntime

    if not isinstance(value, np.ndarray):
        raise unsupported("an output that is no tensor, as OrtValue,", "use `run`")
    if value.dtype.type.__module__ == "numpy":
        return onnxruntime.OrtValue.ortvalue_from_numpy(np.asarray(value, order="C"))
    kind = ir.DataType.from_numpy(value.dtype)
    raw = np.asarray(value, order="C").view(np.uint16 if value.dtype.itemsize == 2 else np.uint8)
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, int(kind))
