"""Ctrl-C during a run: the tape polls Python's signal handlers, and stops if one raises.

Python runs signal handlers in the main thread only, while it executes bytecode, so that a call into
C delays them. C therefore calls an empty Python function here some fifty times a second. No signal
handler is installed, and runs in other threads do not poll.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any


class Interruption:
    """Keeps the exception that a signal handler raises while a tape runs.

    Args:
        loaded: the C extension.
    """

    def __init__(self, loaded: Any) -> None:
        self._loaded = loaded
        self._error: list[BaseException] = []
        self._handle = loaded.ffi.new_handle(self._error)

    def arguments(self) -> tuple[Any, Any]:
        """Return the callback for ``np_run`` and its context; NULL outside of the main thread."""
        if threading.get_ident() != threading.main_thread().ident:
            return self._loaded.ffi.NULL, self._loaded.ffi.NULL
        return self._loaded.lib.np_let_signals_in, self._handle

    def pop(self) -> BaseException:
        """Return the exception, and forget it."""
        return self._error.pop()


def register(loaded: Any) -> None:
    """Register the callback of a C extension that was just loaded."""

    def np_let_signals_in(context: Any) -> int:
        # A handler runs before the first line of this function, or never: see `raised`.
        return 0

    def raised(kind: type[BaseException], error: BaseException, traceback: TracebackType) -> None:
        context = traceback.tb_frame.f_locals["context"]
        loaded.ffi.from_handle(context).append(error)

    loaded.ffi.def_extern(error=1, onerror=raised)(np_let_signals_in)
