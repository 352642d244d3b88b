"""The instruments that options of ``narrowpass build`` stand for, but for the reproducer's."""

from __future__ import annotations

import re
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from narrowpass.framework.instruments import Instrument
from narrowpass_ir.sizes import count_bytes, count_nodes

if TYPE_CHECKING:
    import onnx_ir as ir

    from narrowpass.framework.context import Context
    from narrowpass.framework.passes import Pass, PassResult


@dataclass
class Dump(Instrument):
    """Writes ``00-input.onnx`` and ``NN-PASS.onnx`` after each pass into a folder.

    A pass that changed nothing is skipped; its number is not used again.
    """

    name: ClassVar[str] = "dump"

    dir: str = "narrowpass-dump"

    _count: int = field(default=0, init=False)

    def before_pass(self, pass_: Pass, model: ir.Model, ctx: Context) -> None:  # noqa: D102
        if self._count == 0:
            self._write("input", model)

    def after_pass(  # noqa: D102
        self, pass_: Pass, result: PassResult, ctx: Context, seconds: float
    ) -> None:
        self._count += 1
        if result.modified:
            self._write(pass_.name, result.model)

    def finish(self) -> None:  # noqa: D102
        self._count = 0

    def _write(self, label: str, model: ir.Model) -> None:
        from narrowpass_ir.files import create_folder
        from narrowpass_ir.io import save_model

        folder = Path(self.dir)
        create_folder(folder)
        safe = re.sub(r"[^A-Za-z0-9_.-]", "_", label)
        save_model(model, folder / f"{self._count:02d}-{safe}.onnx")


@dataclass
class PrintAfterChange(Instrument):
    """Prints the model's text to standard error after each pass that changed it."""

    name: ClassVar[str] = "print-after-change"

    def after_pass(  # noqa: D102
        self, pass_: Pass, result: PassResult, ctx: Context, seconds: float
    ) -> None:
        if not result.modified:
            print(f"// {pass_} changed nothing", file=sys.stderr)
            return
        print(f"// after {pass_}\n{result.model}", file=sys.stderr)


@dataclass
class Statistics(Instrument):
    """Prints a line for each pass: nodes and weight bytes before and after, and its counters."""

    name: ClassVar[str] = "statistics"

    _before: tuple[int, int] = field(default=(0, 0), init=False)

    def before_pass(self, pass_: Pass, model: ir.Model, ctx: Context) -> None:  # noqa: D102
        self._before = (count_nodes(model), count_bytes(model))

    def after_pass(  # noqa: D102
        self, pass_: Pass, result: PassResult, ctx: Context, seconds: float
    ) -> None:
        nodes, size = count_nodes(result.model), count_bytes(result.model)
        counters = ", ".join(f"{key} {value}" for key, value in sorted(ctx.counters.items()))
        line = (
            f"{pass_}: nodes {self._before[0]} -> {nodes}, "
            f"weights {self._before[1]} -> {size} bytes"
        )
        print(line + (f"; {counters}" if counters else ""), file=sys.stderr)


@dataclass
class Timing(Instrument):
    """Prints a tree of pass, verification and total times, in milliseconds, to standard error."""

    name: ClassVar[str] = "timing"

    _rows: list[tuple[str, float, float]] = field(default_factory=list, init=False)
    _start: float = field(default=0.0, init=False)
    _first: float = field(default=0.0, init=False)

    def before_pass(self, pass_: Pass, model: ir.Model, ctx: Context) -> None:  # noqa: D102
        self._start = time.perf_counter()
        self._first = self._first or self._start

    def after_pass(  # noqa: D102
        self, pass_: Pass, result: PassResult, ctx: Context, seconds: float
    ) -> None:
        self._rows.append((str(pass_), seconds, time.perf_counter() - self._start))

    def finish(self) -> None:  # noqa: D102
        if not self._rows:
            return
        total = time.perf_counter() - self._first
        lines = [f"{total * 1e3:10.1f} ms  passes and checks"]
        for text, inside, whole in self._rows:
            lines.append(f"{whole * 1e3:10.1f} ms    {text}")
            lines.append(f"{inside * 1e3:10.1f} ms      run")
            lines.append(f"{(whole - inside) * 1e3:10.1f} ms      verify")
        print("\n".join(lines), file=sys.stderr)
        self._rows.clear()
        self._first = 0.0
