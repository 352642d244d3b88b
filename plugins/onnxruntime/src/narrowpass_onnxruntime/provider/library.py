"""The C extension with the provider, and calls of onnxruntime's functions through it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

_provider: Any = importlib.import_module("narrowpass_onnxruntime.provider._provider")
ffi: Any = _provider.ffi
lib: Any = _provider.lib
PATH: str = _provider.__file__
"""The library that onnxruntime loads."""


class OrtError(Exception):
    """A function of onnxruntime failed; the message is onnxruntime's."""


def ort() -> Any:
    """Return the table of onnxruntime's functions; it is there once the library is registered."""
    return lib.np_ort_loaded()


def check(status: Any) -> None:
    """Raise for a status that is not NULL, and free it.

    Raises:
        OrtError: the status is one of a failure.
    """
    if status == ffi.NULL:
        return
    table = ort()
    message = text(table.GetErrorMessage(status))
    table.ReleaseStatus(status)
    raise OrtError(message)


def failure(message: str, code: int | None = None) -> Any:
    """Return a status that onnxruntime raises with this message."""
    return ort().CreateStatus(lib.NP_ORT_FAIL if code is None else code, message.encode())


def text(pointer: Any) -> str:
    """Return a string of C; empty for NULL."""
    if pointer == ffi.NULL:
        return ""
    return bytes(ffi.string(pointer)).decode("utf-8", "replace")


def one(kind: str, call: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function writes to its last argument, a pointer to `kind`."""
    found = ffi.new(f"{kind} *")
    check(call(*arguments, found))
    return found[0]


def several(kind: str, count: Callable[..., Any], call: Callable[..., Any], owner: Any) -> Any:
    """Return the array of `kind` that a function writes, of the length that another says."""
    length = one("size_t", count, owner)
    found = ffi.new(f"{kind}[]", max(1, length))
    if length:
        check(call(owner, found, length))
    return [found[index] for index in range(length)]


_INFO, _WARNING = 1, 2
_NAME = b"narrowpass"


class Log:
    """The log of a session.

    Args:
        pointer: ``const OrtLogger *``, valid as long as the session's provider.
    """

    def __init__(self, pointer: Any) -> None:
        self._pointer = pointer

    def info(self, message: str) -> None:
        """Log something that only a verbose session shows."""
        self._write(_INFO, message)

    def warn(self, message: str) -> None:
        """Log a warning."""
        self._write(_WARNING, message)

    def _write(self, severity: int, message: str) -> None:
        api = ort()
        status = api.Logger_LogMessage(
            self._pointer, severity, f"narrowpass: {message}".encode(), _NAME, 0, _NAME
        )
        if status != ffi.NULL:
            api.ReleaseStatus(status)
