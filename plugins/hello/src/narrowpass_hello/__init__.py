"""A narrowpass plugin in one module: a pass, and the hook that registers it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from narrowpass import Context, Pass, PassResult, hookimpl

if TYPE_CHECKING:
    import onnx_ir as ir


@dataclass(frozen=True)
class Hello(Pass):
    """Write a greeting into the doc string of every node that has none."""

    name: ClassVar[str] = "hello"
    greeting: str = "hello"

    def run(self, model: ir.Model, ctx: Context) -> PassResult:
        """Greet; nodes of subgraphs are greeted too."""
        silent = [node for node in model.graph.all_nodes() if not node.doc_string]
        for node in silent:
            node.doc_string = f"{self.greeting}, {node.name or node.op_type}"
        ctx.counters["greeted"] += len(silent)
        return PassResult(model, modified=bool(silent))


@hookimpl
def narrowpass_passes() -> list[type[Pass]]:
    """Register the pass."""
    return [Hello]
