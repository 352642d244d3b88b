"""Exceptions of the classes that onnxruntime raises, for callers that catch these."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias

ErrorName: TypeAlias = Literal[
    "Fail",
    "InvalidArgument",
    "InvalidGraph",
    "InvalidProtobuf",
    "NoSuchFile",
    "NotImplemented",
]
"""Names of exception classes in ``onnxruntime.capi.onnxruntime_pybind11_state``."""

_STATUS: Mapping[ErrorName, tuple[int, str]] = MappingProxyType(
    {
        "Fail": (1, "FAIL"),
        "InvalidArgument": (2, "INVALID_ARGUMENT"),
        "NoSuchFile": (3, "NO_SUCHFILE"),
        "InvalidProtobuf": (7, "INVALID_PROTOBUF"),
        "NotImplemented": (9, "NOT_IMPLEMENTED"),
        "InvalidGraph": (10, "INVALID_GRAPH"),
    }
)
"""Code and name of each status, with which onnxruntime begins its messages."""


class Fail(Exception):  # noqa: N818  # these are onnxruntime's names
    """Stands in for onnxruntime's class where it is not installed."""


class InvalidArgument(Exception):  # noqa: N818
    """Stands in for onnxruntime's class where it is not installed."""


class InvalidGraph(Exception):  # noqa: N818
    """Stands in for onnxruntime's class where it is not installed."""


class InvalidProtobuf(Exception):  # noqa: N818
    """Stands in for onnxruntime's class where it is not installed."""


class NoSuchFile(Exception):  # noqa: N818
    """Stands in for onnxruntime's class where it is not installed."""


class NotImplemented(Exception):  # noqa: A001, N818
    """Stands in for onnxruntime's class where it is not installed."""


_STAND_INS: Mapping[ErrorName, type[Exception]] = MappingProxyType(
    {
        "Fail": Fail,
        "InvalidArgument": InvalidArgument,
        "InvalidGraph": InvalidGraph,
        "InvalidProtobuf": InvalidProtobuf,
        "NoSuchFile": NoSuchFile,
        "NotImplemented": NotImplemented,
    }
)


def is_installed() -> bool:
    """Return whether onnxruntime's package is there, without importing it."""
    return importlib.util.find_spec("onnxruntime") is not None


def error_class(name: ErrorName) -> type[Exception]:
    """Return onnxruntime's exception class of that name, or the one that stands in for it."""
    if not is_installed():
        return _STAND_INS[name]
    try:
        state = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    except Exception:  # noqa: BLE001  # a library that does not load raises anything
        return _STAND_INS[name]
    found: type[Exception] = getattr(state, name)
    return found


def error(name: ErrorName, message: str) -> Exception:
    """Return an exception of one of onnxruntime's classes, with a message of its form.

    Args:
        name: of the class.
        message: what is wrong, and what to do.
    """
    code, status = _STATUS[name]
    return error_class(name)(f"[ONNXRuntimeError] : {code} : {status} : {message}")


def unsupported(option: str, instead: str) -> Exception:
    """Return the exception for an option that this class does not support.

    Args:
        option: as the caller named it.
        instead: what to do.
    """
    return error(
        "NotImplemented",
        f"{option} is not supported by narrowpass_onnxruntime.InferenceSession; {instead}",
    )
