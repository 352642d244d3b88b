"""Matches the nodes of a graph to units that can be quantized.

Nodes that together compute an elementwise function of one tensor are one unit, a pointwise region:
a GELU written as Div, Erf, Add, Mul and Mul is one, and so is x·sigmoid(x). They round once, and a
backend can compute them with a lookup table of 256 entries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from narrowpass_int8_sym.static.units import NodeUnit, Role
from narrowpass_int8_sym.weighted_nodes import FLOAT, WeightedNode, weighted_node_of
from narrowpass_ir.constants import constant_tensor
from narrowpass_ir.movement import DATA_MOVEMENT, computes, data_operands

UNARY = frozenset(
    {
        "Abs",
        "Ceil",
        "Celu",
        "Clip",
        "Cos",
        "Elu",
        "Erf",
        "Exp",
        "Floor",
        "Gelu",
        "HardSigmoid",
        "HardSwish",
        "LeakyRelu",
        "Log",
        "Mish",
        "Neg",
        "Reciprocal",
        "Relu",
        "Round",
        "Selu",
        "Shrink",
        "Sigmoid",
        "Sign",
        "Sin",
        "Softplus",
        "Softsign",
        "Sqrt",
        "Swish",
        "Tanh",
        "ThresholdedRelu",
    }
)
"""Elementwise operators of one tensor; the bounds of Clip are constants."""

BINARY = frozenset(
    {
        "Add",
        "Div",
        "Max",
        "Min",
        "Mul",
        "PRelu",
        "Pow",
        "Sub",
    }
)
"""Elementwise operators of two operands: one is a scalar, or both follow from the same element."""

WIDE_RANGE = frozenset(
    {
        "Exp",
        "Log",
        "Pow",
        "Reciprocal",
        "Sqrt",
    }
)
"""Operators whose results have a dynamic range that 256 levels do not cover."""

FUSED_ACTIVATIONS = frozenset({"Clip", "Relu"})
"""Activations that are fused into the operator before them."""

INT8_BINARY = frozenset(
    {
        "Add",
        "Mul",
        "Sub",
    }
)

AVERAGES = frozenset(
    {
        "AveragePool",
        "GlobalAveragePool",
        "ReduceMean",
    }
)

NOT_QUANTIZED = {
    "BatchNormalization": "fold merges it into the convolution before it, where that is possible",
    "Div": "quotients of two computed operands are not quantized",
    "Einsum": "it is not quantized",
    "GRU": "recurrent cells are not quantized",
    "GroupNormalization": "normalizations lose most in int8",
    "InstanceNormalization": "normalizations lose most in int8",
    "LSTM": "recurrent cells are not quantized",
    "LayerNormalization": "normalizations lose most in int8",
    "LpNormalization": "normalizations lose most in int8",
    "LpPool": "it is not quantized",
    "Max": "maxima of two computed operands are not quantized",
    "Min": "minima of two computed operands are not quantized",
    "PRelu": "its slope differs from channel to channel",
    "Pow": "powers of two computed operands are not quantized",
    "RMSNormalization": "normalizations lose most in int8",
    "RNN": "recurrent cells are not quantized",
    "ReduceMax": "it is not quantized",
    "ReduceSum": "it is not quantized",
    "Where": "it is not quantized",
}
"""Operators that some runtimes have in int8, and why they stay float here."""


def is_float(value: ir.Value | None) -> bool:
    """Return whether a value is known to be a tensor of float32."""
    return value is not None and value.dtype == FLOAT


def is_constant(value: ir.Value | None) -> bool:
    """Return whether a value is a constant that is no graph input, which could override it."""
    return value is not None and constant_tensor(value) is not None and not value.is_graph_input()


def is_scalar(value: ir.Value | None, beside: ir.Value | None = None) -> bool:
    """Return whether a value is a constant scalar that does not extend the rank of `beside`."""
    tensor = constant_tensor(value)
    if value is None or tensor is None or value.is_graph_input() or tensor.size != 1:
        return False
    rank = len(tensor.shape)
    shape = None if beside is None else beside.shape
    return rank <= (1 if shape is None else len(shape))


def pointwise_operands(node: ir.Node) -> tuple[ir.Value, ...] | None:
    """Return the computed operands of an elementwise node; None for other nodes.

    Constants are left out: each is a scalar. With two operands the node is pointwise only if both
    follow from the same element, which the caller checks.
    """
    if node.domain or len(node.outputs) != 1 or not is_float(node.outputs[0]):
        return None
    if node.op_type in UNARY:
        first = node.inputs[0] if node.inputs else None
        rest = [value for value in node.inputs[1:] if value is not None]
        if first is None or not is_float(first) or is_constant(first):
            return None
        return (first,) if all(is_constant(value) for value in rest) else None
    if node.op_type not in BINARY or len(node.inputs) != 2:
        return None
    a, b = node.inputs
    if a is None or b is None:
        return None
    computed = tuple(value for value in (a, b) if not is_constant(value))
    if not computed or not all(is_float(value) for value in computed):
        return None
    if len(computed) == 1:
        number = b if computed[0] is a else a
        return computed if is_scalar(number, computed[0]) else None
    return computed


def data_movement_operands(node: ir.Node) -> tuple[ir.Value, ...] | str | None:
    """Return the data operands of a data movement operator, constants included.

    Returns:
        None for other operators; a reason where it also computes.
    """
    if node.domain or node.op_type not in DATA_MOVEMENT or not is_float(node.outputs[0]):
        return None
    operands = data_operands(node)
    if not operands or not all(is_float(value) for value in operands):
        return None
    if all(is_constant(value) for value in operands):
        return "it moves constants"
    return computes(node) or operands


def is_activation(node: ir.Node) -> bool:
    """Return whether a node is a Relu or a Clip with constant bounds."""
    return node.op_type in FUSED_ACTIVATIONS and pointwise_operands(node) is not None


def only_reader(value: ir.Value) -> ir.Node | None:
    """Return the node that alone reads a value, once; None where there are others."""
    uses = tuple(value.uses())
    if len(uses) != 1 or value.is_graph_output():
        return None
    reader: ir.Node = uses[0].node
    return reader


_Operands = Mapping[ir.Node, tuple[ir.Value, ...]]


@dataclass(frozen=True)
class PointwiseRegion:
    """Nodes that compute an elementwise function of one tensor.

    Attributes:
        nodes: in the order of the graph.
        root: the operand of the function.
        result: its result, which other nodes read.
    """

    nodes: tuple[ir.Node, ...]
    root: ir.Value
    result: ir.Value


def find_pointwise_regions(
    nodes: Iterable[ir.Node], barred: Collection[ir.Node]
) -> list[PointwiseRegion]:
    """Partition the pointwise nodes into regions with one result each.

    A node whose two operands do not follow from the same element is in none.

    Args:
        nodes: of a graph, in order.
        barred: nodes that must be in no region.
    """
    operands = {
        node: found
        for node in nodes
        if node not in barred and (found := pointwise_operands(node)) is not None
    }
    cuts: set[ir.Value] = set()
    while True:
        ends = _ends(operands) | cuts
        roots: dict[ir.Value, ir.Value] = {}
        joins = []
        for node, found in operands.items():
            sources = {roots.get(v, v) if v not in ends else v for v in found}
            if len(sources) == 1:
                roots[node.outputs[0]] = sources.pop()
            else:
                joins.append(node)
        if joins:
            operands = {node: found for node, found in operands.items() if node not in joins}
            continue
        regions = [_region(value, roots[value], operands, ends) for value in roots if value in ends]
        uses = Counter(node for region in regions for node in region.nodes)
        shared = {node.outputs[0] for node, count in uses.items() if count > 1}
        if not shared:
            return regions
        cuts |= shared


def _ends(operands: _Operands) -> set[ir.Value]:
    """Return the results that have a consumer that is not pointwise, or no consumer."""
    found = set()
    for node in operands:
        value = node.outputs[0]
        readers = [use.node for use in value.uses()]
        if value.is_graph_output() or not readers or any(r not in operands for r in readers):
            found.add(value)
    return found


def _region(
    result: ir.Value, root: ir.Value, operands: _Operands, ends: Collection[ir.Value]
) -> PointwiseRegion:
    """Collect the nodes between a root and a result."""
    inside: set[ir.Node] = set()
    waiting = [result]
    while waiting:
        node = waiting.pop().producer()
        if node is None or node in inside:
            continue
        inside.add(node)
        waiting += [value for value in operands[node] if value is not root and value not in ends]
    return PointwiseRegion(tuple(node for node in operands if node in inside), root, result)


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
