"""``narrowpass ray sweep``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from narrowpass.cli.options import backend_option, json_option, report_writer
from narrowpass.cli.output import format_bytes, format_seconds, print_json, print_table, progress
from narrowpass.cli.state import State, pass_state
from narrowpass_ray.commands.options import address_option, cpus_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from narrowpass_ray.trial import Trial

FAILED = 1
"""The exit code where a pipeline could not be built or judged."""


@click.command()
@click.argument("model", metavar="MODEL.onnx")
@click.option(
    "--data",
    required=True,
    metavar="DATA",
    help="Samples: a folder of .npz files, or "
    "module:function. For passes that need data, and to judge.",
)
@click.option(
    "--grid",
    multiple=True,
    metavar="TEXT",
    help="A pipeline, in which <a|b> stands for one of several texts; may be repeated.",
)
@click.option(
    "--max-error",
    "limits",
    multiple=True,
    metavar="LIMIT",
    help="Let auto narrow each pipeline within this error, such as rel:1e-2; may be repeated.",
)
@click.option(
    "--output",
    required=True,
    metavar="FOLDER",
    help="Where results are kept, a file for each pipeline; what is there is not computed again.",
)
@click.option(
    "--metric",
    default="relative",
    show_default=True,
    metavar="NAME",
    help="The error of the plot: relative, sqnr, cosine or top1.",
)
@click.option(
    "--keep/--no-keep",
    default=False,
    help="Keep the bundles, in the folder bundles of the output, which all nodes must mount.",
)
@click.option(
    "--runs",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    metavar="N",
    help="Runs of each that are timed.",
)
@cpus_option
@click.option(
    "--report", metavar="FILE", help="Write the table and the Pareto plot: .html, .json or .txt."
)
@address_option
@backend_option
@json_option
@pass_state
def sweep(
    state: State,
    model: str,
    data: str,
    grid: tuple[str, ...],
    limits: tuple[str, ...],
    output: str,
    metric: str,
    keep: bool,
    runs: int,
    num_cpus: float,
    report: str | None,
    address: str | None,
    backend: str | None,
    as_json: bool,
) -> None:
    """Build many pipelines, and compare each with the model as it was, on a cluster of Ray.

    Each result is a file in the output: a sweep that was interrupted goes on where it was when the
    command is run again. The table has the time of a run and the bytes as shares of those of the
    model as it was, and the worst error of all outputs and samples; a star marks the Pareto front
    of time and error.

    The JSON document has the key trials: pipeline, error, bytes, before, seconds, seconds_before,
    metrics, samples, took and front of each.
    """
    from narrowpass.bundle import Bundle, MethodReport, Report
    from narrowpass.driver import check_source
    from narrowpass_ir.io import load_model
    from narrowpass_ray import sweeping
    from narrowpass_ray.sweeping import pipelines
    from narrowpass_ray.trial import Judging

    check_source(model)
    texts = pipelines(grid, limits)
    folder = str(Path(output).resolve() / "bundles") if keep else None
    source = str(Path(data).resolve()) if Path(data).exists() else data
    judging = Judging(str(Path(model).resolve()), source, backend, 1, runs, folder)
    write = report_writer(state, report, [model]) if report is not None else None
    with progress(enabled=not state.quiet and not as_json) as show:
        trials = sweeping.sweep(
            judging, texts, output, num_cpus=num_cpus, address=address, progress=show
        )
    front = sweeping.front(trials, metric)
    if write is not None:
        shown = MethodReport(exhibits=sweeping.exhibits(trials, metric))
        bundle = Bundle({"main": load_model(model)}, reports=(Report("sweep", {"main": shown}),))
        write(bundle, f"sweep of {model}")
    if as_json:
        rows = [{**asdict(trial), "front": trial in front} for trial in trials]
        print_json({"trials": rows})
    else:
        _print(trials, front)
    if any(trial.error for trial in trials):
        click.get_current_context().exit(FAILED)


def _print(trials: Sequence[Trial], front: Sequence[Trial]) -> None:
    rows = []
    for trial in trials:
        name = trial.pipeline or "no passes"
        if trial.error:
            rows.append((" ", name, "", "", "", "", "", "", trial.error))
            continue
        top1 = trial.metrics.get("top1")
        rows.append(
            (
                "*" if trial in front else " ",
                name,
                format_seconds(trial.seconds),
                f"{trial.ratio:.2f}",
                format_bytes(trial.bytes),
                f"{trial.metrics['relative']:.2g}",
                f"{trial.metrics['sqnr']:.1f} dB",
                "" if top1 is None else f"{top1:.2%}",
                "",
            )
        )
    columns = ("", "pipeline", "run", "ratio", "size", "relative", "SQNR", "top-1", "error")
    print_table(columns, rows, right=(2, 3, 4, 5, 6, 7))
