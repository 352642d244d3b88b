"""Log messages on standard error, for as long as a command runs."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import click

from narrowpass.cli.output import visible


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
