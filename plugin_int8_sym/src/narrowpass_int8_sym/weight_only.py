"""Weights in bytes, where activations stay float or are quantized at run time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from narrowpass import Decision
from narrowpass.framework.classify import ACTIVATIONS, matching_nodes
from narrowpass.ir.constants import constant_tensor
from narrowpass_int8_sym.halves import stay_wide_after
from narrowpass_int8_sym.recurrent import RECURRENT, weights_of
from narrowpass_int8_sym.scales import LEAST_SCALE, of_magnitudes
from narrowpass_int8_sym.storage import store, taken_names
from narrowpass_int8_sym.tables import find_tables, report_tables, store_tables
from narrowpass_int8_sym.underflow_warnings import warn_of_weights
from narrowpass_int8_sym.weighted_nodes import WeightedNode, weighted_node_of
from narrowpass_int8_sym.weights import Array, magnitudes

if TYPE_CHECKING:
    from narrowpass import Context

_DYNAMIC = ("MatMul", "Gemm", *RECURRENT)

ROWS_STAY = "activations of"
"""How the reason begins that convolutions are left for in mode ``dynamic``."""


@dataclass(frozen=True)
class Stored:
    """How weights are stored.

    Attributes:
        dynamic: whether rows are quantized at run time.
        per_channel: whether there is a scale for each channel of the result.
        floor: whether no scale is below 2⁻¹².
        red: nodes whose weights stay float32.
    """

    dynamic: bool
    per_channel: bool
    floor: bool
    red: tuple[str, ...] = ()

    def numbers(self, model: ir.Model, ctx: Context) -> list[int]:
        """Return the places, among all nodes, of those whose constants can be stored in bytes."""
        found = self._candidates(model, ctx, {})
        weighted_nodes = {n: each for n, (_, each) in found.items() if not isinstance(each, str)}
        places = {node: number for number, node in enumerate(model.graph.all_nodes())}
        tables = self._tables(model, chain.from_iterable(weighted_nodes.values()), ())
        return sorted((*weighted_nodes, *(places[node] for node in tables)))

    def rewrite(self, model: ir.Model, held: Mapping[int, str], ctx: Context) -> bool:
        """Store weights in bytes, in place; return whether anything changed.

        Args:
            model: to change.
            held: the numbers of nodes whose weights stay float, and why.
            ctx: told of decisions and counts.

        Raises:
            DataError: a weight has an element that is infinite or NaN.
        """
        nodes = list(model.graph.all_nodes())
        taken = taken_names(model)
        made: dict[tuple[ir.Value, int | None], ir.Value] = {}
        largest: dict[str, Array] = {}
        candidates = self._candidates(model, ctx, held)
        weighted_nodes = [
            each for _, found in candidates.values() if isinstance(found, list) for each in found
        ]
        tables = self._tables(model, weighted_nodes, [nodes[number] for number in held])
        for number, (by, found) in candidates.items():
            node = nodes[number]
            if isinstance(found, str):
                ctx.counters["left"] += 1
                _decide(ctx, node, "float", by, found)
                continue
            for weighted in found:
                self._replace(weighted, made, largest, taken)
            stay_wide_after(node)
            if self.dynamic:
                node.metadata_props[ACTIVATIONS] = "dynamic"
            ctx.counters["nodes"] += 1
            _decide(ctx, node, "int8", by, "")
        if self.floor:
            warn_of_weights(largest, ctx.observer.log)
        for number in held.keys() - candidates.keys():
            _decide(ctx, nodes[number], "float", "verification", held[number])
        ctx.counters["int8"] = len(made)
        ctx.decisions.extend(report_tables(tables).values())
        ctx.counters["tables"] = store_tables(model.graph, tables, taken)
        return bool(made or tables)

    def _tables(
        self, model: ir.Model, weighted_nodes: Iterable[WeightedNode], held: Iterable[ir.Node]
    ) -> list[ir.Node]:
        """Return the nodes that are to gather rows of bytes."""
        red = matching_nodes(self.red, model.graph.all_nodes()).values()
        barred = {*held, *(node for nodes in red for node in nodes)}
        return find_tables(model.graph, barred, weighted_nodes)

    def _candidates(
        self, model: ir.Model, ctx: Context, held: Mapping[int, str]
    ) -> dict[int, tuple[str, list[WeightedNode] | str]]:
        """Give, for each node with weights or two operands, who decides and what is found.

        By the number of the node; a text is the reason to leave it.
        """
        nodes = list(model.graph.all_nodes())
        red: dict[ir.Node, str] = {}
        for item, chosen in matching_nodes(self.red, nodes).items():
            if not chosen:
                ctx.observer.log.warning("int8-sym: red item %r selects no node", item)
            red.update(dict.fromkeys(chosen, f"option red={item}"))
        found: dict[int, tuple[str, list[WeightedNode] | str]] = {}
        for number, node in enumerate(nodes):
            weights = _weights(node)
            if weights is None:
                continue
            mode = "dynamic" if self.dynamic else "weight-only"
            by = "rule" if isinstance(weights, str) else f"mode={mode}"
            if node in red:
                by, weights = red[node], "it is to stay float"
            elif number in held and not isinstance(weights, str):
                by, weights = "verification", held[number]
            elif self.dynamic and node.op_type not in _DYNAMIC:
                by, weights = "rule", f"{ROWS_STAY} {node.op_type} are not quantized at run time"
            found[number] = by, weights
        return found

    def _replace(
        self,
        weighted: WeightedNode,
        made: dict[tuple[ir.Value, int | None], ir.Value],
        largest: dict[str, Array],
        taken: set[str | None],
    ) -> None:
        """Let a node read its weight from bytes."""
        weight, axis = weighted.weight, weighted.axis if self.per_channel else None
        tensor = constant_tensor(weight)
        if (weight, axis) not in made and tensor is not None:
            least = LEAST_SCALE if self.floor else 0.0
            found = magnitudes(tensor, axis)
            largest[weight.name or ""] = found
            scales = np.asarray(of_magnitudes(found, least))
            made[weight, axis] = store(weight, axis, scales, taken)
        weighted.read(made[weight, axis], taken)


def _weights(node: ir.Node) -> list[WeightedNode] | str | None:
    """Return what is multiplied with; a reason to leave it, or None for other operators."""
    weighted = weighted_node_of(node)
    return [weighted] if isinstance(weighted, WeightedNode) else weighted or weights_of(node)


def _decide(ctx: Context, node: ir.Node, what: str, by: str, reason: str) -> None:
    name = node.name or next((value.name for value in node.outputs if value.name), "")
    ctx.decisions.append(Decision(name or "", node.op_type, what, by, reason))
