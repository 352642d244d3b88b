"""``narrowpass ray map``."""

from __future__ import annotations

import dataclasses

import click

from narrowpass.cli.options import (
    backend_option,
    cache_dir_option,
    cache_option,
    json_option,
    split_pair,
)
from narrowpass.cli.output import print_json, progress
from narrowpass.cli.state import State, pass_state
from narrowpass.errors import UsageError
from narrowpass_ray.commands.options import (
    address_option,
    concurrency_option,
    cpus_option,
    imported,
)

FAILED = 1
"""The exit code where shards were not written, or rows have errors."""


@click.command("map")
@click.argument("bundle", metavar="BUNDLE")
@click.option(
    "--input",
    "source",
    required=True,
    metavar="PLACE",
    help="A file, a folder, or the URI of one, such as s3://bucket/folder.",
)
@click.option(
    "--output",
    required=True,
    metavar="FOLDER",
    help="Where Parquet files are written; "
    "also a URI. What an earlier run has written there is not computed again.",
)
@click.option(
    "--format",
    "kind",
    metavar="NAME",
    help="parquet, jsonl, images or npz.  [default: by the names of the files]",
)
@click.option(
    "--method",
    default="main",
    metavar="NAME",
    help="Which method.  [default: main, or the only one]",
)
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="INPUT=COLUMN",
    help="The column that feeds an input; may be repeated.  [default: that of the same name]",
)
@click.option(
    "--keep", multiple=True, metavar="COLUMN", help="Copy a column of the input; may be repeated."
)
@click.option(
    "--outputs",
    "wanted",
    multiple=True,
    metavar="NAME",
    help="Only this output of the method; may be repeated.",
)
@click.option(
    "--preprocess",
    metavar="MODULE:FUNCTION",
    help="Turns a batch, a dict of columns, into columns for the inputs.",
)
@click.option(
    "--postprocess",
    metavar="MODULE:FUNCTION",
    help="Turns outputs into the columns that are written.",
)
@click.option(
    "--pad",
    multiple=True,
    metavar="INPUT=VALUE",
    help="Fill up rows of this input to the length of their bucket; may be repeated.",
)
@click.option(
    "--buckets", metavar="N,N,..", help="Lengths of the buckets.  [default: powers of two]"
)
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    metavar="N",
    help="Rows in a run, at most.",
)
@click.option(
    "--shard-rows",
    type=click.IntRange(min=1),
    default=65_536,
    show_default=True,
    metavar="N",
    help="Rows of a Parquet file that become one file: whole row groups.",
)
@click.option(
    "--shard-bytes",
    type=click.IntRange(min=1),
    default=64 << 20,
    show_default=True,
    metavar="N",
    help="Bytes of a JSON lines file that become one file.",
)
@click.option(
    "--shard-files",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    metavar="N",
    help="Images or npz files that become one file.",
)
@concurrency_option
@cpus_option
@click.option(
    "--memory",
    type=click.IntRange(min=1),
    metavar="BYTES",
    help="Memory that Ray reserves for an actor.",
)
@click.option("--retry-errors", is_flag=True, help="Compute again what has rows with errors.")
@address_option
@backend_option
@cache_option
@cache_dir_option
@json_option
@pass_state
def map_command(
    state: State,
    bundle: str,
    source: str,
    output: str,
    kind: str | None,
    method: str,
    columns: tuple[str, ...],
    keep: tuple[str, ...],
    wanted: tuple[str, ...],
    preprocess: str | None,
    postprocess: str | None,
    pad: tuple[str, ...],
    buckets: str | None,
    batch_size: int,
    shard_rows: int,
    shard_bytes: int,
    shard_files: int,
    concurrency: int | None,
    num_cpus: float,
    memory: int | None,
    retry_errors: bool,
    address: str | None,
    backend: str | None,
    cache: bool,
    cache_dir: str | None,
    as_json: bool,
) -> None:
    """Compute a bundle for each row of many files, on a cluster of Ray.

    The input is Parquet, JSON lines, images (columns image and path) or npz files whose arrays have
    the rows as their first axis. Each part of it becomes one Parquet file, which appears when it is
    whole: a job that was interrupted goes on where it was when the command is run again. A row that
    cannot be read or computed has a text in the column error, and the others are not lost; the exit
    code is 1 then.

    The JSON document has the keys shards, before (shards that earlier runs wrote), rows, bad (rows
    with errors; both of this run) and failed (messages of shards that were not written, by number).
    """
    from narrowpass_ray.feeding import Padding
    from narrowpass_ray.job import map_files
    from narrowpass_ray.predictor import Settings
    from narrowpass_ray.shards import Sizes

    settings = Settings(
        bundle,
        method=method,
        backend=backend,
        cache=cache,
        cache_dir=cache_dir,
        columns=dict(split_pair("--column", text, "INPUT=COLUMN") for text in columns),
        outputs=wanted or None,
        padding=Padding(_pads(pad), _lengths(buckets)),
        preprocess=imported("--preprocess", preprocess),
        postprocess=imported("--postprocess", postprocess),
    )
    with progress(enabled=not state.quiet and not as_json) as show:
        summary = map_files(
            settings,
            source,
            output,
            kind=kind,
            sizes=Sizes(shard_rows, shard_bytes, shard_files),
            batch_size=batch_size,
            concurrency=concurrency,
            num_cpus=num_cpus,
            memory=memory,
            keep=keep,
            about=f"{preprocess or ''} {postprocess or ''}",
            retry_errors=retry_errors,
            address=address,
            progress=show,
        )
    if as_json:
        print_json(dataclasses.asdict(summary))
    else:
        earlier = f" ({summary.before} by earlier runs)" if summary.before else ""
        click.echo(
            f"{summary.shards - len(summary.failed)} of {summary.shards} files written{earlier}; "
            f"{summary.rows} rows, {summary.bad} with errors"
        )
        for number, text in sorted(summary.failed.items()):
            state.note(f"part {number} is not written: {text}")
        if summary.failed:
            state.note("run the command again for the parts that are missing")
    if summary.failed or summary.bad:
        click.get_current_context().exit(FAILED)


def _pads(texts: tuple[str, ...]) -> dict[str, float]:
    pairs = (split_pair("--pad", text, "INPUT=VALUE") for text in texts)
    try:
        return {name: float(value) for name, value in pairs}
    except ValueError as error:
        raise UsageError(f"--pad: {error}; pass INPUT=NUMBER") from error


def _lengths(text: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError as error:
        raise UsageError(f"--buckets {text}: pass lengths, such as 32,64,128") from error
