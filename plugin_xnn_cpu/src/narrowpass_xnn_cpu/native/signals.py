"""Ctrl-C during a run: the tape lets Python's signal handlers run, and ends if one raises.

Python runs handlers in the main thread alone, when that executes Python: a call into C keeps them
waiting. So C calls a function here some fifty times a second, which does nothing but be Python.
Nothing is installed, and runs of other threads ask nobody.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any


class Interruption:
    """What a signal handler raised while a tape ran.

    Args:
        loaded: the extension.
    """

    def __init__(self, loaded: Any) -> None:
        self._loaded = loaded
        self._error: list[BaseException] = []
        self._handle = loaded.ffi.new_handle(self._error)

    def arguments(self) -> tuple[Any, Any]:
        """Return what ``np_run`` polls, and its context; NULL for both where nothing need be."""
        if threading.get_ident() != threading.main_thread().ident:
            return self._loaded.ffi.NULL, self._loaded.ffi.NULL
        return self._loaded.lib.np_let_signals_in, self._handle

    def taken(self) -> BaseException:
        """Return what was raised, and forget it."""
        return self._error.pop()


def register(loaded: Any) -> None:
    """Let the extension that was just loaded call Python."""

    def np_let_signals_in(context: Any) -> int:
        # A handler runs before the first line of this function, or never: see `raised`.
        return 0

    def raised(kind: type[BaseException], error: BaseException, traceback: TracebackType) -> None:
        context = traceback.tb_frame.f_locals["context"]
        loaded.ffi.from_handle(context).append(error)

    loaded.ffi.def_extern(error=1, onerror=raised)(np_let_signals_in)
