"""Texts on a terminal as they come, and interrupts that end them."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType

import click

from narrowpass_generate.streams import Stream


def show(stream: Stream, *, live: bool) -> bool:
    """Generate all tokens and print their text; an interrupt ends it after a token.

    Args:
        stream: not begun.
        live: whether text is printed as it comes, rather than at the end.

    Returns:
        Whether it was interrupted.
    """
    with interrupts() as interrupted:
        for piece in stream:
            if live:
                print_text(piece.text)
            if interrupted():
                rest = stream.interrupt()
                if live:
                    print_text(rest)
    if not live:
        print_text(stream.result.text)
    return stream.result.finish_reason == "interrupted"


def collect(stream: Stream) -> bool:
    """Generate all tokens and print nothing; return whether it was interrupted."""
    with interrupts() as interrupted:
        for _ in stream:
            if interrupted():
                stream.interrupt()
    return stream.result.finish_reason == "interrupted"


def print_text(text: str) -> None:
    """Print a part of a text at once. On a terminal control characters are escapes."""
    if sys.stdout is not None and sys.stdout.isatty():
        text = "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)
    if text:
        click.echo(text, nl=False)
        if sys.stdout is not None:
            sys.stdout.flush()


@contextlib.contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """Count the first interrupt, where it would raise; the second one raises.

    Yields:
        A function that returns whether there was one.
    """
    came = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal came
        if came:
            raise KeyboardInterrupt
        came = True

    try:
        before = signal.signal(signal.SIGINT, note)
    except ValueError:  # not the main thread, which alone is interrupted
        yield lambda: False
        return
    try:
        yield lambda: came
    finally:
        signal.signal(signal.SIGINT, before)
