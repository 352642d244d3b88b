"""``narrowpass compare MODEL --across AXES``."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from narrowpass.cli.options import choose_method
from narrowpass.cli.output import print_json, print_table, progress, visible
from narrowpass.errors import ToleranceError, UsageError
from narrowpass_ir.arguments import suggest

if TYPE_CHECKING:
    from narrowpass.bundle import Bundle
    from narrowpass.cli.state import State
    from narrowpass_analysis.across import Method


@dataclass(frozen=True)
class Asked:
    """What is compared, as the command line has it; None for what is not given.

    Attributes:
        path: the bundle or ONNX file.
        pipeline: for an ONNX file.
        backend: what runs it.
        method: its name.
        data: samples.
        shapes: of random inputs, by name.
        seed: of these.
    """

    path: str
    pipeline: str | None
    backend: str | None
    method: str | None
    data: str | None
    shapes: Mapping[str, tuple[int, ...]]
    seed: int


def compare_across(
    state: State, asked: Asked, axes: str, tolerance: str | None, *, as_json: bool
) -> None:
    """Run a model in several ways, print whether outputs have the same bits, and fail otherwise.

    Raises:
        UsageError: an unknown axis; a tolerance that is not of ``rel``; none of the axes is there.
        ToleranceError: bits differ, by more than the tolerance if there is one.
    """
    from narrowpass_analysis.across import AXES, runs_of
    from narrowpass_analysis.metrics import Tolerance

    chosen = list(AXES) if axes == "all" else [axis.strip() for axis in axes.split(",")]
    for axis in chosen:
        if axis not in AXES:
            raise UsageError(
                f"--across: there is no axis {axis!r}{suggest(axis, AXES)}; there are "
                f"{', '.join(AXES)}, and all"
            )
    try:
        limit = None if tolerance is None else Tolerance.parse(tolerance)
    except ValueError as error:
        raise UsageError(f"--tolerance: {error}") from None
    if limit is not None and limit.metric != "rel":
        raise UsageError(f"--tolerance {tolerance}: with --across pass rel:LIMIT")
    opened, bundle = _open(state, asked)
    run = runs_of(bundle, opened.backend, opened.name)
    cases, missing = [], {}
    with progress(enabled=not (state.quiet or as_json)) as show:
        for axis in chosen:
            show(axis, 0, 0)
            try:
                cases += list(opened.cases(axis, run))
            except UsageError as error:
                missing[axis] = str(error)
    if not cases:
        raise UsageError("; ".join(missing.values()))
    bad = [case for case in cases if not case.same and not (limit and case.relative <= limit.limit)]
    document = {
        "path": asked.path,
        "backend": str(opened.backend),
        "method": opened.name,
        "same": all(case.same for case in cases),
        "missing": missing,
        "cases": [asdict(case) for case in cases],
    }
    if as_json:
        print_json(document)
    else:
        _print(document)
    if bad:
        texts = [f"{case.case} ({case.axis}), output {case.output!r}" for case in bad]
        raise ToleranceError(f"outputs differ: {'; '.join(texts)}")


def _open(state: State, asked: Asked) -> tuple[Method, Bundle]:
    from narrowpass.bundle import is_bundle
    from narrowpass.calibration.samples import Samples
    from narrowpass.driver import open_bundle
    from narrowpass_analysis.across import BATCH, Method, batch_shapes, with_data
    from narrowpass_analysis.inputs import random_inputs

    path, runner = asked.path, state.registry.backend(asked.backend)
    if is_bundle(path) and asked.pipeline is not None:
        raise UsageError(f"-p: {path} is a bundle, which is built already")
    text = None if is_bundle(path) else asked.pipeline or ""
    bundle = open_bundle(path, runner, pipeline=text, plugins=state.plugins)
    name = choose_method(asked.method, list(bundle.methods))
    graph = bundle.methods[name].graph
    if asked.data is None:
        feeds, notes = random_inputs(graph, asked.shapes or batch_shapes(graph), asked.seed)
        for note in notes:
            state.note(note)
        return Method(path, text, runner, name, graph, feeds), bundle
    samples: Sequence[Any] = list(itertools.islice(Samples.parse(asked.data), BATCH))
    if not samples:
        raise UsageError(f"--data {asked.data}: there is no sample")
    return with_data(Method(path, text, runner, name, graph, samples[0]), samples), bundle


def _print(document: dict[str, Any]) -> None:
    rows = [
        (
            case["axis"],
            case["case"],
            visible(case["output"]),
            "same bits" if case["same"] else "differs",
            f"{case['max_abs']:.3g}",
            f"{case['relative']:.3g}",
        )
        for case in document["cases"]
    ]
    print_table(("across", "case", "output", "bits", "max abs", "relative"), rows, right=(4, 5))
    for axis, reason in document["missing"].items():
        click.echo(f"{axis}: {reason}")
