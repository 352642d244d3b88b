"""The command ``narrowpass tune``: times of kernels that ``auto`` measured."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from narrowpass.cli.options import json_option
from narrowpass.cli.output import print_json, print_table
from narrowpass.errors import DataError, OutputError, UsageError

if TYPE_CHECKING:
    from narrowpass_auto.measure.database import Database, Entry

_FORMAT = "narrowpass-tuning-1"


@click.group()
def tune() -> None:
    """Look after the times of kernels that `auto` measured on this processor.

    They are kept in the user's cache directory, or in NARROWPASS_CACHE_DIR, so that builds measure
    each kernel once, and choose the same. They can always be deleted: what is missing is measured
    again.
    """


@tune.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the processors with the number of times of each.

    The JSON document has the keys path and times: processor, what (a kernel, as text), seconds (of
    all, of conversions of operands, and of results) and created (seconds since 1970).
    """
    with _opened() as database:
        entries = list(database.entries())
        if as_json:
            rows = [_row(entry) for entry in entries]
            print_json({"path": str(database.path), "times": rows})
            return
        counts = Counter(entry.processor for entry in entries)
        print_table(("processor", "times"), [(name, str(n)) for name, n in sorted(counts.items())])
        click.echo(f"{len(entries)} times in {database.path}")


@tune.command()
@click.option(
    "--processor",
    "processors",
    multiple=True,
    metavar="TEXT",
    help="Delete the times of this processor, as `list` shows it; may be repeated.  [default: all]",
)
@json_option
def prune(processors: tuple[str, ...], as_json: bool) -> None:
    """Delete times, also a file that is damaged.

    The JSON document has the keys path and deleted, a number.
    """
    from narrowpass_auto.measure.database import default_path

    path = default_path()
    if processors:
        with _opened() as database:
            known = {entry.processor for entry in database.entries()}
            for name in processors:
                if name not in known:
                    raise UsageError(f"there are no times of {name!r}; `tune list` shows whose")
            deleted = database.delete(list(processors))
    else:
        deleted = _delete(path)
    if as_json:
        print_json({"path": str(path), "deleted": deleted})
    else:
        click.echo(f"deleted {deleted} times of {path}")


def _delete(path: Path) -> int:
    """Delete the file; return how many times it had, 0 where that cannot be read."""
    from narrowpass_auto.measure.database import Database

    if not path.exists():
        return 0
    database = Database(path)
    try:
        count = sum(1 for _ in database.entries())
    except DataError:
        count = 0
    finally:
        database.close()
    try:
        path.unlink()
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror}") from error
    return count


@tune.command()
@click.argument("output", metavar="OUT.json", type=click.Path(dir_okay=False, path_type=Path))
def export(output: Path) -> None:
    """Write all times to a file, for machines of the same kind.

    `narrowpass tune import` reads it.
    """
    with _opened() as database:
        rows = [_row(entry) for entry in database.entries()]
    text = json.dumps({"format": _FORMAT, "times": rows}, indent=1)
    try:
        output.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{output}: {error.strerror}") from error
    click.echo(f"wrote {len(rows)} times to {output}")


@tune.command("import")
@click.argument("source", metavar="IN.json", type=click.Path(dir_okay=False, path_type=Path))
def import_(source: Path) -> None:
    """Add times that another machine of the same kind measured.

    Those of kernels that were measured here already stay.
    """
    entries = _read(source)
    with _opened() as database:
        added = database.insert(entries)
    click.echo(f"added {added} of {len(entries)} times")


def _read(source: Path) -> list[Entry]:
    from narrowpass_auto.measure.database import Entry, numbers_of, time_of
    from narrowpass_ir.data.documents import parse_json

    try:
        document = parse_json(source.read_bytes())
        if document["format"] != _FORMAT:
            raise DataError(f"{source}: format {document['format']!r} is not {_FORMAT!r}")
        return [
            Entry(
                _text(row["processor"]),
                _text(row["key"]),
                _text(row["what"]),
                numbers_of(row["seconds"]),
                time_of(row["created"]),
            )
            for row in document["times"]
        ]
    except OSError as error:
        raise UsageError(f"{source}: {error.strerror}; pass a file of `tune export`") from error
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{source}: is no file of `tune export`: {error}") from error


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _row(entry: Entry) -> dict[str, Any]:
    return dataclasses.asdict(entry)


@contextmanager
def _opened() -> Iterator[Database]:
    from narrowpass_auto.measure.database import Database, default_path

    database = Database(default_path())
    try:
        yield database
    finally:
        database.close()
