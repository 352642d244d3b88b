"""``narrowpass ray build``."""

from __future__ import annotations

import click

from narrowpass.cli.options import pipeline_option
from narrowpass.cli.output import format_bytes, progress
from narrowpass.cli.state import State, pass_state
from narrowpass_ray.commands.options import (
    address_option,
    concurrency_option,
    cpus_option,
    imported,
)


@click.command()
@click.argument("model", metavar="MODEL")
@click.option("-o", "--output", required=True, metavar="OUT", help="The bundle, or an .onnx file.")
@pipeline_option
@click.option("--target", metavar="NAME{..}", help="The backend that the bundle is for.")
@click.option(
    "--calibration",
    "source",
    required=True,
    metavar="PLACE",
    help="A file or folder of "
    "samples, or its URI, that all nodes can read: npz (each a sample), Parquet, JSON lines "
    "or images.",
)
@click.option(
    "--format",
    "kind",
    metavar="NAME",
    help="parquet, jsonl, images or npz.  [default: by the names of the files]",
)
@click.option(
    "--preprocess",
    metavar="MODULE:FUNCTION",
    help="Turns a batch, a dict of columns, into columns for the inputs, in their types.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    default=16,
    show_default=True,
    metavar="N",
    help="Rows of a sample, but for npz.",
)
@concurrency_option
@cpus_option
@address_option
@pass_state
def build(
    state: State,
    model: str,
    output: str,
    pipeline: str | None,
    target: str | None,
    source: str,
    kind: str | None,
    preprocess: str | None,
    batch_size: int,
    concurrency: int | None,
    num_cpus: float,
    address: str | None,
) -> None:
    """Build a bundle, with calibration data that the workers of a cluster go through.

    `int8-sym` finds the same ranges, bit for bit, as on one machine with the same instruction sets;
    passes that look at a few samples only read the first ones.
    """
    import narrowpass
    from narrowpass_ir.sizes import disk_bytes
    from narrowpass_ray.calibrate import shared_samples
    from narrowpass_ray.cluster import connected

    samples = shared_samples(
        source,
        kind=kind,
        batch_size=batch_size,
        preprocess=imported("--preprocess", preprocess),
        concurrency=concurrency,
        num_cpus=num_cpus,
        address=address,
    )
    with connected(address), progress(enabled=not state.quiet) as show:
        show("building", 0, 0)
        narrowpass.build(
            model, pipeline, output, target=target, calibration=samples, plugins=state.plugins
        )
    click.echo(f"wrote {output} ({format_bytes(disk_bytes(output))})")
