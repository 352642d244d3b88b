"""Messages to the log of a session of onnxruntime."""

from __future__ import annotations

from typing import Any

from narrowpass_onnxruntime.provider.library import ffi, ort

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
