"""Threads of the server, where a limit on processes or memory may refuse one."""

from __future__ import annotations

import threading

from narrowpass.errors import BackendError


def start(thread: threading.Thread) -> None:
    """Start a thread.

    Raises:
        BackendError: the system has none more.
    """
    try:
        thread.start()
    except RuntimeError as error:
        raise BackendError(
            f"no thread can be started for {thread.name!r}: {error}; raise the limit on processes "
            "(`ulimit -u`, or that of the container), or serve fewer models"
        ) from error


def join(thread: threading.Thread) -> None:
    """Wait for the end of a thread, which may not have been started."""
    if thread.ident is not None:
        thread.join()
