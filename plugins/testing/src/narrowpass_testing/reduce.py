"""``narrowpass reduce``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from narrowpass.cli.options import (
    backend_option,
    input_option,
    parse_shapes,
    pipeline_option,
    seed_option,
    shape_option,
    threads_option,
)
from narrowpass.cli.output import progress
from narrowpass.cli.state import State, pass_state
from narrowpass.errors import InputError, UsageError

if TYPE_CHECKING:
    from narrowpass_testing._trials import Failure, Trials, Way
    from narrowpass_testing.random_models import Case

_LARGEST = 2**31
"""Bytes of a model that is sent from process to process."""


@click.command()
@click.argument("model", metavar="MODEL.onnx")
@click.option(
    "-o",
    "--output",
    metavar="OUT.onnx",
    help="Write the smallest model that fails, and its inputs beside it as OUT.npz.  "
    "[default: only say how MODEL fails]",
)
@pipeline_option
@backend_option
@threads_option
@input_option
@shape_option
@seed_option
@click.option(
    "--tolerance",
    metavar="METRIC:LIMIT",
    help="How far outputs may be from the oracles': rel:1e-2, sqnr:30, cosine:0.999 or "
    "top1:0.99.  [default: that of the element type]",
)
@click.option(
    "--tries",
    type=click.IntRange(min=1),
    metavar="N",
    default=1000,
    show_default=True,
    help="Smaller models that are tried at most.",
)
@click.option(
    "--hang",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    default=60.0,
    show_default=True,
    help="A run that takes longer counts as a hang.",
)
@pass_state
def reduce(
    state: State,
    model: str,
    output: str | None,
    pipeline: str | None,
    backend: str | None,
    threads: int | None,
    inputs: tuple[str, ...],
    shapes: tuple[str, ...],
    seed: int,
    tolerance: str | None,
    tries: int,
    hang: float,
) -> None:
    """Make the smallest model that still fails in the same way.

    MODEL is built with the pipeline and run on the backend, in a process of its own. It fails by
    a wrong result, an error, a crash or a hang; smaller models must fail alike, an error by its
    class. onnx's evaluator and onnxruntime, where it is installed, say what is right, and that a
    smaller model is valid. Passes that need samples get the inputs, which are random unless
    --input gives them.

    The exit code is 1 where MODEL does not fail.
    """
    from narrowpass import Pipeline
    from narrowpass_analysis.metrics import Tolerance
    from narrowpass_ir.files import check_result_file
    from narrowpass_testing._trials import Trials, Way

    if output is not None:
        if not output.endswith(".onnx"):
            raise UsageError(f"-o {output}: the name of a model ends in .onnx")
        check_result_file(output, "-o", (model,))
        check_result_file(str(_inputs_of(output)), "-o", (model, *inputs))
    if tolerance is not None:
        try:
            Tolerance.parse(tolerance)
        except ValueError as error:
            raise UsageError(f"--tolerance: {error}") from None
    state.registry.backend(backend)
    if pipeline is not None:
        Pipeline.parse(pipeline, state.registry)
    way = Way(backend, pipeline, threads, tolerance, state.disabled)
    case = _read(state, model, inputs, shapes, seed)
    with Trials(way, hang) as trials:
        trial = trials.run(case)
        if trial.oracles is None:
            raise InputError(f"{model}: an oracle ends its process: nothing says what is right")
        if not trial.oracles:
            state.note("no oracle runs the model: only errors, crashes and hangs are found")
        failure = trial.failure
        if failure is None:
            judges = " and ".join(trial.oracles)
            close = f"; the outputs are those of {judges}" if judges else ""
            raise InputError(f"{model} does not fail{close}")
        if output is None:
            click.echo(f"{model} fails: {failure}")
            return
        state.note(f"it fails: {failure}")
        small, last = _smallest(state, trials, case, failure, tries, bool(trial.oracles))
    _save(case, small, output, last, way)


def _read(
    state: State, model: str, inputs: tuple[str, ...], shapes: tuple[str, ...], seed: int
) -> Case:
    """Return the model with inputs, which are random where none are given."""
    import numpy as np
    import onnx_ir as ir

    from narrowpass import load_model
    from narrowpass_analysis.inputs import complete_inputs, read_inputs
    from narrowpass_testing.random_models import Case

    source = load_model(model)
    graph = source.graph
    weights = (value.const_value for value in graph.initializers.values())
    if sum(weight.nbytes for weight in weights if weight is not None) >= _LARGEST:
        raise InputError(
            f"{model}: its weights have 2 GiB or more, which no protobuf message holds"
        )
    given = read_inputs(inputs, graph)
    feeds, notes = complete_inputs(given, graph, "main", parse_shapes(shapes), seed)
    for note in notes:
        state.note(note)
    sizes: dict[str, int] = {}
    for value in graph.inputs:
        shape = np.shape(feeds.get(value.name or "", ()))
        for dim, size in zip(value.shape or (), shape, strict=False):
            if not isinstance(dim, int) and dim.value is not None:
                sizes[dim.value] = size
    return Case(ir.to_proto(source), dict(feeds), sizes)


def _smallest(
    state: State, trials: Trials, case: Case, failure: Failure, tries: int, judged: bool
) -> tuple[Case, Failure]:
    """Return the smallest case found that fails alike, and how it does."""
    from narrowpass_testing.random_models import reduce_case

    last = failure
    with progress(enabled=not state.quiet) as show:

        def fails(smaller: Case) -> bool:
            nonlocal last
            trial = trials.run(smaller)
            # An oracle that runs it shows that it is valid, where one runs the whole model.
            valid = trial.oracles if judged else trial.oracles is not None
            if not valid or trial.failure is None or trial.failure.kind != failure.kind:
                return False
            last = trial.failure
            show(f"reducing: {len(smaller.model.graph.node)} nodes", 0, 0)
            return True

        small = reduce_case(case, fails, tries=tries, values=trials.values)
    return small, last


def _save(case: Case, small: Case, output: str, failure: Failure, way: Way) -> None:
    """Write the model and its inputs, and say what was written and how to see the failure."""
    import onnx_ir as ir

    from narrowpass import save_model
    from narrowpass_analysis.run import flatten, write_npz

    save_model(ir.from_proto(small.model), output)
    before, after = (len(one.model.graph.node) for one in (case, small))
    wrote, command = f"wrote {output} ({after} of {before} nodes)", ["narrowpass", "reduce", output]
    if small.feeds:
        inputs = str(_inputs_of(output))
        write_npz(Path(inputs), flatten(small.feeds))
        wrote, command = f"{wrote} and {inputs} (its inputs)", [*command, "--input", inputs]
    click.echo(wrote)
    click.echo(f"it fails: {failure}")
    for option, value in (
        ("-p", way.pipeline),
        ("--backend", way.backend),
        ("--threads", way.threads),
        ("--tolerance", way.tolerance),
    ):
        if value is not None:
            command += [option, str(value)]
    click.echo(f"to see it: {shlex.join(command)}")


def _inputs_of(output: str) -> Path:
    return Path(output).with_suffix(".npz")
