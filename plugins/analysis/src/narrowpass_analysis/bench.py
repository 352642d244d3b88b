"""``narrowpass bench``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from narrowpass.cli.options import (
    backend_option,
    cache_dir_option,
    cache_option,
    choose_method,
    input_option,
    json_option,
    method_option,
    native_option,
    parse_shapes,
    pipeline_option,
    seed_option,
    shape_option,
    threads_option,
)
from narrowpass.cli.output import format_seconds, print_json, print_table
from narrowpass.cli.state import State, pass_state
from narrowpass.errors import BackendError
from narrowpass_ir.files import replacing_file

if TYPE_CHECKING:
    from narrowpass.runtime.backend import NodeTime

_SHOWN_NODES = 40
_PROFILE_RUNS = 5


@click.command()
@click.argument("model", metavar="BUNDLE|MODEL.onnx")
@method_option
@input_option
@shape_option
@backend_option
@pipeline_option
@threads_option
@native_option
@cache_option
@cache_dir_option
@click.option(
    "--runs",
    type=click.IntRange(min=1),
    metavar="N",
    help="Runs that are timed.  [default: as many as fit into 3 seconds, at least 5]",
)
@click.option("--profile", is_flag=True, help="Also print the time of each node.")
@click.option(
    "--trace",
    metavar="OUT.json",
    help="Write the times of one run, node after node, for chrome://tracing and Perfetto.",
)
@seed_option
@json_option
@pass_state
def bench(
    state: State,
    model: str,
    method: str | None,
    inputs: tuple[str, ...],
    shapes: tuple[str, ...],
    backend: str | None,
    pipeline: str | None,
    threads: int | None,
    require_native: bool,
    cache: bool,
    cache_dir: str | None,
    runs: int | None,
    profile: bool,
    trace: str | None,
    seed: int,
    as_json: bool,
) -> None:
    """Time a method on random inputs, or on those from files.

    Dynamic dimensions that neither --input nor --shape sets are taken as 1 and named on standard
    error. A few runs to warm up are not timed.

    The JSON document has the keys model, method, backend, threads, inputs (shapes by name),
    latency (seconds: runs, median, p10, p90, min, runs_per_second) and profile (null without
    --profile; else node, op_type, kernel, seconds, partition, the slowest first).
    """
    from narrowpass.driver import open_bundle
    from narrowpass.runtime.backend import CompileOptions, compile_bundle
    from narrowpass_analysis.inputs import complete_inputs, files_of, read_inputs
    from narrowpass_analysis.latency import measure
    from narrowpass_ir.files import check_result_file

    given = parse_shapes(shapes)
    if trace is not None:
        check_result_file(trace, "--trace", (model, *files_of(inputs)))
    chosen = state.registry.backend(backend)
    bundle = open_bundle(model, chosen, pipeline=pipeline, plugins=state.plugins)
    method = choose_method(method, list(bundle.methods))
    graph = bundle.methods[method].graph
    feeds, notes = complete_inputs(read_inputs(inputs, graph), graph, method, given, seed)
    for note in notes:
        state.note(note)
    if backend is None:
        state.note(f"backend: {chosen}")
    profiled: list[NodeTime] | None = None
    options = CompileOptions(
        threads=threads,
        require_native=require_native,
        cache=cache,
        cache_dir=cache_dir,
    )
    with compile_bundle(chosen, bundle, options) as program:
        try:
            [latency] = measure([lambda: program.run(feeds, method)], runs)
            if profile or trace is not None:
                profiled = list(program.profile(feeds, method, runs or _PROFILE_RUNS))
        except BackendError as error:
            raise _with_notes(error, notes) from error.__cause__
    document: dict[str, Any] = {
        "model": model,
        "method": method,
        "backend": str(chosen),
        "threads": threads,
        "inputs": {name: list(array.shape) for name, array in feeds.items()},
        "latency": latency.to_json(),
        "profile": None if profiled is None else _profile_json(profiled),
    }
    if trace is not None:
        with replacing_file(Path(trace)) as file:
            file.write(json.dumps(_trace(method, profiled or [])).encode())
    if not profile:
        document["profile"] = None
    if as_json:
        print_json(document)
        return
    _print(document)
    if trace is not None:
        click.echo(f"wrote {trace}")


def _trace(method: str, rows: Sequence[NodeTime]) -> dict[str, Any]:
    """Return rows in the order in which they run as complete events of the trace event format."""
    events = []
    start = 0.0
    for row in rows:
        microseconds = row.seconds * 1e6
        arguments = {"node": row.node, "operator": row.op_type, "partition": row.partition}
        events.append(
            {
                "name": f"{row.op_type or 'layout'} {row.node}",
                "cat": row.kernel,
                "ph": "X",
                "ts": start,
                "dur": microseconds,
                "pid": 1,
                "tid": 1,
                "args": {**arguments, "kernel": row.kernel},
            }
        )
        start += microseconds
    name = {"name": "process_name", "ph": "M", "pid": 1, "tid": 1, "args": {"name": method}}
    return {"traceEvents": [name, *events], "displayTimeUnit": "ms"}


def _with_notes(error: BackendError, notes: Sequence[str]) -> BackendError:
    """Say which dimensions were guessed: they may be what does not fit."""
    if not notes:
        return error
    return BackendError(f"{error}\nThe inputs were random, and {'; '.join(notes)}")


def _profile_json(rows: Sequence[NodeTime]) -> list[dict[str, Any]]:
    return [
        {
            "node": r.node,
            "op_type": r.op_type,
            "kernel": r.kernel,
            "seconds": r.seconds,
            "partition": r.partition,
        }
        for r in sorted(rows, key=lambda row: -row.seconds)
    ]


def _print(document: dict[str, Any]) -> None:
    latency = document["latency"]
    cells = [format_seconds(latency[key]) for key in ("median", "p10", "p90", "min")]
    print_table(
        ("method", "runs", "median", "p10", "p90", "min", "runs/s"),
        [(document["method"], str(latency["runs"]), *cells, f"{latency['runs_per_second']:.4g}")],
        right=range(1, 7),
    )
    rows = document["profile"]
    if rows is None:
        return
    total = sum(row["seconds"] for row in rows) or 1.0
    cells_of = [
        (
            row["node"],
            row["op_type"],
            row["kernel"],
            format_seconds(row["seconds"]),
            f"{row['seconds'] / total:.1%}",
        )
        for row in rows[:_SHOWN_NODES]
    ]
    click.echo()
    print_table(("node", "operator", "kernel", "median", "share"), cells_of, right=(3, 4))
    if len(rows) > _SHOWN_NODES:
        rest = sum(row["seconds"] for row in rows[_SHOWN_NODES:])
        click.echo(
            f"and {len(rows) - _SHOWN_NODES} more nodes: {format_seconds(rest)}, "
            f"{rest / total:.1%}; --json lists them"
        )
