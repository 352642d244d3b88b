"""What the clean-up passes share: the option ``keep``, the graphs of a model, the report."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx_ir as ir

from narrowpass import Pass, PassResult, matching_nodes
from narrowpass_constant_folding.graphs.constants import initializer_graphs
from narrowpass_constant_folding.graphs.names import Names
from narrowpass_constant_folding.graphs.scope import Scope
from narrowpass_constant_folding.graphs.scopes import roots
from narrowpass_constant_folding.report import Report
from narrowpass_constant_folding.shapes.derived import derived_types
from narrowpass_constant_folding.shapes.values import ShapeValues
from narrowpass_ir.subgraphs import nested_graphs

if TYPE_CHECKING:
    from narrowpass import Context


class Work:
    """One run of a clean-up pass over a model.

    Attributes:
        model: changed in place.
        kept: the nodes that the option ``keep`` selects.
        names: the names that the model uses.
        values: what is known of integers that are computed from shapes.
        report: records rewrites and refusals.
        ctx: the context of the run.
        changed: whether anything was changed.
    """

    def __init__(self, model: ir.Model, keep: tuple[str, ...], ctx: Context) -> None:
        """Take the model, the items of the option ``keep``, and the context."""
        self.model = model
        self.ctx = ctx
        self.kept = _kept_nodes(model, keep)
        self.names = Names(model)
        self.values = ShapeValues()
        self.report = Report()
        self.changed = False

    def scopes(self) -> Iterator[Scope]:
        """Yield every graph of the model, of its functions and within nodes, outer ones first.

        What is done to one is committed before the next is given. Nodes within a node that was
        removed meanwhile are not visited.
        """
        holders = initializer_graphs(self.model)
        for root in roots(self.model):
            for graph in nested_graphs(root.graph):
                scope = Scope(graph, root, self.kept, self.names, self.values, graph in holders)
                yield scope
                self.changed |= scope.commit()


@dataclass(frozen=True)
class Rewrite(Pass):
    """A clean-up pass: rewrites all graphs of a model, those of functions and nodes included.

    Attributes:
        keep: nodes to leave alone: node-name globs, or ``op:TYPE``.
    """

    keep: tuple[str, ...] = ()

    @abc.abstractmethod
    def apply(self, work: Work) -> None:
        """Do the work; what changes the model other than through a scope sets `Work.changed`."""

    def run(self, model: ir.Model, ctx: Context) -> PassResult:
        """Rewrite `model` in place."""
        with derived_types(model):
            work = Work(model, self.keep, ctx)
            self.apply(work)
        work.report.publish(ctx)
        return PassResult(model, work.changed)


def warn_unmatched_keep(name: str, keep: tuple[str, ...], model: ir.Model, ctx: Context) -> None:
    """Warn of items of the option ``keep`` that select no node."""
    for item, found in _matches(model, keep).items():
        if not found:
            ctx.observer.log.warning("%s: keep item %r matches no node", name, item)


def _kept_nodes(model: ir.Model, items: tuple[str, ...]) -> frozenset[ir.Node]:
    return frozenset(node for found in _matches(model, items).values() for node in found)


def _matches(model: ir.Model, items: tuple[str, ...]) -> dict[str, list[ir.Node]]:
    if not items:
        return {}
    nodes = [node for root in roots(model) for graph in nested_graphs(root.graph) for node in graph]
    return matching_nodes(items, nodes)
