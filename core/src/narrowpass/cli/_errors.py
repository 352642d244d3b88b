"""How commands end, and what they say meanwhile: errors, interrupts, log messages.

An error is one sentence on standard error and an exit code.
"""

from __future__ import annotations

import _thread
import contextlib
import errno
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator

import click

from narrowpass.cli._limits import TimeoutInterrupt
from narrowpass.cli.output import color, visible
from narrowpass.errors import NarrowpassError

INTERRUPTED = 130
"""What shells say of a process that ended by an interrupt."""

_LATER = 0.002  # seconds after which a dropped signal comes again; most finalizers end sooner


def report(error: BaseException, *, show_traceback: bool) -> int:
    """Print an error to standard error.

    Args:
        error: what ended the command.
        show_traceback: whether the traceback is printed before the sentence.

    Returns:
        The exit code.
    """
    if show_traceback:
        trace = traceback.format_exception(error)
        click.echo("".join(trace), err=True, nl=False, color=color())
    text, code = describe(error)
    if text:
        label = click.style("error:", fg="red", bold=True)
        click.echo(f"narrowpass: {label} {visible(text)}", err=True, color=color())
    return code


def describe(error: BaseException) -> tuple[str, int]:
    """Return the sentence for an error, and the exit code."""
    if isinstance(error, NarrowpassError):
        return str(error), error.exit_code
    if isinstance(error, click.UsageError):
        return _usage(error), error.exit_code
    if isinstance(error, click.ClickException):
        return error.format_message(), error.exit_code
    cause = error.__cause__ if isinstance(error, click.Abort) else error
    if isinstance(cause, TimeoutInterrupt):
        return str(cause), 1
    if isinstance(error, (click.Abort, KeyboardInterrupt, EOFError)):
        return "interrupted", INTERRUPTED
    if isinstance(error, MemoryError):
        return f"out of memory{_detail(error)}; use a smaller --shape, or a larger machine", 1
    if isinstance(error, RecursionError):
        return "the model or the data is nested too deeply to be processed", 1
    if isinstance(error, OSError):
        return _os_error(error), 1
    advice = "please report this; narrowpass --traceback ... shows where it happened"
    return f"internal error: {type(error).__name__}{_detail(error)}; {advice}", 1


def _usage(error: click.UsageError) -> str:
    text = error.format_message()
    return text if error.ctx is None else f"{text}\nTry '{error.ctx.command_path} --help'."


def _os_error(error: OSError) -> str:
    reason = error.strerror or str(error) or type(error).__name__
    where = f"{error.filename}: " if error.filename is not None else ""
    advice = {
        errno.ENOSPC: "; free space on that disk, or write to another",
        errno.EMFILE: "; raise the limit on open files (ulimit -n)",
    }.get(error.errno or 0, "")
    return f"{where}{reason}{advice}"


def _detail(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f": {text}" if text else ""


@contextlib.contextmanager
def redeliver_interrupts() -> Iterator[None]:
    """Raise again what a signal handler raised within a finalizer, where Python drops it.

    CPython runs handlers between any two instructions of the main thread, also within ``__del__``
    and callbacks of weak references: the signal would be lost.
    """
    before = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        # Later, not here: exceptions of a hook are dropped, too.
        if issubclass(unraisable.exc_type, TimeoutInterrupt):
            signal.setitimer(signal.ITIMER_REAL, _LATER)
        elif issubclass(unraisable.exc_type, KeyboardInterrupt):
            _thread.start_new_thread(_interrupt_later, ())  # threading's waits, with signals
        else:
            before(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


def _interrupt_later() -> None:  # not covered: coverage does not see threads of _thread
    time.sleep(_LATER)
    os.kill(os.getpid(), signal.SIGINT)


class _Handler(logging.Handler):
    """Prints ``narrowpass: warning: ...``."""

    def emit(self, record: logging.LogRecord) -> None:
        text = visible(record.getMessage())
        click.echo(f"narrowpass: {record.levelname.lower()}: {text}", err=True)


def set_level(verbosity: int, *, quiet: bool) -> None:
    """Choose what is printed: warnings; with -v also notes, with -vv all; with -q errors."""
    level = [logging.WARNING, logging.INFO, logging.DEBUG][min(verbosity, 2)]
    logging.getLogger("narrowpass").setLevel(logging.ERROR if quiet else level)
    # Warnings of libraries (a division by zero in numpy) say nothing to a user.
    logging.getLogger("py.warnings").setLevel(logging.WARNING if verbosity else logging.ERROR)


@contextlib.contextmanager
def logging_to_stderr() -> Iterator[None]:
    """Print log messages while the block runs; afterwards all is as it was."""
    handler = _Handler()
    loggers = [logging.getLogger(name) for name in ("narrowpass", "py.warnings")]
    before = [(logger, logger.level, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.propagate = False
    set_level(0, quiet=False)
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        for logger, level, propagate in before:
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate
