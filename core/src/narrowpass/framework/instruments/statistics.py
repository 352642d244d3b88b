"""What each pass did, in one line."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from narrowpass.framework.instruments import Instrument
from narrowpass_ir.sizes import count_bytes, count_nodes

if TYPE_CHECKING:
    import onnx_ir as ir

    from narrowpass.framework.context import Context
    from narrowpass.framework.passes import Pass, PassResult


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
