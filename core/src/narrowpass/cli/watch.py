"""Options of commands that run passes, and the instruments that they stand for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import click

from narrowpass.cli.options import complete_instrument
from narrowpass.framework.instruments import Instrument

if TYPE_CHECKING:
    import onnx_ir as ir

    from narrowpass.cli.state import State
    from narrowpass.framework.context import Context
    from narrowpass.framework.passes import Pass, PassResult


@dataclasses.dataclass(frozen=True)
class Watch:
    """Which instruments the options stand for.

    Attributes:
        time: ``--time``.
        statistics: ``--statistics``.
        print_after_change: ``--print-after-change``.
        dump_dir: ``--dump-dir``.
        reproducer: ``--reproducer``.
        named: values of ``--instrument``.
    """

    time: bool
    statistics: bool
    print_after_change: bool
    dump_dir: str | None
    reproducer: str | None
    named: tuple[str, ...]

    def instruments(self, state: State, methods: Sequence[str]) -> list[Instrument]:
        """Create the instruments.

        Args:
            state: has what is installed.
            methods: the methods that will be built, one after the other.
        """
        from narrowpass.framework.options import quote
        from narrowpass.framework.pipeline import parse_instrument

        def create(text: str) -> Instrument:
            return parse_instrument(text, state.registry)

        created = [create(name) for name in self._plain()]
        if self.dump_dir is not None:
            # Files are numbered from 0 for each method: several need folders of their own.
            folders = [Path(self.dump_dir, name) for name in methods]
            folders = folders if len(methods) > 1 else [Path(self.dump_dir)]
            created.append(
                _Each([create(f"dump{{dir={quote(str(folder))}}}") for folder in folders])
            )
        if self.reproducer is not None:
            created.append(create(f"reproducer{{dir={quote(self.reproducer)}}}"))
        return [*created, *map(create, self.named)]

    def _plain(self) -> list[str]:
        """Return the instruments without options."""
        wanted = {
            "timing": self.time,
            "statistics": self.statistics,
            "print-after-change": self.print_after_change,
        }
        return [name for name, on in wanted.items() if on]


@dataclasses.dataclass
class _Each(Instrument):
    """Hands each method of a build to an instrument of its own."""

    name: ClassVar[str] = "each"

    members: list[Instrument]
    _done: int = dataclasses.field(default=0, init=False)

    def before_pass(self, pass_: Pass, model: ir.Model, ctx: Context) -> None:
        self.members[self._done].before_pass(pass_, model, ctx)

    def after_pass(self, pass_: Pass, result: PassResult, ctx: Context, seconds: float) -> None:
        self.members[self._done].after_pass(pass_, result, ctx, seconds)

    def failed(self, pass_: Pass, error: Exception) -> None:
        self.members[self._done].failed(pass_, error)

    def finish(self) -> None:
        self.members[self._done].finish()
        self._done += 1


def watch_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options of `Watch` to a command."""
    options = [
        click.option("--time", "time_", is_flag=True, help="Print where the time goes."),
        click.option("--statistics", is_flag=True, help="Print what each pass did, in one line."),
        click.option(
            "--print-after-change",
            is_flag=True,
            help="Print the model after each pass that changed it.",
        ),
        click.option(
            "--dump-dir",
            metavar="DIR",
            help="Write the model after each pass that changed it, as ONNX files.",
        ),
        click.option(
            "--reproducer",
            metavar="DIR",
            help="Where a pass fails, write its input there; `narrowpass replay DIR` runs it "
            "again.",
        ),
        click.option(
            "--instrument",
            "named",
            metavar="NAME{..}",
            multiple=True,
            shell_complete=complete_instrument,
            help="Use an instrument; may be given several times. `narrowpass passes` lists them.",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function
