"""Finding what can be computed with bytes from end to end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from narrowpass.ir.movement import DATA_MOVEMENT
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.weights.weight import Weight
from narrowpass_xnn_cpu.lower import rules
from narrowpass_xnn_cpu.lower.fusion.epilogues import take_bias, take_channel_bias, take_limits
from narrowpass_xnn_cpu.lower.int8.conversion import multiplied
from narrowpass_xnn_cpu.lower.int8.tables import region, requantizing
from narrowpass_xnn_cpu.lower.int8.values import (
    Dequantized,
    dequantized,
    quantization_of,
    to_bytes,
)
from narrowpass_xnn_cpu.lower.op import Op
from narrowpass_xnn_cpu.lower.rules import BY_KIND
from narrowpass_xnn_cpu.native.problems.quantization import Quantization

_PRODUCTS = {"MatMul": "product-s8", "linear": "product-s8", "Gemm": "product-s8"}
_KINDS = {
    **_PRODUCTS,
    "Conv": "conv-s8",
    "ConvTranspose": "deconv-s8",
    "Add": "binary-s8",
    "Sub": "binary-s8",
    "Mul": "binary-s8",
    "GlobalAveragePool": "mean-s8",
    "ReduceMean": "mean-s8",
}
"""What computes with bytes, by the operator."""


class Bytes:
    """What of a graph is computed with bytes.

    Args:
        graph: in topological order.
        facts: of it; constants that are made here are added.
        model: gives operator sets and functions.
        version: gives the operator set of a node.

    Attributes:
        ops: the operations, by the node in whose place they stand.
        replaced: nodes that these do altogether.
    """

    def __init__(
        self,
        graph: ir.Graph,
        facts: Facts,
        model: ir.Model,
        version: Callable[[ir.Node], int],
    ) -> None:
        self.ops: dict[ir.Node, list[Op]] = {}
        self.replaced: set[ir.Node] = set()
        self._facts, self._model, self._version = facts, model, version
        self._known: dict[ir.Value, Dequantized] = {}
        for node in graph:
            if node.domain:
                continue
            if node.op_type == "DequantizeLinear":
                found = dequantized(node, facts)
                if found is not None:
                    self._known[found.real] = found
            elif node.op_type == "QuantizeLinear":
                self._quantize(node)
            elif node.op_type in DATA_MOVEMENT:
                self._move(node)
            elif node.op_type in _KINDS:
                self._compute(node)

    def _quantize(self, node: ir.Node) -> None:
        """Find what ends in a QuantizeLinear: a function of one tensor of bytes, or a row's Mul."""
        if node in self.replaced:
            return
        op = region(node, self._known, self._facts, self._model, self._version(node))
        if op is None:
            op = multiplied(node, self._facts, self._version(node))
        if op is not None and self.replaced.isdisjoint(op.nodes):
            self._replace(node, [op], op.nodes)

    def _replace(self, node: ir.Node, ops: list[Op], nodes: Sequence[ir.Node]) -> None:
        self.ops[node] = ops
        self.replaced.update(nodes)

    def _move(self, node: ir.Node) -> None:
        """Move bytes beside the floats; what nobody reads of both is left out later."""
        count = len(node.inputs) if node.op_type == "Concat" else 1
        data = [value for value in node.inputs[:count] if value is not None]
        known = [self._known[value] for value in data if value in self._known]
        constant = [self._facts.is_constant(value) for value in data]
        if not known or len(known) + sum(constant) != count:
            return
        if any(not value.name for value in node.outputs):
            return
        common = self._common(node, known)
        if common is None:
            return
        ops: list[Op] = []
        name = node.outputs[0].name or ""
        inputs = [self._as(value, common, ops, name) for value in data]
        rest = self._rest(node, count, common)
        if None in inputs or rest is None:
            return
        op = Op.of(node, self._version(node))
        op.inputs = [*inputs, *rest]
        op.outputs = [_bytes_like(value) for value in node.outputs]
        if rules.reason(op, self._facts):
            return
        self.ops[node] = [*ops, op]
        for value, made in zip(node.outputs, op.outputs, strict=True):
            self._known[value] = Dequantized(value, made, common)

    def _common(self, node: ir.Node, known: Sequence[Dequantized]) -> Quantization | None:
        """Give what bytes are put together in: that of all, or that of who alone reads them."""
        if len({given.quantization for given in known}) == 1:
            return known[0].quantization
        user = self._facts.only_user(node.outputs[0])
        if user is None or user.op_type != "QuantizeLinear":
            return None
        return quantization_of(user, self._facts)

    def _as(
        self, value: ir.Value, common: Quantization, ops: list[Op], reader: str
    ) -> ir.Value | None:
        """Give the bytes of a float for `reader`; in another quantization, `ops` makes them."""
        given = self._known.get(value)
        if given is None:
            return self._constant(value, self._facts.array(value), common)
        if given.quantization == common:
            return given.value
        made = _bytes_like(value, f"{value.name} (bytes for {reader})")
        table = {"table": requantizing(given.quantization, common)}
        ops.append(Op("table", [given.value], [made], table, 0, [_any_node(value)]))
        return made

    def _rest(
        self, node: ir.Node, count: int, common: Quantization
    ) -> list[ir.Value | None] | None:
        """Give the inputs after the data; what a Pad puts around becomes a byte."""
        rest = list(node.inputs[count:])
        if node.op_type != "Pad":
            return rest
        if self._version(node) < 11:
            return None
        rest += [None] * (2 - len(rest))
        number = 0.0 if rest[1] is None else self._facts.scalar(rest[1])
        if number is None:
            return None
        rest[1] = self._constant(node.outputs[0], np.array(number, np.float32), common)
        return None if rest[1] is None else rest

    def _constant(
        self, value: ir.Value, array: np.ndarray, common: Quantization
    ) -> ir.Value | None:
        """Give a constant as bytes, if these stand for it exactly."""
        if array.dtype != np.float32:
            return None
        whole = to_bytes(array, common)
        steps = (whole.astype(np.int32) - common.zero_point).astype(np.float32)
        if not np.array_equal(steps * np.float32(common.scale), array):
            return None
        made = _bytes_like(value, f"{value.name} (constant for {common})")
        made.shape = ir.Shape(array.shape)
        self._facts.derive(made, Weight.of(whole))
        return made

    def _compute(self, node: ir.Node) -> None:
        """Find an operator between bytes, with its bias and activation."""
        facts = self._facts
        op = Op.of(node, self._version(node))
        if BY_KIND[op.kind].check(op, facts):
            return
        product = op.kind in ("Conv", "ConvTranspose", "Gemm", "MatMul")
        if product and not self._has_bytes(op):
            return
        operands = [value for value in op.inputs if value is not None]
        count = 2 if op.kind in ("Add", "Sub", "Mul") else 1
        known = [self._known[value] for value in operands[:count] if value in self._known]
        if len(known) != count:
            return
        take_bias(op, facts)
        take_channel_bias(op, facts)
        take_limits(op, facts, self._version)
        user = facts.only_user(op.output)
        made = None if user is None else quantization_of(user, facts)
        if user is None or made is None or user.op_type != "QuantizeLinear":
            if op.kind in ("MatMul", "linear", "Gemm"):
                self._finish(node, op, known, None, None)
            return
        self._finish(node, op, known, made, user)

    def _has_bytes(self, op: Op) -> bool:
        """Tell whether the weights of an operator are stored as bytes."""
        weight = op.input(1)
        if weight is None or not self._facts.is_constant(weight):
            return False
        return self._facts.stored(weight).quantized is not None

    def _finish(
        self,
        node: ir.Node,
        op: Op,
        known: Sequence[Dequantized],
        made: Quantization | None,
        user: ir.Node | None,
    ) -> None:
        """Replace `op`, which reads floats, and the QuantizeLinear that reads it."""
        version = op.version
        otherwise = [dequantizing(given, version) for given in known]
        otherwise.append(op)
        nodes = list(op.nodes)
        outputs = op.outputs
        if user is not None:
            otherwise.append(Op.of(user, version))
            nodes.insert(0, user)
            outputs = user.outputs
        attributes = {
            **op.attributes,
            "operator": op.kind,
            "given": [given.quantization for given in known],
            "made": made,
        }
        inputs = [*(given.value for given in known), *op.inputs[len(known) :]]
        kind = _KINDS.get(op.kind, "product-s8")
        whole = Op(
            kind, inputs, outputs, attributes, version, nodes, op.limits, otherwise=otherwise
        )
        if not rules.reason(whole, self._facts):
            self._replace(node, [whole], nodes)


def dequantizing(given: Dequantized, version: int) -> Op:
    """Give the operation that makes floats of bytes."""
    attributes = {"quantization": given.quantization}
    return Op(
        "dequantize", [given.value], [given.real], attributes, version, [_any_node(given.real)]
    )


def _any_node(value: ir.Value) -> ir.Node:
    node = value.producer()
    if node is None:
        raise ValueError(f"nobody makes {value.name!r}")
    return node


def _bytes_like(value: ir.Value, name: str = "") -> ir.Value:
    """Give a fresh value for the bytes that stand for a float."""
    return ir.Value(
        name=name or f"{value.name} (bytes)",
        shape=value.shape,
        type=ir.TensorType(ir.DataType.INT8),
    )
