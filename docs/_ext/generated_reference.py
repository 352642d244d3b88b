"""Parts of the reference that are generated from the code.

A page says ``<!-- generated: NAME -->`` on a line of its own; when Sphinx reads the page, the
Markdown that the function of that name returns (see `SECTIONS`) takes the line's place. Nothing is
written into the source tree, and the functions need no Sphinx, so that tests can call them.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import narrowpass_ir.errors
from narrowpass import errors, load_plugins
from narrowpass.framework import pipeline
from narrowpass.framework.docstrings import attribute_notes, ticks
from narrowpass.framework.options import describe_type, format_value, option_types

if TYPE_CHECKING:
    from sphinx.application import Sphinx

MARKER = re.compile(r"^<!-- generated: ([a-z-]+) -->$", re.MULTILINE)
OURS = tuple(
    f"narrowpass-{name} "
    for name in ("analysis", "auto", "demo", "generate", "ray", "serve", "signing", "testing")
)
"""The distributions whose commands are described with those of the core."""

TUTORIAL_PLUGIN = "narrowpass-hello"
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def commands() -> Mapping[str, click.Command]:
    """Return this repository's commands by full name, the group first, without those of others."""
    from narrowpass.cli import app
    from narrowpass.cli._app import COMMANDS

    context = click.Context(app)
    given: dict[str, click.Command] = {"narrowpass": app}
    owners = load_plugins().registry.owners
    more = [
        name for (kind, name), by in owners.items() if kind == "commands" and by.startswith(OURS)
    ]
    for name in [*COMMANDS, *sorted(more)]:
        command = app.get_command(context, name)
        if command is not None:
            given.update(_walk(f"narrowpass {name}", command))
    return given


def _walk(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        for child in sorted(command.commands):
            yield from _walk(f"{name} {child}", command.commands[child])


def command_line() -> str:
    """Describe each command with its arguments and options."""
    return "\n".join(_describe_command(name, command) for name, command in commands().items())


def _describe_command(name: str, command: click.Command) -> str:
    root = commands()["narrowpass"]
    parent = click.Context(root, **root.context_settings)
    context = click.Context(command, info_name=name, parent=parent, max_content_width=10_000)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    parts = [f"## `{name}`\n", f"```text\n{usage}\n```\n", _paragraphs(command.help or "")]
    rows = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if isinstance(parameter, click.Argument):
            help_text = str(getattr(parameter, "help", None) or "")
            if help_text:
                rows.append(f"`{parameter.make_metavar(context)}`\n: {_cell(help_text)}\n")
        elif record is not None:
            flags = record[0].replace(" / ", "`, `")
            rows.append(f"`{flags}`\n: {_cell(record[1])}\n")
    if rows:
        parts.append("\n".join(rows))
    return "\n".join(parts)


def _paragraphs(text: str) -> str:
    """Turn click's help text into Markdown: paragraphs marked as preformatted stay so."""
    given = []
    for paragraph in inspect.cleandoc(text.partition("\f")[0]).split("\n\n"):
        if paragraph.startswith("\b"):
            given.append("```text\n" + paragraph.removeprefix("\b").lstrip("\n") + "\n```")
        else:
            given.append(_cell(paragraph))
    return "\n\n".join(given) + "\n"


def _cell(text: str) -> str:
    """Return text in one line, with nothing in it that Markdown would take for markup."""
    return re.sub(r"([*_<>\[\]|\\])", r"\\\1", " ".join(text.split()))


def _prose(text: str | None) -> str:
    """Turn a docstring's text into Markdown."""
    plain = re.split(r"\n\n?(?:Args|Attributes|Raises|Returns):", inspect.cleandoc(text or ""))[0]
    return ticks(plain)


def grammar() -> str:
    """Return the grammar as the docstring of `narrowpass.framework.pipeline` has it."""
    block = (pipeline.__doc__ or "").partition("::\n\n")[2]
    lines = block.split("\n\n", 1)[0]
    return f"```text\n{inspect.cleandoc(lines)}\n```\n"


def own_passes() -> Mapping[str, type[Any]]:
    """Return the passes of the installed plugins of this repository, the tutorial's left out."""
    registry = load_plugins().registry
    owned = {}
    for name, cls in sorted(registry.passes.items()):
        owner = registry.owner("passes", name)
        if owner.startswith("narrowpass-") and not owner.startswith(TUTORIAL_PLUGIN):
            owned[name] = cls
    return owned


def passes() -> str:
    """Describe each pass with its options."""
    registry = load_plugins().registry
    parts = []
    for name, cls in own_passes().items():
        parts.append(f"## `{name}`\n\nFrom {registry.owner('passes', name)}.\n")
        parts.append(_prose(cls.__doc__) + "\n")
        for label in ("requires", "forbids"):
            if getattr(cls, label):
                listed = ", ".join(f"`{other}`" for other in getattr(cls, label))
                parts.append(f"{label.capitalize()} before it in the pipeline: {listed}.\n")
        parts.append(_options(cls))
    return "\n".join(parts) or "No pass is installed.\n"


def own_backends() -> Mapping[str, Any]:
    """Return the installed backends of this repository."""
    registry = load_plugins().registry
    return {
        name: backend
        for name, backend in sorted(registry.backends.items())
        if registry.owner("backends", name).startswith("narrowpass")
    }


def backends() -> str:
    """Describe each backend with its options."""
    registry = load_plugins().registry
    parts = []
    for name, backend in own_backends().items():
        parts.append(f"## `{name}`\n\nFrom {registry.owner('backends', name)}.\n")
        parts.append(f"{_prose(type(backend).__doc__)}\n\n{_options(type(backend))}")
    return "\n".join(parts)


def instruments() -> str:
    """Describe each instrument of the core with its options."""
    registry = load_plugins().registry
    parts = []
    for name, cls in sorted(registry.instruments.items()):
        if registry.owner("instruments", name).startswith("narrowpass "):
            parts.append(f"## `{name}`\n\n{_prose(cls.__doc__)}\n\n{_options(cls)}")
    return "\n".join(parts)


def _options(cls: type[Any]) -> str:
    """Return a table of a class's options."""
    notes = attribute_notes(cls)
    rows = []
    for field in dataclasses.fields(cls):
        option = field.name.replace("_", "-")
        note = notes.get(field.name, "")
        if option not in option_types(cls):
            if field.init:
                rows.append(f"`{field.name}` (from Python)\n: {note or '—'}\n")
            continue
        factory = field.default_factory
        default = field.default if factory is dataclasses.MISSING else factory()
        kind = describe_type(option_types(cls)[option])
        rows.append(f"`{option}` (`{kind}`, default `{format_value(default)}`)\n: {note or '—'}\n")
    return "\n".join(rows) if rows else "No options.\n"


def exceptions() -> list[type[errors.NarrowpassError]]:
    """Return all exceptions, bases first."""
    # Those of the library for models first: `narrowpass.errors` imports them in alphabetical order.
    named = {**vars(narrowpass_ir.errors), **vars(errors)}
    given = [value for value in named.values() if inspect.isclass(value)]
    return [cls for cls in given if issubclass(cls, errors.NarrowpassError)]


def errors_table() -> str:
    """Return a table of the exceptions and the exit codes that they lead to."""
    lines = ["| exception | base | exit code | what it says |", "|---|---|---|---|"]
    for cls in exceptions():
        base = cls.__bases__[0].__name__
        what = " ".join(_prose(cls.__doc__).split())
        lines.append(f"| `{cls.__name__}` | `{base}` | {cls.exit_code} | {what} |")
    return "\n".join(lines) + "\n"


def benchmarks() -> str:
    """Return the docstring of each script in ``benchmarks/``, whose command is in its docstring.

    A folder with a ``__main__.py`` is one script.
    """
    parts = []
    for script in sorted(BENCHMARKS.rglob("*.py"), key=lambda path: (len(path.parts), path)):
        owner = script.parent if script.name == "__main__.py" else script
        path = owner.relative_to(BENCHMARKS.parent).as_posix()
        docstring = ast.get_docstring(ast.parse(script.read_text("utf-8"))) or ""
        if f"python {path}" in docstring:
            text = re.sub(r"::\n\n((?: {4}.*(?:\n|$)|\n)+)", _as_block, docstring)
            parts.append(f"## `{path}`\n\n{ticks(text)}\n")
    return "\n".join(parts)


def _as_block(match: re.Match[str]) -> str:
    return f":\n\n```text\n{inspect.cleandoc(match[1])}\n```\n\n"


def kernels() -> str:
    """List the calls of the native backend by folder of their C sources."""
    from narrowpass_xnn_cpu.native.calls import table

    folders: dict[str, list[str]] = {"": []}
    for call in table().values():
        folder = call.file.partition("/")[0]
        folders.setdefault(folder, []).append(f"| `{call.name}` | {call.summary} |")
    parts = []
    for folder, lines in folders.items():
        title = f"Kernels in `csrc/{folder}/`" if folder else "Operators of XNNPACK"
        parts += [f"## {title}", "", "| call | computes |", "|---|---|", *lines, ""]
    return "\n".join(parts)


SECTIONS: Mapping[str, Callable[[], str]] = {
    "backends": backends,
    "benchmarks": benchmarks,
    "command-line": command_line,
    "errors": errors_table,
    "grammar": grammar,
    "instruments": instruments,
    "kernels": kernels,
    "passes": passes,
}


def expand(text: str) -> str:
    """Put the generated sections into the text of a page."""
    return MARKER.sub(lambda match: SECTIONS[match[1]](), text)


def _on_source_read(app: Sphinx, name: str, source: list[str]) -> None:
    source[0] = expand(source[0])


def setup(app: Sphinx) -> dict[str, Any]:
    """Let Sphinx call us for each page."""
    app.connect("source-read", _on_source_read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
