"""Results on standard output: one JSON document, or text and tables.

On a terminal tables are drawn by rich; elsewhere they are plain columns that are never cut, so
that other programs can read them. This module imports rich only where it draws.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TextIO

import click

_NARROWEST = 12
"""Characters below which a folded column cannot be read: the table is printed as plain lines."""

LARGEST = sys.float_info.max
"""What stands for infinity in JSON, which has none."""


JSON_VERSION = 1
"""The version of all JSON documents: what a later one takes away or changes raises it."""


def print_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document with its version.

    NaN is null; infinities are the largest numbers of float64.
    """
    plain = _plain({"version": JSON_VERSION, **document})
    click.echo(json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else math.copysign(LARGEST, value)
    return value


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str = "",
    right: Sequence[int] = (),
) -> None:
    """Print a table.

    Args:
        columns: the headings.
        rows: the cells, as many in each row as there are headings.
        title: printed above.
        right: the columns that are aligned to the right: numbers.
    """
    cells = [list(map(visible, row)) for row in rows]
    if _is_terminal(sys.stdout) and _fits([columns, *cells]):
        _print_rich(columns, cells, title, right)
        return
    if title:
        click.echo(title)
    lines = [list(columns), *cells]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    for line in lines:
        padded = [
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        click.echo("  ".join(padded).rstrip())


def _fits(lines: Sequence[Sequence[str]]) -> bool:
    """Return whether each column of a table finds room on the terminal, be it folded."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    needed = sum(min(width, _NARROWEST) for width in widths) + 2 * len(widths)
    return needed <= shutil.get_terminal_size().columns


def color() -> bool | None:
    """Return click's setting of colours: none with ``NO_COLOR``, else what click detects."""
    return False if os.environ.get("NO_COLOR") else None


def _is_terminal(stream: TextIO | None) -> bool:
    # None stands for a stream that was closed before Python started.
    return stream is not None and stream.isatty()


@contextlib.contextmanager
def printable() -> Iterator[None]:
    """Let standard output take names that its encoding does not have, as escapes."""
    stream = sys.stdout
    if not isinstance(stream, io.TextIOWrapper):
        yield
        return
    before = stream.errors
    stream.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        # This writes what is left, to a reader that may have gone away: that was noticed before.
        with contextlib.suppress(BrokenPipeError):
            stream.reconfigure(errors=before)


def visible(text: str) -> str:
    """Show control characters, which names in a model may hold, as escapes; keep line ends."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def _print_rich(
    columns: Sequence[str], rows: list[list[str]], title: str, right: Sequence[int]
) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=sys.stdout, highlight=False)
    if title:
        console.print(Text(title, style="bold"))
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold cyan")
    for index, column in enumerate(columns):
        table.add_column(
            Text(column),
            justify="right" if index in right else "left",
            overflow="fold",
            no_wrap=index in right,
        )
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)


def format_bytes(count: int) -> str:
    """Return a size in units of 1000, as disks are sold: ``56.3 kB``."""
    if count < 1000:
        return f"{count} B"
    size = float(count)
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 999.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} TB"


def format_seconds(seconds: float) -> str:
    """Return a time with three digits in the unit that suits it."""
    for limit, factor, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms")):
        if seconds < limit:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s"


def change(before: int, after: int, text: Callable[[int], str] = str) -> str:
    """Return ``before -> after``, with the share that is left where it differs."""
    if before == after:
        return f"{text(before)} (unchanged)"
    share = f" ({after / before:.1%})" if before else ""
    return f"{text(before)} -> {text(after)}{share}"


def error_is_terminal() -> bool:
    """Return whether a person watches standard error."""
    return _is_terminal(sys.stderr)


@contextlib.contextmanager
def progress(*, enabled: bool) -> Iterator[Callable[[str, int, int], None]]:
    """Show progress on standard error: a bar on a terminal, else a line from time to time.

    Args:
        enabled: whether anything may be shown at all.

    Yields:
        A function to call with what is being done, how much is done, and how much there is
        (0 where that is not known).
    """
    if not enabled:
        yield lambda what, done, total: None
        return
    if not error_is_terminal():
        with _lines() as show_line:
            yield show_line
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        SpinnerColumn,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def show(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total or None)

        yield show


EVERY = 10.0
"""Seconds between two lines of progress where there is no terminal; work that is done before the
first says nothing."""


@contextlib.contextmanager
def _lines() -> Iterator[Callable[[str, int, int], None]]:
    """Print what is being done every `EVERY` seconds, also while nothing is heard of it."""
    start, ended = time.monotonic(), threading.Event()
    now = ""

    def show(what: str, done: int, total: int) -> None:
        nonlocal now
        now = f"{what}, {done} of {total}" if total else what

    def print_lines() -> None:
        while not ended.wait(EVERY):
            if now:
                seconds = time.monotonic() - start
                click.echo(f"narrowpass: {visible(now)} ({seconds:.0f} s)", err=True)

    thread = threading.Thread(target=print_lines, name="narrowpass-progress", daemon=True)
    with contextlib.suppress(RuntimeError):  # the system has no thread more
        thread.start()
    try:
        yield show
    finally:
        ended.set()
        if thread.ident is not None:
            thread.join()
