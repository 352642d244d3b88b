"""What `mutants.py` and `mutate_kernels.py` share: mutants, records of them, what notices them.

A record has a mutant a line, each a JSON object: what the mutant was drawn for, the module (or file
of C), the first line that is changed, the lines before and after, the outcome, and the test that
failed first. With it the tests of today are compared with those that were there when it was made.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REASONS = ROOT / "tools" / "mutants.toml"
PYTEST = ("-x", "-q", "--assert=plain", "-p", "no:cacheprovider", "-p", "last_test")
"""What pytest is started with; `last_test` is a module of this folder."""

KILLED, SURVIVED, SAME = "killed", "survived", "the same"
"""Outcomes: a test fails; all pass; `mutants.toml` says why the mutant computes the same."""

_ABSENT = (4, 5)
"""How pytest exits where a test that it is asked for is not there."""


@dataclass(frozen=True)
class Mutant:
    """A change of a module, or of a file of C.

    Attributes:
        name: what it was drawn for: an entry of the tool's `TESTS`.
        module: the name of the module, or the path of the file.
        line: the first line that is changed, from 1.
        before, after: the changed lines as they are in the file.
    """

    name: str
    module: str
    line: int
    before: str
    after: str

    @property
    def key(self) -> tuple[str, str, str]:
        """The module, and the lines as `mutants.toml` has them."""
        return self.module, self.before.strip(), self.after.strip()

    def apply(self, text: str) -> str | None:
        """Return the changed text of the module; None where the lines are no longer there.

        Where they are there more than once, those that are nearest to the mutant's line change.
        """
        lines, before = text.splitlines(keepends=True), self.before.splitlines(keepends=True)
        starts = range(len(lines) - len(before) + 1)
        found = [start for start in starts if lines[start : start + len(before)] == before]
        if not found:
            return None
        start = min(found, key=lambda start: abs(start + 1 - self.line))
        return "".join((*lines[:start], self.after, *lines[start + len(before) :]))

    @property
    def place(self) -> str:
        """Where the change is, for a reader."""
        return f"{self.module}:{self.line}"

    def __str__(self) -> str:
        _, before, after = self.key
        return f"{self.place}:\n  - {before}\n  + {after}"


def _same(one: Sequence[str], other: Sequence[str]) -> int:
    """Return how many lines are the same before the first that differ."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def difference(name: str, module: str, before: str, after: str) -> Mutant:
    """Return the mutant that turns the first text of a module into the second one."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    head = _same(old, new)
    tail = _same(old[head:][::-1], new[head:][::-1])
    changed = ["".join(lines[head : len(lines) - tail]) for lines in (old, new)]
    return Mutant(name, module, head + 1, *changed)


@dataclass(frozen=True)
class Row:
    """A mutant that was tried.

    Attributes:
        mutant: what was changed.
        outcome: of the tests.
        test: the one that failed first or did not end; empty where none is known.
    """

    mutant: Mutant
    outcome: str
    test: str = ""


def read(path: Path) -> list[Row]:
    """Return the rows of a record."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        outcome, test = row.pop("outcome"), row.pop("test")
        found.append(Row(Mutant(**row), outcome, test))
    return found


@contextmanager
def recorder(path: Path | None) -> Iterator[Callable[[Row], None]]:
    """Return what writes a row of a record at once, into the file of a path if there is one."""
    with Path(path or os.devnull).open("w", encoding="utf-8") as file:

        def record(row: Row) -> None:
            each = {**asdict(row.mutant), "outcome": row.outcome, "test": row.test}
            file.write(f"{json.dumps(each)}\n")
            file.flush()

        yield record


def explained(table: str) -> set[tuple[str, str, str]]:
    """Return the keys of mutants that a table of `mutants.toml` has reasons for.

    The module is empty where the reason holds in each.
    """
    rows = tomllib.loads(REASONS.read_text(encoding="utf-8"))[table]
    return {(row.get("module", ""), row["before"], row["after"]) for row in rows}


def outcome(
    run: Callable[[Sequence[str]], int], tests: Sequence[str], first: str
) -> tuple[str, str]:
    """Return the outcome of tests for a mutant, and the test that failed or did not end.

    Args:
        run: runs tests with `PYTEST`, and returns how pytest exits.
        tests: all that must notice the mutant.
        first: the test that noticed it once, which is run before the others; empty where none did.
            It may have gone.
    """
    with tempfile.TemporaryDirectory() as folder:
        last = Path(folder) / "last"
        last.touch()
        os.environ["LAST_TEST"] = str(last)
        code = run([first]) if first else 0
        if not code or code in _ABSENT:
            code = run(tests)
        return (KILLED, last.read_text(encoding="utf-8")) if code else (SURVIVED, "")


def no_lower(before: Iterable[Row], after: Iterable[Row]) -> bool:
    """Print for each name how many of the same mutants were killed, and are.

    Returns whether the share is lower for none; it is where no mutant of a name could be tried.
    Mutants are left out that could not be tried again, and those that tests did not decide about.
    """
    decided = {row.mutant: row.outcome for row in after if row.outcome in (KILLED, SURVIVED, SAME)}
    names: dict[str, list[Row]] = {}
    for row in before:
        names.setdefault(row.mutant.name, []).append(row)
    every = True
    for name, rows in names.items():
        again = [row for row in rows if row.mutant in decided]
        once = sum(row.outcome == KILLED for row in again)
        now = sum(decided[row.mutant] == KILLED for row in again)
        every &= bool(again) and now >= once
        left_out = f", {len(rows) - len(again)} left out" if len(again) < len(rows) else ""
        say(f"{name}: {once} of {len(again)} mutants were killed, {now} are{left_out}")
    return every


def add_options(parser: argparse.ArgumentParser, count: int) -> None:
    """Add the options that both tools have."""
    parser.add_argument("--count", type=int, default=count)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", action="store_true", help="print the mutants alone")
    parser.add_argument("--record", type=Path, metavar="FILE", help="where outcomes are written to")
    parser.add_argument(
        "--against", type=Path, metavar="FILE", help="a record, whose mutants are tried again"
    )


def say(text: str) -> None:
    """Print at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
