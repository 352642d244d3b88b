"""Limits of a command: the memory that it may have, and the time that it may take.

Files of strangers may ask for any amount of both. A limit holds for the whole process, libraries
included, until the context of the group of commands is closed.
"""

from __future__ import annotations

import faulthandler
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import click

from narrowpass.cli.options import parse_bytes
from narrowpass.errors import InputError, UsageError

F = TypeVar("F", bound=Callable[..., Any])

GRACE = 5.0
"""Seconds that a command has for its end after ``--timeout``; then the process is ended."""

_MEMORY = "narrowpass.cli.max_memory"
_LONGEST = 366 * 24 * 3600.0


class TimeoutInterrupt(KeyboardInterrupt):
    """The time of ``--timeout`` is over: ends what runs, as an interrupt by the user does."""


def limit_memory(ctx: click.Context, _: click.Parameter, text: str | None) -> None:
    """Limit the writable memory of the process, other than memory shared with others.

    Files that are mapped to be read do not count: the system takes their pages back. Stacks of
    threads count in full.

    Args:
        ctx: of the command; the limit is lifted with its group's.
        text: the value of ``--max-memory``, such as ``4GiB``; None for no limit.

    Raises:
        UsageError: it is no size, less than the process has now, or the system is not Linux.
    """
    if text is None or ctx.resilient_parsing:
        return
    size = parse_bytes("--max-memory", text)
    if sys.platform != "linux":
        raise UsageError("--max-memory: only Linux counts this memory; run in a container")
    import resource

    # Under the limit, libraries that cannot be loaded may end the process.
    import numpy as np  # noqa: F401  # loaded before it
    import onnx  # noqa: F401  # likewise

    used = _data_bytes()
    if size < used:
        raise UsageError(
            f"--max-memory {text}: narrowpass has {used >> 20} MiB before it reads anything; "
            "pass more"
        )
    before = resource.getrlimit(resource.RLIMIT_DATA)
    finite = [limit for limit in (size, *before) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(finite), before[1]))
    root = ctx.find_root()
    root.meta[_MEMORY] = text
    root.call_on_close(lambda: resource.setrlimit(resource.RLIMIT_DATA, before))


def name_memory_limit(ctx: click.Context, error: BaseException) -> None:
    """Say which limit it was, where a command had not the memory that it needs.

    Raises:
        InputError: the command has a limit, and a MemoryError led to `error`.
    """
    text = ctx.find_root().meta.get(_MEMORY)
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, MemoryError):
        cause = cause.__cause__
    if text is not None and cause is not None:
        reason = str(error) or "out of memory"
        raise InputError(f"{reason}; --max-memory allows {text}") from error


def _data_bytes() -> int:
    """Return what RLIMIT_DATA counts of this process, in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    (line,) = (line for line in lines if line.startswith("VmData:"))
    return int(line.split()[1]) << 10


def limit_time(ctx: click.Context, _: click.Parameter, seconds: float | None) -> None:
    """End the command after some time.

    Code of C that does not return, such as a matmul of NumPy, delays the exception; after `GRACE`
    seconds more the process ends with exit code 1, and what it did is on standard error.

    Args:
        ctx: of the command; the limit is lifted with its group's.
        seconds: the value of ``--timeout``; None for no limit.

    Raises:
        UsageError: it is not above 0 and at most a year.
        TimeoutInterrupt: later, in the main thread, when the time is over.
    """
    if seconds is None or ctx.resilient_parsing:
        return
    if not 0 < seconds <= _LONGEST:  # nan, too
        raise UsageError(f"--timeout {seconds:g}: pass seconds, more than 0 and at most a year")

    def over(number: int, frame: FrameType | None) -> None:
        raise TimeoutInterrupt(f"not done after {seconds:g} s; pass a longer --timeout")

    before: Any = signal.signal(signal.SIGALRM, over)

    def lift() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)

    ctx.find_root().call_on_close(lift)
    # The number of standard error: the file may be one without a descriptor, or None.
    faulthandler.dump_traceback_later(seconds + GRACE, exit=True, file=2)
    signal.setitimer(signal.ITIMER_REAL, seconds)


LIMITS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    (
        "--max-memory",
        {
            "metavar": "SIZE",
            "callback": limit_memory,
            "help": "End with an error where more writable memory is needed: 500MB, 4GiB.",
        },
    ),
    (
        "--timeout",
        {
            "type": float,
            "metavar": "SECONDS",
            "callback": limit_time,
            "help": "End with an error after that time.",
        },
    ),
)
"""The options, and what `click.Option` takes for each."""


def limit_options(function: F) -> F:
    """Add the options of `LIMITS` to a command."""
    for flag, settings in reversed(LIMITS):
        function = click.option(flag, expose_value=False, **settings)(function)
    return function
