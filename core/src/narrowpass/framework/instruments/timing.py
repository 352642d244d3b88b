"""Where the time of a build goes."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from narrowpass.framework.instruments import Instrument

if TYPE_CHECKING:
    import onnx_ir as ir

    from narrowpass.framework.context import Context
    from narrowpass.framework.passes import Pass, PassResult


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
