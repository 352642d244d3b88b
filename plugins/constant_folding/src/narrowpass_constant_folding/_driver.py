"""Runs the clean-ups and the folding until nothing changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from narrowpass import matching_nodes
from narrowpass_constant_folding._attempt import Folder
from narrowpass_constant_folding._dead_code import remove_dead_code
from narrowpass_constant_folding._folding import fold_constants
from narrowpass_constant_folding._identity import eliminate_identities
from narrowpass_constant_folding._refusals import Rules
from narrowpass_constant_folding._report import Report
from narrowpass_constant_folding._scopes import nested_graphs, roots
from narrowpass_constant_folding._sizes import SizeRule

if TYPE_CHECKING:
    from narrowpass import Context
    from narrowpass_constant_folding.fold import Fold


def simplify(model: ir.Model, options: Fold, ctx: Context) -> bool:
    """Fold and clean up `model` in place; give whether anything changed."""
    kept = _kept_nodes(model, options.keep, ctx)
    report = Report()
    folder = Folder(model, SizeRule(options.max_growth), Rules(model, kept))
    modified = False
    while True:
        report.begin_round()
        # Dead code first: it no longer counts as a reader of what a fold would free.
        changed = remove_dead_code(model, report)
        changed |= eliminate_identities(model, kept, report)
        changed |= fold_constants(model, folder, kept, report)
        if not changed:
            break
        modified = True
    report.publish(ctx)
    return modified


def _kept_nodes(model: ir.Model, items: tuple[str, ...], ctx: Context) -> frozenset[ir.Node]:
    if not items:
        return frozenset()
    nodes = [node for root in roots(model) for graph in nested_graphs(root.graph) for node in graph]
    matches = matching_nodes(items, nodes)
    for item, found in matches.items():
        if not found:
            ctx.log.warning("fold: keep item %r matches no node", item)
    return frozenset(node for found in matches.values() for node in found)
