"""Feeds as onnxruntime takes them: checked, and converted where it converts them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from narrowpass_onnxruntime.session.errors import error
from narrowpass_onnxruntime.session.metadata import Interface, NodeArg
from narrowpass_onnxruntime.session.values import is_ort_value, view_of

Array = np.ndarray[Any, Any]

_TENSOR = re.compile(r"tensor\((\w+)\)")
_DTYPES: Mapping[str, np.dtype[Any]] = {
    "float": np.dtype(np.float32),
    "double": np.dtype(np.float64),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float8e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8e4m3fnuz": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "float8e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "float8e5m2fnuz": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "int4": np.dtype(ml_dtypes.int4),
    "uint4": np.dtype(ml_dtypes.uint4),
}
"""Types whose ONNX name is not numpy's."""


def dtype_of(kind: str) -> np.dtype[Any] | None:
    """Return the numpy type of ``tensor(...)``; object for strings, None for other types."""
    match = _TENSOR.fullmatch(kind)
    if match is None:
        return None
    name = match[1]
    if name == "string":
        return np.dtype(object)
    return _DTYPES.get(name) or np.dtype(name)


class Feeding:
    """Converts feeds to what a program takes.

    Args:
        interface: of the model.
    """

    def __init__(self, interface: Interface) -> None:
        self._inputs = interface.inputs
        self._known = {arg.name: arg for arg in (*interface.inputs, *interface.overridable)}

    def check_names(self, names: Iterable[str]) -> None:
        """Check that every input that needs one has a value.

        Raises:
            ValueError: one that has none.
        """
        given = list(names)
        missing = [
            arg.name
            for arg in self._inputs
            if arg.name not in given and not arg.type.startswith("optional")
        ]
        if missing:
            raise ValueError(
                f"Required inputs ({missing}) are missing from input feed ({given}); "
                "pass a value for each"  # programs look for this text
            )

    def convert(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Return the feeds as arrays of the types that the model takes.

        Lists become arrays, `OrtValue` a view of its memory, and what is fed for strings becomes
        text.

        Raises:
            ValueError: an input that has no value.
            RuntimeError: a value that onnxruntime takes for no tensor.
            InvalidArgument: an unknown input, or one of another type or shape.
        """
        self.check_names(feeds.keys())
        for name in feeds:
            if name not in self._known:
                raise error(
                    "InvalidArgument",
                    f"invalid input name: {name!r}; the model's inputs: "
                    f"{', '.join(self._known) or 'none'}",
                )
        converted = {name: _converted(self._known[name], value) for name, value in feeds.items()}
        for name, value in converted.items():
            _check(self._known[name], value)
        for arg in self._inputs:
            converted.setdefault(arg.name, None)  # an optional one
        return converted

    def conflict(self, feeds: Mapping[str, Any]) -> str:
        """Return the name of a dimension that has two sizes in converted feeds; empty for none."""
        sizes: dict[str, int] = {}
        for name, value in feeds.items():
            shape = value.shape if isinstance(value, np.ndarray) else ()
            for dim, size in zip(self._known[name].shape, shape, strict=False):
                if isinstance(dim, str) and sizes.setdefault(dim, size) != size:
                    return dim
        return ""


def _converted(arg: NodeArg, value: Any) -> Any:
    if is_ort_value(value):
        value = view_of(value)
    dtype = dtype_of(arg.type)
    if dtype is None:
        return value
    if isinstance(value, list):
        value = np.array(value, dtype)
    if not isinstance(value, np.ndarray):
        raise RuntimeError(
            f"input {arg.name!r} takes a numpy array, not {type(value).__name__}; convert it: "
            f"np.asarray(value, dtype={dtype.name!r})"
        )
    return _strings(value) if dtype.hasobject else value


def _strings(value: Array) -> Array:
    """Return an array of text: bytes are decoded, and what is no text is printed.

    Zeros at the end are part of a text in arrays of the type void, and of no other.
    """
    if value.dtype.kind in "SV":
        texts = [bytes(item).decode() for item in value.flat]
    elif value.dtype.kind == "O":
        texts = [item if isinstance(item, str) else str(item) for item in value.flat]
    else:
        return value
    return np.array([*texts, ""], object)[:-1].reshape(value.shape)


def _check(arg: NodeArg, value: Any) -> None:
    dtype = dtype_of(arg.type)
    if dtype is None or not isinstance(value, np.ndarray):
        return
    fits = value.dtype.kind in "OU" if dtype.hasobject else value.dtype == dtype
    if not fits:
        raise error(
            "InvalidArgument",
            f"unexpected input data type of {arg.name!r}: it takes {arg.type}, not an array of "
            f"{value.dtype}; convert it with .astype",
        )
    if not arg.shape:
        return
    if len(arg.shape) != value.ndim:
        raise error(
            "InvalidArgument",
            f"invalid rank for input: {arg.name!r} has {value.ndim} dimensions, expected "
            f"{len(arg.shape)}: {arg.shape}; reshape it, or fix the model",
        )
    wrong = [
        f"index {axis}: got {size}, expected {dim}"
        for axis, (dim, size) in enumerate(zip(arg.shape, value.shape, strict=True))
        if isinstance(dim, int) and dim != size
    ]
    if wrong:
        raise error(
            "InvalidArgument",
            f"got invalid dimensions for input: {arg.name!r}: {'; '.join(wrong)}; "
            "reshape it, or fix the model",
        )
