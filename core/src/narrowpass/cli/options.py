"""Options that several commands have, and the text of their values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from narrowpass.cli.state import State
from narrowpass.errors import NarrowpassError, UsageError

if TYPE_CHECKING:
    from narrowpass.bundle import Bundle
    from narrowpass.framework.plugins import Registry

_SHAPE = re.compile(r"\d+(x\d+)*")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)")
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def _registry(ctx: click.Context) -> Registry | None:
    try:
        return State.of(ctx).registry
    except NarrowpassError:  # a completion has nowhere to show it
        return None


def complete_backend(
    ctx: click.Context, _: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the name of a backend."""
    registry = _registry(ctx)
    names = sorted(registry.backends) if registry else []
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def complete_pipeline(
    ctx: click.Context, _: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the last item of pipeline text: a pass or a named pipeline."""
    registry = _registry(ctx)
    names = sorted({*registry.passes, *registry.pipelines}) if registry else []
    written, comma, last = incomplete.rpartition(",")
    return [CompletionItem(written + comma + name) for name in names if name.startswith(last)]


def complete_instrument(
    ctx: click.Context, _: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the name of an instrument."""
    registry = _registry(ctx)
    names = sorted(registry.instruments) if registry else []
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")

backend_option = click.option(
    "--backend",
    metavar="NAME{..}",
    shell_complete=complete_backend,
    help="What runs the model, with its options; `narrowpass backends` lists them.  [default: the "
    "available backend of highest priority]",
)

pipeline_option = click.option(
    "-p",
    "--pipeline",
    metavar="TEXT",
    shell_complete=complete_pipeline,
    help="For an ONNX file: the pipeline that it is built with, in memory.  "
    "[default: the backend's]",
)

method_option = click.option(
    "--method", metavar="NAME", help="Which method.  [default: main, or the only one]"
)

threads_option = click.option(
    "--threads",
    type=click.IntRange(min=1),
    metavar="N",
    help="Threads that a run may use.  [default: the processors that the process may use]",
)

cache_option = click.option(
    "--no-cache",
    "cache",
    is_flag=True,
    flag_value=False,
    default=True,
    help="Neither use nor keep packed weights of earlier processes.",
)

cache_dir_option = click.option(
    "--cache-dir",
    metavar="FOLDER",
    help="Where packed weights are kept.  [default: NARROWPASS_CACHE_DIR, or the user's cache "
    "directory]",
)

native_option = click.option(
    "--require-native",
    "require_native",
    is_flag=True,
    help="Fail if a node has no native kernel, rather than run it on the slow fallback.",
)

seed_option = click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seed of the random inputs.",
)

shape_option = click.option(
    "--shape",
    "shapes",
    metavar="NAME=1x3x224x224",
    multiple=True,
    help="Shape of a random input that has dynamic dimensions; may be given several times.",
)


input_option = click.option(
    "--input",
    "inputs",
    metavar="NAME=FILE.npy",
    multiple=True,
    help="The array of an input (or NAME=FILE.npz:ARRAY), or FILE.npz with an array for each; may "
    "be given several times.",
)


def split_pair(option: str, text: str, form: str) -> tuple[str, str]:
    """Split ``NAME=VALUE`` at the first equals sign after the name.

    Raises:
        UsageError: it is not of that form.
    """
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise UsageError(f"{option} {text}: pass {form}")
    return name, value


def parse_bytes(option: str, text: str) -> int:
    """Read a size in bytes, with a unit or without.

    Raises:
        UsageError: it is not of the form 500MB or 2GiB.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None or match[2].upper() not in _UNITS:
        raise UsageError(f"{option} {text}: this is not a size; pass 500MB or 2GiB")
    from fractions import Fraction

    # As a fraction: a float would round, and overflows where somebody means no limit at all.
    return int(Fraction(match[1]) * _UNITS[match[2].upper()])


def parse_shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Read the values of ``--shape``.

    Raises:
        UsageError: one is not of the form NAME=1x3x224x224, or a name comes twice.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        if not name or not _SHAPE.fullmatch(value):
            raise UsageError(
                f"--shape {text}: pass NAME=1x3x224x224: an input's name and whole numbers"
            )
        if name in shapes:
            raise UsageError(f"--shape has input {name!r} twice; pass it once")
        shapes[name] = tuple(int(size) for size in value.split("x"))
    return shapes


def choose_method(method: str | None, methods: Sequence[str]) -> str:
    """Return the method that the caller means.

    Raises:
        UsageError: there is no such method, or several and none was named.
    """
    listing = ", ".join(methods)
    if method is not None:
        if method not in methods:
            from narrowpass_ir.arguments import suggest

            raise UsageError(
                f"--method {method}: there is no such method{suggest(method, methods)}; "
                f"methods: {listing}"
            )
        return method
    if len(methods) == 1:
        return methods[0]
    if "main" in methods:
        return "main"
    raise UsageError(f"there are several methods: choose one with --method: {listing}")


def report_writer(state: State, path: str, sources: Iterable[str]) -> Callable[..., None]:
    """Find what writes the report early: a long build must not end in that.

    Args:
        state: has the report writers.
        path: the value of ``--report``.
        sources: files and bundles that are read or written, which it may not be in.

    Returns:
        A function to call with the bundle and the title.

    Raises:
        PluginError: no report writer is installed.
        UsageError: `path` cannot be written to.
    """
    from narrowpass.cli.output import visible
    from narrowpass.framework.reports import writer_of
    from narrowpass_ir.files import check_result_file, replacing_file

    check_result_file(path, "--report", sources)
    writer = writer_of(path, state.registry.reports)

    def write(bundle: Bundle, title: str) -> None:
        with replacing_file(Path(path)) as file:
            file.write(writer.render(bundle, visible(title)).encode())

    return write
