"""The rows of the table: one file for each, so that a long table is measured in parts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]


class Rows:
    """Files of JSON in a folder, one for each form, number of tokens and number of samples.

    Args:
        folder: created where it is missing.
        tokens: that are measured.
        samples: that methods with data see.
    """

    def __init__(self, folder: Path, tokens: int, samples: int) -> None:
        self._folder, self._tokens, self._samples = folder, tokens, samples
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, form: str, *, data: bool) -> Path:
        """Return the file of a form."""
        plain = re.sub(r"[^A-Za-z0-9=.+]+", "-", form).strip("-")
        samples = f"-{self._samples}-samples" if data else ""
        return self._folder / f"{plain}{samples}-{self._tokens}.json"

    def read(self, form: str, *, data: bool) -> Row | None:
        """Return what was measured of a form; None where nothing was."""
        path = self.path(form, data=data)
        if not path.exists():
            return None
        row: Row = json.loads(path.read_text(encoding="utf-8"))
        return row

    def write(self, row: Row, *, data: bool) -> None:
        """Keep what was measured of ``row["form"]``."""
        path = self.path(row["form"], data=data)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(row, indent=2) + "\n", encoding="utf-8")
        part.replace(path)


HEADER = (
    f"{'form':52} {'bits':>5} {'samples':>7} {'perplexity':>10} {'KL':>9} {'error':>8} {'same':>7}"
    " seconds"
)


def line(row: Row) -> str:
    """Return a row of the table as text."""
    return (
        f"{row['form']:52} {row['bits']:5.2f} {row['samples'] or '':>7} {row['perplexity']:10.3f}"
        f" {row['divergence']:9.5f} {row['error']:8.5f} {row['same'] * 100:6.2f}%"
        f" {row['seconds']:7.0f}"
    )


def markdown(rows: list[Row]) -> str:
    """Return the table in Markdown."""
    lines = ["| form | bits | samples | perplexity | KL | same |", "|---|---|---|---|---|---|"]
    lines += [
        f"| `{row['form']}` | {row['bits']:.2f} | {row['samples'] or ''} | {row['perplexity']:.3f}"
        f" | {row['divergence']:.4f} ± {row['error']:.4f} | {row['same'] * 100:.1f} % |"
        for row in rows
    ]
    return "\n".join(lines)
