"""Candidates that run a pass on some nodes, for plugins whose passes have an option ``red``.

This module imports neither onnx nor numpy, so that a plugin's entry module may import it.
"""

from __future__ import annotations

import dataclasses
import glob
from typing import TYPE_CHECKING

from narrowpass import Candidate
from narrowpass.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Collection

    import onnx_ir as ir

    from narrowpass import Context, OpDtypes, Pass
    from narrowpass.framework.classify import Target


def red_items(model: ir.Model, nodes: Collection[str]) -> tuple[str, ...]:
    """Return items of an option ``red`` that select all nodes of a model but these.

    Args:
        model: each of its nodes has a name.
        nodes: names of the nodes that are not selected.
    """
    kept = set(nodes)
    names = dict.fromkeys(node.name or "" for node in model.graph.all_nodes())
    items = (glob.escape(name) for name in names if name and name not in kept)
    return tuple(f"[{item[0]}]{item[1:]}" if item.startswith("op:") else item for item in items)


class PassCandidate(Candidate):
    """A candidate that runs a pass with an option ``red``: nodes that it leaves as they are.

    Args:
        name: see `Candidate`.
        pass_: the pass, with options.
        rank: see `Candidate`.
        needs_data: see `Candidate`.
        dtypes: what nodes compute with, where the target can estimate the gain of it.

    Raises:
        PluginError: the pass has no option ``red``.
    """

    def __init__(
        self,
        name: str,
        pass_: Pass,
        rank: int,
        *,
        needs_data: bool = False,
        dtypes: OpDtypes | None = None,
    ) -> None:
        if "red" not in {field.name for field in dataclasses.fields(pass_)}:
            raise PluginError(f"candidate {name!r}: the pass {pass_.name!r} has no option 'red'")
        self.name, self.rank, self.needs_data = name, rank, needs_data
        self._pass, self._dtypes = pass_, dtypes

    def rewrite(self, model: ir.Model, nodes: Collection[str], ctx: Context) -> ir.Model:
        """Run the pass with all nodes but these in ``red``."""
        # That the pass has the option is checked above; its type does not say so.
        chosen = dataclasses.replace(self._pass, red=red_items(model, nodes))  # type: ignore[call-arg]
        return chosen.run(model, ctx).model

    def gain(self, node: ir.Node, target: Target) -> float:
        """Return what the target estimates for the types; 0 where there are none."""
        return 0.0 if self._dtypes is None else target.gain(node, self._dtypes)
