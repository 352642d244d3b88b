"""What each pass did, in one line."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from narrowpass.framework.instruments import Instrument

if TYPE_CHECKING:
    import onnx_ir as ir

    from narrowpass.framework.context import Context
    from narrowpass.framework.passes import Pass, PassResult


def count_nodes(model: ir.Model) -> int:
    """Give the number of nodes of the graph, its subgraphs and the model's functions."""
    total = sum(1 for _ in model.graph.all_nodes())
    return total + sum(1 for function in model.functions.values() for _ in function.all_nodes())


def count_bytes(model: ir.Model) -> int:
    """Give the bytes of all initializers; one tensor used by several counts once."""
    tensors = {
        id(value.const_value): value.const_value.nbytes
        for graph in model.graphs()
        for value in graph.initializers.values()
        if value.const_value is not None
    }
    return sum(tensors.values())


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
