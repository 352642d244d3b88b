"""Weight-only and dynamic quantization: int8 weights without calibration data.

The weights W and R of LSTM, GRU and RNN are stored as int8, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from narrowpass import Decision
from narrowpass.framework.classify import ACTIVATIONS, matching_nodes
from narrowpass_int8_sym.embeddings import embedding_decisions, find_embeddings, quantize_embeddings
from narrowpass_int8_sym.half_precision import keep_epilogue_float32
from narrowpass_int8_sym.scales import LEAST_SCALE, of_magnitudes
from narrowpass_int8_sym.underflow_warnings import warn_of_weights
from narrowpass_int8_sym.weighted_nodes import FLOAT, WeightedNode, weighted_node_of
from narrowpass_int8_sym.weights import Array, add_quantized_weight, magnitudes, taken_names
from narrowpass_ir.constants import constant_tensor

if TYPE_CHECKING:
    from narrowpass import Context


RECURRENT = ("LSTM", "GRU", "RNN")
"""Recurrent operators: W multiplies inputs, R states; both are [directions, gates, K]."""

_WEIGHTS = ((1, "W"), (2, "R"))


def weights_of(node: ir.Node) -> list[WeightedNode] | str | None:
    """Return how the weights of a recurrent layer can be stored as int8.

    There is a scale for each row of the gates. Both directions share them: DequantizeLinear has
    scales along one axis only.

    Returns:
        W and R; None for other operators, and a reason for a layer whose weights cannot be.
    """
    if node.domain or node.op_type not in RECURRENT:
        return None
    found = []
    for index, name in _WEIGHTS:
        value = node.inputs[index] if len(node.inputs) > index else None
        tensor = constant_tensor(value)
        if value is None or tensor is None:
            return f"its weight {name} is computed"
        if value.is_graph_input():
            return f"its weight {value.name!r} may be fed; freeze-weights turns it into a constant"
        if tensor.dtype != FLOAT:
            return f"its weight {value.name!r} is {tensor.dtype.name.lower()}"
        dims = tuple(tensor.shape.numpy())
        if len(dims) != 3 or 0 in dims:
            return f"its weight {value.name!r} is {list(dims)}, and not [directions, gates, K]"
        found.append(WeightedNode(node, value, index, 1))
    return found


_DYNAMIC = ("MatMul", "Gemm", *RECURRENT)

NOT_DYNAMIC = "activations of"
"""The beginning of the reason why convolutions stay float in mode ``dynamic``."""


@dataclass(frozen=True)
class WeightQuantizer:
    """Quantizes the weights of a model.

    Attributes:
        dynamic: whether activations are quantized per token at run time.
        per_channel: whether there is a scale for each output channel.
        floor: whether no scale is below 2⁻¹².
        red: nodes whose weights stay float32.
    """

    dynamic: bool
    per_channel: bool
    floor: bool
    red: tuple[str, ...] = ()

    def quantizable_nodes(self, model: ir.Model, ctx: Context) -> list[int]:
        """Return the indices, among all nodes, of those whose constants can become int8."""
        found = self._candidates(model, ctx, {})
        weighted_nodes = {n: each for n, (_, each) in found.items() if not isinstance(each, str)}
        places = {node: number for number, node in enumerate(model.graph.all_nodes())}
        embeddings = self._embeddings(model, chain.from_iterable(weighted_nodes.values()), ())
        return sorted((*weighted_nodes, *(places[node] for node in embeddings)))

    def rewrite(self, model: ir.Model, kept_float: Mapping[int, str], ctx: Context) -> bool:
        """Quantize weights, in place; return whether anything changed.

        Args:
            model: changed.
            kept_float: the indices of nodes whose weights stay float, and why.
            ctx: gets decisions and counters.

        Raises:
            DataError: a weight has an element that is infinite or NaN.
        """
        nodes = list(model.graph.all_nodes())
        taken = taken_names(model)
        stored: dict[tuple[ir.Value, int | None], ir.Value] = {}
        largest: dict[str, Array] = {}
        candidates = self._candidates(model, ctx, kept_float)
        weighted_nodes = [
            each for _, found in candidates.values() if isinstance(found, list) for each in found
        ]
        embeddings = self._embeddings(
            model, weighted_nodes, [nodes[number] for number in kept_float]
        )
        for number, (by, found) in candidates.items():
            node = nodes[number]
            if isinstance(found, str):
                ctx.counters["left"] += 1
                _decide(ctx, node, "float", by, found)
                continue
            for weighted in found:
                self._replace(weighted, stored, largest, taken)
            keep_epilogue_float32(node)
            if self.dynamic:
                node.metadata_props[ACTIVATIONS] = "dynamic"
            ctx.counters["nodes"] += 1
            _decide(ctx, node, "int8", by, "")
        if self.floor:
            warn_of_weights(largest, ctx.observer.log)
        for number in kept_float.keys() - candidates.keys():
            _decide(ctx, nodes[number], "float", "verification", kept_float[number])
        ctx.counters["int8"] = len(stored)
        ctx.decisions.extend(embedding_decisions(embeddings).values())
        ctx.counters["embeddings"] = quantize_embeddings(model.graph, embeddings, taken)
        return bool(stored or embeddings)

    def _embeddings(
        self, model: ir.Model, weighted_nodes: Iterable[WeightedNode], kept_float: Iterable[ir.Node]
    ) -> list[ir.Node]:
        """Return the Gather nodes whose embedding becomes int8."""
        red = matching_nodes(self.red, model.graph.all_nodes()).values()
        barred = {*kept_float, *(node for nodes in red for node in nodes)}
        return find_embeddings(model.graph, barred, weighted_nodes)

    def _candidates(
        self, model: ir.Model, ctx: Context, kept_float: Mapping[int, str]
    ) -> dict[int, tuple[str, list[WeightedNode] | str]]:
        """Return, for each weighted node, what decides on it and its weights, by index of the node.

        A text in place of weights is the reason why the node stays float.
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
            elif number in kept_float and not isinstance(weights, str):
                by, weights = "verification", kept_float[number]
            elif self.dynamic and node.op_type not in _DYNAMIC:
                by, weights = "rule", f"{NOT_DYNAMIC} {node.op_type} are not quantized at run time"
            found[number] = by, weights
        return found

    def _replace(
        self,
        weighted: WeightedNode,
        stored: dict[tuple[ir.Value, int | None], ir.Value],
        largest: dict[str, Array],
        taken: set[str | None],
    ) -> None:
        """Replace a weight by its int8 form; weights that several nodes read are stored once."""
        weight, axis = weighted.weight, weighted.axis if self.per_channel else None
        tensor = constant_tensor(weight)
        if (weight, axis) not in stored and tensor is not None:
            least = LEAST_SCALE if self.floor else 0.0
            found = magnitudes(tensor, axis)
            largest[weight.name or ""] = found
            scales = np.asarray(of_magnitudes(found, least))
            stored[weight, axis] = add_quantized_weight(weight, axis, scales, taken)
        weighted.replace_weight(stored[weight, axis], taken)


def _weights(node: ir.Node) -> list[WeightedNode] | str | None:
    """Return the weights of a node; a reason why it stays float, or None for other operators."""
    weighted = weighted_node_of(node)
    return [weighted] if isinstance(weighted, WeightedNode) else weighted or weights_of(node)


def _decide(ctx: Context, node: ir.Node, what: str, by: str, reason: str) -> None:
    name = node.name or next((value.name for value in node.outputs if value.name), "")
    ctx.decisions.append(Decision(name or "", node.op_type, what, by, reason))
