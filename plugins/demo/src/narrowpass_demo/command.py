"""``narrowpass demo``."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from narrowpass.cli.options import json_option
from narrowpass.cli.output import (
    format_bytes,
    format_seconds,
    print_json,
    print_table,
    progress,
)
from narrowpass.cli.state import State, pass_state
from narrowpass.errors import OutputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from narrowpass_demo.run import Result


@click.command()
@click.option(
    "--keep",
    metavar="DIR",
    help="Write the model and its builds there.  [default: a folder that is deleted]",
)
@click.option(
    "--runs",
    type=click.IntRange(min=1),
    metavar="N",
    help="Runs of each build that are timed.  [default: as many as fit into a few seconds]",
)
@json_option
@pass_state
def demo(state: State, keep: str | None, runs: int | None, as_json: bool) -> None:
    """Build a small digit classifier and measure the result.

    Shows size, latency and accuracy before and after. The model (52 nodes, trained on handwritten
    digits) and 450 images that it was not trained on are part of narrowpass. It is built with
    whatever plugins are installed.

    The JSON document has the keys backend, images, passes (whether any is installed) and rows:
    label, pipeline, path, bytes, weights, nodes, latency (seconds), accuracy, agreement, relative.
    """
    from narrowpass_demo.run import run_demo

    with _folder(keep) as folder, progress(enabled=not (state.quiet or as_json)) as show:
        result = run_demo(folder, state.plugins, runs=runs, show=show)
    if as_json:
        print_json(result.to_json())
        return
    _print(result, keep)


@contextlib.contextmanager
def _folder(keep: str | None) -> Iterator[Path]:
    """Yield the folder to write into."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="narrowpass-demo-") as name:
            yield Path(name)
        return
    path = Path(keep)
    if path.exists() and not path.is_dir():
        raise UsageError(f"--keep {keep}: is not a folder; choose another name")
    try:
        path.mkdir(parents=True, exist_ok=True)
        yield path
    except OSError as error:
        raise OutputError(
            f"--keep {keep}: cannot be written: {error.strerror}; choose another folder"
        ) from error


def _print(result: Result, keep: str | None) -> None:
    rows = [
        (
            row.label or "bundle, no passes",
            format_bytes(row.bytes),
            format_bytes(row.weights),
            str(row.nodes),
            format_seconds(row.latency),
            f"{row.accuracy:.2%}",
            f"{row.agreement:.2%}",
            f"{row.relative:.1e}" if row.relative else "0",
        )
        for row in result.rows
    ]
    print_table(
        ("model", "size", "weights", "nodes", "latency", "accuracy", "same answer", "difference"),
        rows,
        title=f"Handwritten digits, {result.images} test images, backend {result.backend}",
        right=range(1, 8),
    )
    if not result.passes:
        click.echo(
            "No passes are installed, so the bundle is the model unchanged:\n"
            "the plugin narrowpass-constant-folding has some."
        )
    original = f"{keep}/digits.onnx" if keep else "model.onnx"
    built = result.rows[1].path if keep else "model.narrow"
    steps = [
        "narrowpass passes",
        f"narrowpass inspect {built}" if keep else f"narrowpass build {original} -o {built}",
        f"narrowpass compare {original} {built}",
    ]
    click.echo("\nNext:\n" + "\n".join(f"  {step}" for step in steps))
