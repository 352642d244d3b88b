"""Matches the nodes of a graph to units that can be quantized."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from narrowpass_int8_sym.static.operators import (
    AVERAGES,
    BINARY,
    INT8_BINARY,
    NOT_QUANTIZED,
    UNARY,
    WIDE_RANGE,
    data_movement_operands,
    is_activation,
    is_constant,
    is_float,
    only_reader,
)
from narrowpass_int8_sym.static.regions import PointwiseRegion, find_pointwise_regions
from narrowpass_int8_sym.static.units import NodeUnit, Role
from narrowpass_int8_sym.weighted_nodes import FLOAT, WeightedNode, weighted_node_of
from narrowpass_ir.constants import constant_tensor

QUANTIZED = "it is quantized already"
"""The reason why a node with DequantizeLinear before it, or QuantizeLinear after it, is kept."""


@dataclass(frozen=True)
class MatchedUnits:
    """The units of a graph.

    Attributes:
        units: in the order of their last nodes.
        left: nodes of known operators that are in no unit, and why.
    """

    units: tuple[NodeUnit, ...] = ()
    left: Mapping[ir.Node, str] = field(default_factory=dict)


def find_units(
    graph: ir.Graph, red: Collection[ir.Node], forced: Mapping[ir.Node, str]
) -> MatchedUnits:
    """Return the units of a graph that can be quantized.

    Args:
        graph: with inferred types; its subgraphs are not searched.
        red: nodes that must stay float, and are in no unit.
        forced: nodes that must be quantized where possible, with the option that says so.
    """
    search = _Search(frozenset(red), forced)
    search.visit(graph)
    order = {node: place for place, node in enumerate(graph)}
    units = sorted(search.units, key=lambda unit: order[unit.nodes[-1]])
    return MatchedUnits(tuple(units), search.left)


class _Search:
    """One search of a graph; each node is in at most one unit."""

    def __init__(self, red: Collection[ir.Node], forced: Mapping[ir.Node, str]) -> None:
        self.units: list[NodeUnit] = []
        self.left: dict[ir.Node, str] = {}
        self._red, self._forced = red, forced
        self._taken: set[ir.Node] = set()

    def visit(self, graph: ir.Graph) -> None:
        nodes = [node for node in graph if not node.domain and node not in self._red]
        for node in nodes:
            self._weighted(node)
        # Weighted nodes first, with the activations that are fused into them; then binary nodes, as
        # far as they are in no pointwise region, with theirs; then regions, and the rest.
        binary = _binary_nodes(nodes, self._taken | set(self._red))
        for node in nodes:
            if node in binary:
                self._binary(node)
        for region in find_pointwise_regions(nodes, self._taken | set(self._red)):
            self._region(region)
        for node in nodes:
            if node not in self._taken and node not in self.left:
                self._other(node)

    def _add(self, unit: NodeUnit) -> None:
        already = _quantized_already(unit)
        if already:
            self.left.update(dict.fromkeys(unit.nodes, already))
        else:
            forced = next((self._forced[node] for node in unit.nodes if node in self._forced), "")
            self.units.append(replace(unit, forced_by=forced))
        self._taken.update(unit.nodes)

    def _weighted(self, node: ir.Node) -> None:
        found = weighted_node_of(node)
        if found is None:
            return
        if isinstance(found, str):
            if node.op_type == "MatMul" and self._computed_matmul(node):
                return
            self.left[node] = found
            if any(_is_dequantized(value) for value in node.inputs[:2]):
                self.left[node] = QUANTIZED
            return
        reason, bias = _fit(found)
        if reason:
            self.left[node] = reason
            return
        nodes = [node]
        value = node.outputs[0]
        if node.op_type == "MatMul":
            bias = self._added(value)
            adding = only_reader(value)
            if bias is not None and adding is not None:
                nodes.append(adding)
        self._activation(nodes)
        first = node.inputs[0]
        if first is None:
            return
        outputs = (nodes[-1].outputs[0],)
        self._add(NodeUnit(Role.WEIGHTED, tuple(nodes), (first,), outputs, (), found, bias))

    def _computed_matmul(self, node: ir.Node) -> bool:
        """Add a MatMul of two activations, which is quantized on request only."""
        a, b = node.inputs[:2]
        if node not in self._forced or a is None or b is None or is_constant(a) or is_constant(b):
            return False
        if not (is_float(a) and is_float(b)):
            return False
        self._add(NodeUnit(Role.BINARY, (node,), (a, b), (node.outputs[0],)))
        return True

    def _added(self, value: ir.Value) -> ir.Value | None:
        """Return the constant bias row that an Add adds to the result of a MatMul."""
        node = only_reader(value)
        if node is None or node.op_type != "Add" or node.domain or node in self._red:
            return None
        bias = next((each for each in node.inputs if each is not value), None)
        tensor = constant_tensor(bias)
        if bias is None or tensor is None or tensor.dtype != FLOAT or bias.is_graph_input():
            return None
        dims = tuple(tensor.shape.numpy())
        rank = 1 if value.shape is None else len(value.shape)
        is_row = len(dims) <= rank and all(size == 1 for size in dims[:-1])
        return bias if is_row else None

    def _activation(self, nodes: list[ir.Node]) -> None:
        """Append the Relu or Clip that alone reads the last node's result."""
        following = only_reader(nodes[-1].outputs[0])
        if following is None or following in self._red or following in self._taken:
            return
        if is_activation(following) and following.inputs[0] is nodes[-1].outputs[0]:
            nodes.append(following)

    def _binary(self, node: ir.Node) -> None:
        computed, constants = _operands(node)
        nodes = [node]
        self._activation(nodes)
        outputs = (nodes[-1].outputs[0],)
        self._add(NodeUnit(Role.BINARY, tuple(nodes), computed, outputs, constants))

    def _region(self, region: PointwiseRegion) -> None:
        last = region.nodes[-1]
        unit = NodeUnit(Role.POINTWISE, region.nodes, (region.root,), (region.result,))
        wide = last.op_type in WIDE_RANGE or (last.op_type == "Mul" and len(set(last.inputs)) == 1)
        if wide and not any(node in self._forced for node in region.nodes):
            reason = f"results of {last.op_type} spread over too many magnitudes"
            self.left.update(dict.fromkeys(region.nodes, reason))
            self._taken.update(region.nodes)
            return
        self._add(unit)

    def _other(self, node: ir.Node) -> None:
        first = node.inputs[0] if node.inputs else None
        operands = data_movement_operands(node)
        if isinstance(operands, str):
            self.left[node] = operands
        elif operands is not None:
            computed = tuple(value for value in operands if not is_constant(value))
            constants = tuple(value for value in operands if is_constant(value))
            outputs = tuple(
                value for value in node.outputs if value.uses() or value.is_graph_output()
            )
            self._add(
                NodeUnit(
                    Role.DATA_MOVEMENT, (node,), computed, outputs or (node.outputs[0],), constants
                )
            )
        elif node.op_type in AVERAGES and first is not None and is_float(first):
            self._average(node, first)
        elif node.op_type == "Softmax" and first is not None and is_float(first):
            if node in self._forced:
                self._add(NodeUnit(Role.SOFTMAX, (node,), (first,), (node.outputs[0],)))
            else:
                self.left[node] = "probabilities lose most in int8; green quantizes it"
        elif node.op_type in NOT_QUANTIZED and node.outputs and is_float(node.outputs[0]):
            self.left[node] = NOT_QUANTIZED[node.op_type]
        elif node.op_type in INT8_BINARY | BINARY | UNARY and is_float(node.outputs[0]):
            self.left[node] = "its operands cannot be quantized"

    def _average(self, node: ir.Node, first: ir.Value) -> None:
        if is_constant(first):
            self.left[node] = "it averages a constant"
        else:
            self._add(NodeUnit(Role.AVERAGE, (node,), (first,), (node.outputs[0],)))


def _binary_nodes(nodes: list[ir.Node], barred: Collection[ir.Node]) -> set[ir.Node]:
    """Return the Add, Sub and Mul nodes of two tensors that are in no pointwise region."""
    pointwise = {node for region in find_pointwise_regions(nodes, barred) for node in region.nodes}
    found = set()
    for node in nodes:
        if node.op_type not in INT8_BINARY or node in barred or node in pointwise:
            continue
        computed, constants = _operands(node)
        if computed and len(computed) + len(constants) == 2 and is_float(node.outputs[0]):
            found.add(node)
    return found


def _operands(node: ir.Node) -> tuple[tuple[ir.Value, ...], tuple[ir.Value, ...]]:
    """Return the computed operands and the constants, float32 ones only."""
    given = [value for value in node.inputs if value is not None]
    computed = tuple(value for value in given if not is_constant(value) and is_float(value))
    constants = tuple(value for value in given if is_constant(value) and _is_usable(value))
    return computed, constants


def _is_usable(value: ir.Value) -> bool:
    tensor = constant_tensor(value)
    return tensor is not None and tensor.dtype == FLOAT and tensor.size > 0


def _fit(weighted: WeightedNode) -> tuple[str, ir.Value | None]:
    """Return why a weighted node cannot be quantized (empty where it can), and its bias."""
    node, first = weighted.node, weighted.node.inputs[0]
    if first is None or not is_float(first):
        return "its operand is not known to be float32", None
    if is_constant(first):
        return "both operands are constants", None
    if node.op_type == "Gemm":
        if node.attributes.get_int("transA", 0):
            return "its operand is transposed", None
        if node.attributes.get_float("alpha", 1.0) <= 0:
            return "its alpha is not positive", None
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is None:
        return "", None
    tensor = constant_tensor(bias)
    if tensor is None or bias.is_graph_input():
        return f"its bias {bias.name!r} is computed or may be fed", None
    dims = tuple(tensor.shape.numpy())
    if tensor.dtype != FLOAT or any(size != 1 for size in dims[:-1]):
        return f"its bias {bias.name!r} is no row of float32", None
    return "", bias


def _quantized_already(unit: NodeUnit) -> str:
    if any(_is_dequantized(value) for value in unit.inputs):
        return QUANTIZED
    readers = [use.node.op_type for value in unit.outputs for use in value.uses()]
    if readers and all(kind == "QuantizeLinear" for kind in readers):
        return QUANTIZED
    return ""


def _is_dequantized(value: ir.Value | None) -> bool:
    producer = None if value is None else value.producer()
    return producer is not None and producer.op_type in (
        "DequantizeLinear",
        "DynamicQuantizeLinear",
    )
