"""The group of commands: found by name, imported when asked for, errors handled in one place."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import click

from narrowpass.cli._errors import logging_to_stderr, report, set_level
from narrowpass.cli._limits import LIMITS, limit_options, name_memory_limit
from narrowpass.cli.output import color, printable
from narrowpass.cli.state import State
from narrowpass.errors import NarrowpassError, PluginError, UsageError

COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "build": "narrowpass.cli.build:build",
        "plugins": "narrowpass.cli.plugins:plugins",
        "passes": "narrowpass.cli.passes:passes",
        "backends": "narrowpass.cli.backends:backends",
        "completion": "narrowpass.cli.completion:completion",
    }
)
"""Where the built-in commands are, in the order of the help."""

TRACEBACK_VARIABLE = "NARROWPASS_TRACEBACK"
"""Environment variable: anything but nothing and 0 shows tracebacks, as ``--traceback`` does."""


class CommandLine(click.Group):
    """The group: built-in commands, then those of plugins."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Print the help where nothing is asked for."""
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the built-in commands, then those of plugins by name."""
        try:
            more = sorted(self._plugin_commands(ctx))
        except NarrowpassError as error:  # help must come, whatever the plugins do
            if not ctx.resilient_parsing:
                click.echo(f"narrowpass: warning: {error}", err=True)
            more = []
        return [*COMMANDS, *more]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import a built-in command, or ask the plugins for one that narrowpass does not have."""
        if name in COMMANDS:
            module, _, attribute = COMMANDS[name].partition(":")
            command: click.Command = getattr(importlib.import_module(module), attribute)
            return _with_group_options(command)
        found = self._plugin_commands(ctx).get(name)
        return None if found is None else _with_group_options(found)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; an unknown one is an error that lists what there is."""
        name = args[0]
        if (
            not ctx.resilient_parsing
            and not name.startswith("-")
            and self.get_command(ctx, name) is None
        ):
            known = {**dict.fromkeys(COMMANDS), **self._plugin_commands(ctx)}
            ctx.fail(State.of(ctx).registry.unknown("command", name, known))
        return super().resolve_command(ctx, args)

    def _plugin_commands(self, ctx: click.Context) -> Mapping[str, click.Command]:
        state = State.of(ctx)
        for name in state.commands:
            if name in COMMANDS:
                raise PluginError(
                    f"command {name!r} of {state.registry.owner('commands', name)} has the name of "
                    "a built-in one; leave it out with --disable-plugin or uninstall it"
                )
        return state.commands

    def invoke(self, ctx: click.Context) -> None:
        """Run the command; what it printed is out when this returns.

        Raises:
            InputError: it needs more memory than ``--max-memory`` allows.
        """
        try:
            super().invoke(ctx)
        except (MemoryError, NarrowpassError) as error:
            name_memory_limit(ctx, error)
            raise
        if sys.stdout is not None:  # it may have been closed before Python started
            sys.stdout.flush()

    def main(self, args: Sequence[str] | None = None, *_: Any, **extra: Any) -> Any:
        """Run the command line and exit.

        Args:
            args: the arguments; None for those of the process.
            extra: what `click.Command.main` takes. ``standalone_mode`` has no effect: this is
                where errors become sentences.
        """
        arguments = list(sys.argv[1:] if args is None else args)
        extra = {**extra, "prog_name": "narrowpass", "standalone_mode": False, "color": color()}
        try:
            _check_arguments(arguments)
            with printable(), logging_to_stderr():
                code = super().main(arguments, **extra)
        except SystemExit:
            raise
        # Not only Exception: a plugin's command may raise anything, and the user may interrupt.
        except BaseException as error:  # noqa: BLE001  # every error becomes a sentence here
            code = report(error, show_traceback=_wants_traceback(arguments))
        raise SystemExit(code or 0)


def _check_arguments(arguments: Sequence[str]) -> None:
    """Refuse what neither a shell nor a file system accepts."""
    for argument in arguments:
        if "\0" in argument:
            raise UsageError(f"the argument {argument!r} has a NUL character; leave it out")


def _wants_traceback(arguments: Sequence[str]) -> bool:
    # Asked of the arguments, not of the parsed options: parsing may be what failed.
    return "--traceback" in arguments or os.environ.get(TRACEBACK_VARIABLE, "0") not in ("", "0")


def _print_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from importlib.metadata import version

    click.echo(f"narrowpass {version('narrowpass')}")
    ctx.exit()


_AFTER = "of_group_"
"""How the names of parameters begin that `_with_group_options` adds."""


def _with_group_options(command: click.Command) -> click.Command:
    """Let a command take options of the group, too; its help does not list them."""
    if isinstance(command, click.Group):
        for child in command.commands.values():
            _with_group_options(child)
    taken = {flag for parameter in command.params for flag in parameter.opts}
    note: dict[str, Any] = {"callback": _take_group_option}
    added: tuple[tuple[tuple[str, ...], Mapping[str, Any]], ...] = (
        (("-v", "--verbose"), {"count": True, **note}),
        (("-q", "--quiet"), {"is_flag": True, **note}),
        (("--traceback",), {"is_flag": True}),  # asked of the arguments
        *(((flag,), settings) for flag, settings in LIMITS),
    )
    for flags, settings in added:
        free = [flag for flag in flags if flag not in taken]
        if free:
            name = _AFTER + flags[-1].removeprefix("--").replace("-", "_")
            options = {**settings, "hidden": True, "expose_value": False, "is_eager": True}
            command.params.append(click.Option([name, *free], **options))
    return command


def _take_group_option(ctx: click.Context, parameter: click.Parameter, value: int) -> None:
    """Do what the option before the command does."""
    name = (parameter.name or "").removeprefix(_AFTER)
    if not value or ctx.resilient_parsing:
        return
    given = ctx.find_root().params
    given[name] = given.get(name, 0) + value
    state = State.of(ctx)
    state.quiet = bool(given.get("quiet"))
    set_level(int(given.get("verbose", 0)), quiet=state.quiet)


@click.group(
    cls=CommandLine,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 success, 1 the model or the data is at fault, 2 the call is at fault.",
)
@click.option(
    "--disable-plugin",
    "disabled",
    metavar="NAME",
    multiple=True,
    is_eager=True,
    help="Leave out a plugin (a name or a glob); may be given several times.",
)
@click.option("-v", "--verbose", count=True, help="Print notes of passes (-vv: all log messages).")
@click.option("-q", "--quiet", is_flag=True, help="Print results and errors only.")
@click.option("--traceback", is_flag=True, help="Show tracebacks of errors.")
@limit_options
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Print the version and exit.",
)
@click.pass_context
def app(
    ctx: click.Context, disabled: tuple[str, ...], verbose: int, quiet: bool, traceback: bool
) -> None:
    """Convert ONNX models to fp16, bf16 or int8 and run them on a CPU.

    Everything that does work is a plugin: `narrowpass plugins` lists what is installed.
    """
    set_level(verbose, quiet=quiet)
    state = State.of(ctx)
    state.quiet = quiet
