"""``narrowpass build``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from narrowpass.cli.options import (
    complete_backend,
    complete_pipeline,
    json_option,
    report_writer,
)
from narrowpass.cli.output import (
    change,
    format_bytes,
    format_seconds,
    print_json,
    print_table,
    progress,
)
from narrowpass.cli.state import State, pass_state
from narrowpass.cli.watch import Watch, watch_options
from narrowpass.errors import NarrowpassError, UsageError

if TYPE_CHECKING:
    from narrowpass.cli._summary import Summary

_NAMED = re.compile(r"(?P<name>[^=/\\]+)=(?P<file>.*)", re.DOTALL)


@click.command()
@click.argument("models", nargs=-1, required=True, metavar="MODEL | NAME=MODEL.onnx ...")
@click.option(
    "-o",
    "--output",
    required=True,
    metavar="OUT",
    help="Where the result goes: a name ending in .onnx for one ONNX file (one method only), "
    "anything else for a bundle folder.",
)
@click.option(
    "-p",
    "--pipeline",
    metavar="TEXT",
    shell_complete=complete_pipeline,
    help="Passes in order, of those that `narrowpass passes` lists; empty for none.  "
    "[default: the target's]",
)
@click.option(
    "--max-error",
    metavar="METRIC:LIMIT",
    help="Choose the type of each node: the fastest that keeps outputs within this error, such as "
    "rel:1e-2, cosine:0.999, top1:0.99 or kl:0.01. It stands for a pass after the pipeline, which "
    "has more options; `narrowpass passes` lists them.",
)
@click.option(
    "--metric",
    metavar="MODULE:FUNCTION",
    help="Your metric, whose limit alone --max-error is then.",
)
@click.option("--objective", metavar="latency|bytes|mix", help="What --max-error minimizes.")
@click.option(
    "--target",
    metavar="NAME{..}",
    shell_complete=complete_backend,
    help="The backend to build for, with its options.  [default: the available one of highest "
    "priority]",
)
@click.option(
    "--calibration",
    metavar="DATA",
    help="Samples for passes that need data: a folder of .npz files, one .npz file, or "
    "module:function.",
)
@click.option(
    "--report",
    metavar="OUT.html",
    help="Draw the graph, and what each pass decided, as a web page.",
)
@click.option(
    "--state",
    "states",
    multiple=True,
    metavar="IN=OUT[@AXIS]",
    help="An input that a session feeds with an output of the run before, and the axis that runs "
    "append rows to; may be repeated.  [default: found in the models]",
)
@click.option("--no-verify", is_flag=True, help="Do not check the model after each pass.")
@watch_options
@json_option
@pass_state
def build(
    state: State,
    models: tuple[str, ...],
    output: str,
    pipeline: str | None,
    max_error: str | None,
    metric: str | None,
    objective: str | None,
    target: str | None,
    calibration: str | None,
    report: str | None,
    states: tuple[str, ...],
    no_verify: bool,
    as_json: bool,
    **watch: Any,
) -> None:
    """Run a pipeline of passes on models and write the result.

    One model is method "main" of the result. Several models, each with a name, become the methods
    of one bundle, which share their weights. A file or folder of another format, such as a GGUF
    file, is read by the importer that is installed for it, and may have several methods.

    The JSON document has the keys output, format (bundle or onnx), bytes (on disk), target,
    pipeline, report, states (as text), methods (by name: source, nodes and weight_bytes, each with
    before and after) and passes (pass, method, modified, seconds, counters, summary).
    """
    from narrowpass.cli._summary import Summary
    from narrowpass.driver import build as run_build
    from narrowpass.framework.importing import import_models
    from narrowpass.narrowing import choosing_pass
    from narrowpass_ir.sizes import disk_bytes

    named = parse_models(models)
    check_output(output, named.values())
    write = None
    if report is not None:
        write = report_writer(state, report, (*named.values(), output))
    narrowing = choosing_pass(max_error, metric, objective, state.registry)
    chosen, text = choose(state, target, pipeline, narrowing)
    watching = Watch(watch.pop("time_"), **watch)
    imported = import_models(named, state.registry)
    methods = list(imported.methods)
    summary = Summary(methods)
    instruments = [summary, *watching.instruments(state, methods)]
    with progress(enabled=not (state.quiet or as_json)) as show:
        summary.show = show
        try:
            bundle = run_build(
                imported,
                text,
                output,
                target=chosen,
                calibration=calibration,
                instruments=instruments,
                verify=not no_verify,
                plugins=state.plugins,
                progress=lambda done, total: show("writing weights", done, total),
                states=states or None,
            )
        except NarrowpassError as error:
            raise _with_hint(error, summary, watching.reproducer) from error.__cause__
    if write is not None:
        write(bundle, output)
    document = {
        "output": output,
        "format": "onnx" if output.endswith(".onnx") else "bundle",
        "bytes": disk_bytes(output),
        "target": chosen,
        "pipeline": text,
        "report": report,
        "states": [str(state) for state in bundle.states],
        "methods": summary.methods(
            bundle, {name: named.get(name, next(iter(named.values()))) for name in methods}
        ),
        "passes": [row.to_json() for row in summary.rows],
    }
    if as_json:
        print_json(document)
        return
    _print_summary(document)


def parse_models(texts: Sequence[str]) -> dict[str, str]:
    """Return the model file for each method.

    Raises:
        UsageError: a method named twice, or several models of which one has no name.
    """
    named: dict[str, str] = {}
    for text in texts:
        match = None if Path(text).exists() else _NAMED.fullmatch(text)
        if match is None and len(texts) > 1:
            raise UsageError(
                f"{text}: several models need names; pass each as NAME=MODEL.onnx, "
                "such as encode=encoder.onnx"
            )
        name, file = (match["name"], match["file"]) if match else ("main", text)
        if not file:
            raise UsageError(f"{text}: there is no file after '='; pass NAME=MODEL.onnx")
        if name in named:
            raise UsageError(f"method {name!r} is given twice; name each method once")
        named[name] = file
    return named


def check_output(output: str, sources: Iterable[str] = ()) -> None:
    """Refuse early what must not be replaced: a long build must not end in that.

    Raises:
        UsageError: a folder that is no bundle, a folder around it that does not exist, or one of
            the models that are read.
    """
    from narrowpass.bundle import is_bundle
    from narrowpass_ir.files import check_not_source

    path = Path(output)
    if not output:
        raise UsageError("-o: the name of the output is empty; pass a file or folder to write")
    if not path.parent.is_dir():
        raise UsageError(f"{output}: the folder {path.parent} does not exist; create it first")
    if path.suffix != ".onnx" and path.is_dir() and any(path.iterdir()) and not is_bundle(path):
        raise UsageError(
            f"{output}: is a folder with other things in it, not a bundle, and is not replaced; "
            "choose another name"
        )
    check_not_source(output, sources)


def choose(
    state: State, target: str | None, pipeline: str | None, narrowing: str = ""
) -> tuple[str, str]:
    """Return the target's text and the pipeline's; what was not given is named in a note."""
    from narrowpass.driver import choose_pipeline
    from narrowpass.narrowing import MAX_ERROR

    backend = state.registry.backend(target)
    text = str(choose_pipeline(pipeline, backend, state.registry))
    text = str(choose_pipeline(f"{text},{narrowing}".strip(","), backend, state.registry))
    if target is None:
        state.note(f"target: {backend}")
    if pipeline is None:
        empty = "none (no passes are installed that it asks for)"
        state.note(f"pipeline: {text or empty}")
        if not narrowing and any(MAX_ERROR in cls.serves for cls in state.registry.passes.values()):
            state.note("--max-error rel:1e-2 chooses narrower types where outputs allow it")
    return str(backend), text


def _with_hint(error: NarrowpassError, summary: Summary, reproducer: str | None) -> NarrowpassError:
    """Add the method where there are several, and where the failing pass's input lies."""
    from narrowpass.framework.instruments.reproducer import DESCRIPTION_FILE

    text = str(error)
    if summary.failed_in and len(summary.names) > 1:
        text = f"method {summary.failed_in!r}: {text}"
    if summary.failed_in and reproducer is not None and Path(reproducer, DESCRIPTION_FILE).exists():
        text += f"\nThe input of the pass is in {reproducer}: narrowpass replay {reproducer}"
    error.args = (text, *error.args[1:])
    return error


def _print_summary(document: dict[str, Any]) -> None:
    rows: Iterable[tuple[str, str, str]] = (
        (
            name,
            change(method["nodes"]["before"], method["nodes"]["after"]),
            change(method["weight_bytes"]["before"], method["weight_bytes"]["after"], format_bytes),
        )
        for name, method in document["methods"].items()
    )
    print_table(("method", "nodes", "weights"), rows)
    several = len(document["methods"]) > 1
    for row in document["passes"]:
        if row["summary"]:
            name = row["pass"].partition("{")[0]
            method = f"{row['method']}: " if several else ""
            click.echo(f"{method}{name}: {row['summary']}")
    seconds = sum(row["seconds"] for row in document["passes"])
    click.echo(
        f"wrote {document['output']} ({format_bytes(document['bytes'])}); "
        f"passes took {format_seconds(seconds)}"
    )
    if document["report"] is not None:
        click.echo(f"wrote {document['report']}")
