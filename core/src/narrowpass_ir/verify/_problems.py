"""Collects what is wrong with a model, and names nodes and values for it."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir

from narrowpass_ir.errors import VerificationError

_LIMIT = 20


@dataclass
class Problems:
    """What was found so far; past a limit the search ends, since the rest is mostly echo."""

    title: str
    found: list[str] = field(default_factory=list)

    def add(self, problem: str) -> None:
        """Note one broken rule.

        Raises:
            VerificationError: enough was found.
        """
        self.found.append(problem)
        if len(self.found) >= _LIMIT:
            self.finish()

    def finish(self) -> None:
        """End the search.

        Raises:
            VerificationError: something was found.
        """
        if not self.found:
            return
        count = len(self.found)
        amount = "1 problem" if count == 1 else f"{count} problems"
        if count >= _LIMIT:
            amount = f"at least {count} problems"
        listing = "".join(f"\n  - {problem}" for problem in self.found)
        raise VerificationError(f"{self.title} is invalid ({amount}):{listing}", tuple(self.found))


def node_label(node: ir.Node) -> str:
    """Name a node by its name, or by what it computes where it has none."""
    domain = f"{node.domain}." if node.domain else ""
    kind = f"{domain}{node.op_type}"
    if node.name:
        return f"node {node.name!r} ({kind})"
    outputs = [value.name for value in node.outputs if value.name]
    if outputs:
        return f"unnamed node ({kind}) that computes {outputs[0]!r}"
    return f"unnamed node ({kind})"


def value_label(value: ir.Value) -> str:
    """Name a value, or say that it has no name."""
    return repr(value.name) if value.name else "without a name"
