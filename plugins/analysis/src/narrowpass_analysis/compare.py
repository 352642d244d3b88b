"""``narrowpass compare``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from narrowpass.cli.options import (
    backend_option,
    complete_pipeline,
    json_option,
    parse_shapes,
    seed_option,
    shape_option,
    threads_option,
)
from narrowpass.cli.output import (
    format_bytes,
    format_seconds,
    print_json,
    print_table,
    progress,
    visible,
)
from narrowpass.cli.state import State, pass_state
from narrowpass.errors import ToleranceError, UsageError
from narrowpass_analysis.sameness import Asked, compare_across


@click.command()
@click.argument("a", metavar="A")
@click.argument("b", metavar="[B]", required=False)
@click.option(
    "--data",
    metavar="DATA",
    help="Samples to run on: a folder of .npz files, one .npz file, or module:function.  "
    "[default: one random sample]",
)
@click.option("--method", metavar="NAME", help="Which method.  [default: all]")
@click.option(
    "--tolerance",
    metavar="METRIC:LIMIT",
    help="End with exit code 1 unless each output is this near: rel:1e-2, sqnr:30, "
    "cosine:0.999 or top1:0.99.",
)
@click.option(
    "-p",
    "--pipeline",
    metavar="TEXT",
    shell_complete=complete_pipeline,
    help="Build B, an ONNX file, with this pipeline in memory before it is compared.",
)
@click.option(
    "--across",
    metavar="AXES",
    help="Compare A with itself, without B: whether its outputs have the same bits across "
    "threads, batch, padding and isa (instruction sets); a list with commas, or all.",
)
@backend_option
@threads_option
@click.option(
    "--runs",
    type=click.IntRange(min=1),
    metavar="N",
    default=5,
    show_default=True,
    help="Runs of each that are timed, on the first sample.",
)
@shape_option
@seed_option
@json_option
@pass_state
def compare(
    state: State,
    a: str,
    b: str | None,
    data: str | None,
    method: str | None,
    tolerance: str | None,
    pipeline: str | None,
    across: str | None,
    backend: str | None,
    threads: int | None,
    runs: int,
    shapes: tuple[str, ...],
    seed: int,
    as_json: bool,
) -> None:
    """Compare outputs, sizes and latencies of B with those of A.

    A is the reference. Both are bundles or ONNX files. An ONNX file is run as it is, without any
    pipeline. The methods must have the same inputs and outputs; floating-point types may differ in
    width, and data is converted.

    For each output the worst over the data is given of: the largest absolute difference; the same
    as a share of the largest value of A ("relative"); signal to noise in dB; the cosine; and the
    share of rows with the largest value at the same place ("top-1"). Integers and strings are
    equal or not. NaN equals NaN: where there is any, its share in A and B is reported.

    The JSON document has the keys a and b (each path, bytes, backend), samples, tolerance, met
    (null without a tolerance) and methods: by name, a and b (latency in seconds, as in bench) and
    outputs (by name: equal, max_abs, relative, sqnr, cosine, top1, and nan_a and nan_b: the
    share of NaN). Infinity is the largest number of float64.

    With --across the document has the keys path, backend, method, same, missing (axes that the
    method does not have, with the reason), and cases (each axis, case, output, same, max_abs,
    relative); the exit code is 1 unless all bits are the same, or within --tolerance.
    """
    if data is not None and shapes:
        raise UsageError("--shape is for random inputs; leave it out with --data")
    if across is not None:
        if b is not None:
            raise UsageError("--across compares A with itself: leave out B")
        asked = Asked(a, pipeline, backend, method, data, parse_shapes(shapes), seed)
        compare_across(state, asked, across, tolerance, as_json=as_json)
        return
    if b is None:
        raise UsageError("pass a second model B, or --across to compare A with itself")
    from narrowpass_analysis.comparison import Comparison
    from narrowpass_analysis.metrics import Tolerance

    try:
        limit = None if tolerance is None else Tolerance.parse(tolerance)
    except ValueError as error:
        raise UsageError(f"--tolerance: {error}") from None
    comparison = Comparison.open(
        state, (a, b), backend=backend, pipeline=pipeline, threads=threads, method=method
    )
    if backend is None:
        state.note(f"backend: {comparison.backend}")
    with comparison, progress(enabled=not (state.quiet or as_json)) as show:
        samples, notes = comparison.samples(data, parse_shapes(shapes), seed)
        for note in notes:
            state.note(note)
        methods = comparison.run(samples, runs, show)
    problems = [
        f"method {name!r}, {problem}"
        for name, row in methods.items()
        for problem in (limit.check(row.differences) if limit else ())
    ]
    document = {
        **comparison.to_json(),
        "tolerance": None if limit is None else str(limit),
        "met": None if limit is None else not problems,
        "methods": {name: row.to_json() for name, row in methods.items()},
    }
    if as_json:
        print_json(document)
    else:
        _print(document)
    if problems:
        raise ToleranceError(f"the tolerance {limit} is not met: " + "; ".join(problems))


def _print(document: Mapping[str, Any]) -> None:
    methods = document["methods"]
    sides = [
        (
            side.upper(),
            document[side]["path"],
            format_bytes(document[side]["bytes"]),
            *(format_seconds(row[side]["median"]) for row in methods.values()),
        )
        for side in ("a", "b")
    ]
    print_table(
        ("", "path", "size", *(f"latency of {name}" for name in methods)),
        sides,
        right=range(2, 3 + len(methods)),
    )
    click.echo()
    rows = [
        (
            name,
            output,
            f"{values['max_abs']:.3g}",
            f"{values['relative']:.3g}",
            f"{values['sqnr']:.1f} dB",
            f"{values['cosine']:.7f}",
            "" if values["top1"] is None else f"{values['top1']:.2%}",
        )
        for name, row in methods.items()
        for output, values in row["outputs"].items()
    ]
    samples = document["samples"]
    print_table(
        ("method", "output", "max abs", "relative", "SQNR", "cosine", "top-1"),
        rows,
        title=f"B against A, the worst of {samples} sample{'s' * (samples != 1)}",
        right=range(2, 7),
    )
    for name, row in methods.items():
        for output, values in row["outputs"].items():
            if values["nan_a"] or values["nan_b"]:
                click.echo(
                    f"method {name}, output {visible(output)}: {values['nan_a']:.2%} of A and "
                    f"{values['nan_b']:.2%} of B is NaN; NaN in both counts as equal"
                )
