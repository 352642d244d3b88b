"""What the command lines of comparisons on the gallery share: which models, and what is written."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from gallery.model import Model, collect


def parser_for(description: str | None, *, groups: str, rounds: int) -> argparse.ArgumentParser:
    """Return a parser of the options that all comparisons have.

    Args:
        description: the docstring of the script, whose first line is shown.
        groups: of models that are compared where no others are asked for, separated by commas.
        rounds: the default of ``--rounds``.
    """
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--only", default="*", help="a glob of names")
    parser.add_argument("--groups", default=groups)
    parser.add_argument("--threads", default="1", help="a number, or all")
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--again", action="store_true", help="measure what exists, too")
    parser.add_argument("--list", action="store_true", help="list the models, and measure nothing")
    parser.add_argument("--table", type=Path)
    parser.add_argument("--plot", type=Path)
    return parser


def chosen_models(given: argparse.Namespace) -> Sequence[Model]:
    """Return the models that are asked for; list them, and return none, for ``--list``."""
    chosen = [
        model
        for model in collect()
        if model.group in given.groups.split(",") and fnmatch(model.name, given.only)
    ]
    if given.list:
        print(*(f"{model.group:14}{model.name}" for model in chosen), sep="\n")
        return []
    return chosen


def publish(given: argparse.Namespace, table: str, plot: str) -> None:
    """Print a table, and write the table and the plot where that is asked for."""
    print(table)
    if given.table:
        given.table.write_text(table + "\n")
    if given.plot:
        given.plot.write_text(plot)
