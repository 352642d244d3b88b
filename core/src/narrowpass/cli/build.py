"""``narrowpass build``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

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
from narrowpass.framework.instruments import Instrument
from narrowpass_ir.sizes import count_bytes, count_nodes

if TYPE_CHECKING:
    import onnx_ir as ir

    from narrowpass.bundle import Bundle
    from narrowpass.framework.context import Context
    from narrowpass.framework.passes import Pass, PassResult

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
    summary = _Summary(methods)
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


@dataclass(frozen=True)
class _PassRow:
    """What one pass did to one method."""

    method: str
    text: str
    modified: bool
    seconds: float
    counters: Mapping[str, int]
    summary: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {
            "pass": self.text,
            "method": self.method,
            "modified": self.modified,
            "seconds": self.seconds,
            "counters": dict(self.counters),
            "summary": self.summary,
        }


@dataclass
class _Summary(Instrument):
    """Notes sizes before the first pass of each method, and what each pass did.

    Attributes:
        names: the methods in the order in which they are built.
        show: called with the progress.
        rows: a row for each pass and method.
        failed_in: the method in which a pass failed; empty for none.
    """

    name: ClassVar[str] = "summary"

    names: list[str]
    show: Callable[[str, int, int], None] = lambda what, done, total: None
    rows: list[_PassRow] = field(default_factory=list, init=False)
    failed_in: str = field(default="", init=False)
    _before: dict[str, tuple[int, int]] = field(default_factory=dict, init=False)
    _done: int = field(default=0, init=False)

    @property
    def _method(self) -> str:
        return self.names[self._done]

    def before_pass(self, pass_: Pass, model: ir.Model, ctx: Context) -> None:
        self.show(self._named(pass_), 0, 0)
        if self._method not in self._before:
            self._before[self._method] = (count_nodes(model), count_bytes(model))

    def progress(self, pass_: Pass, what: str, done: int, total: int) -> None:
        self.show(f"{self._named(pass_)}: {what}", done, total)

    def _named(self, pass_: Pass) -> str:
        return f"{self._method}: {pass_}" if len(self.names) > 1 else str(pass_)

    def after_pass(self, pass_: Pass, result: PassResult, ctx: Context, seconds: float) -> None:
        counters = dict(sorted(ctx.counters.items()))
        row = _PassRow(self._method, str(pass_), result.modified, seconds, counters, result.summary)
        self.rows.append(row)

    def failed(self, pass_: Pass, error: Exception) -> None:
        self.failed_in = self._method

    def finish(self) -> None:
        self._done += 1

    def methods(self, bundle: Bundle, sources: Mapping[str, str]) -> dict[str, dict[str, Any]]:
        """Return for each method where it came from, and nodes and weights before and after."""
        summary: dict[str, dict[str, Any]] = {}
        for name, model in bundle.methods.items():
            after = (count_nodes(model), count_bytes(model))
            before = self._before.get(name, after)
            summary[name] = {
                "source": sources[name],
                "nodes": {"before": before[0], "after": after[0]},
                "weight_bytes": {"before": before[1], "after": after[1]},
            }
        return summary


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


def _with_hint(
    error: NarrowpassError, summary: _Summary, reproducer: str | None
) -> NarrowpassError:
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
