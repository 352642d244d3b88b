"""Matching of operators between DequantizeLinear and QuantizeLinear that run in int8."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from narrowpass_ir.movement import DATA_MOVEMENT
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.weights.weight import Weight
from narrowpass_xnn_cpu.lower import rules
from narrowpass_xnn_cpu.lower.fusion.epilogues import fuse_bias, fuse_channel_bias, fuse_clamp
from narrowpass_xnn_cpu.lower.int8.conversion import match_scaled_quantize
from narrowpass_xnn_cpu.lower.int8.tables import match_table, requantization_table
from narrowpass_xnn_cpu.lower.int8.values import (
    Dequantized,
    dequantized,
    quantization_of,
    quantize_array,
)
from narrowpass_xnn_cpu.lower.op import Op
from narrowpass_xnn_cpu.lower.rules import BY_KIND
from narrowpass_xnn_cpu.native.problems.quantization import Quantization

_KINDS = {
    "MatMul": "matmul-s8",
    "linear": "matmul-s8",
    "Gemm": "matmul-s8",
    "Conv": "conv-s8",
    "ConvTranspose": "deconv-s8",
    "Add": "binary-s8",
    "Sub": "binary-s8",
    "Mul": "binary-s8",
    "GlobalAveragePool": "mean-s8",
    "ReduceMean": "mean-s8",
}
"""The kind of the int8 operation, by the float operator."""


class Int8Matcher:
    """Matches the operators of a graph that are computed in int8.

    Args:
        graph: in topological order.
        facts: of the graph; quantized constants are added to them.
        model: its operator sets and functions.
        version: returns the operator set version of a node.

    Attributes:
        ops: int8 operations, by the node that they are emitted for.
        replaced: nodes that are fused into int8 operations.
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
                self._move_data(node)
            elif node.op_type in _KINDS:
                self._compute(node)

    def _quantize(self, node: ir.Node) -> None:
        """Match a pointwise function of int8, or a Mul by a row, before a QuantizeLinear."""
        if node in self.replaced:
            return
        op = match_table(node, self._known, self._facts, self._model, self._version(node))
        if op is None:
            op = match_scaled_quantize(node, self._facts, self._version(node))
        if op is not None and self.replaced.isdisjoint(op.nodes):
            self._replace(node, [op], op.nodes)

    def _replace(self, node: ir.Node, ops: list[Op], nodes: Sequence[ir.Node]) -> None:
        self.ops[node] = ops
        self.replaced.update(nodes)

    def _move_data(self, node: ir.Node) -> None:
        """Add an int8 data movement operator to the float one; unused ones are removed later."""
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
        inputs = [self._requantize(value, common, ops, name) for value in data]
        others = self._other_inputs(node, count, common)
        if None in inputs or others is None:
            return
        op = Op.of(node, self._version(node))
        op.inputs = [*inputs, *others]
        op.outputs = [_int8_like(value) for value in node.outputs]
        if rules.reason(op, self._facts):
            return
        self.ops[node] = [*ops, op]
        for value, quantized in zip(node.outputs, op.outputs, strict=True):
            self._known[value] = Dequantized(value, quantized, common)

    def _common(self, node: ir.Node, known: Sequence[Dequantized]) -> Quantization | None:
        """Return one quantization for all operands: their own, or that of the only reader."""
        if len({given.quantization for given in known}) == 1:
            return known[0].quantization
        user = self._facts.only_user(node.outputs[0])
        if user is None or user.op_type != "QuantizeLinear":
            return None
        return quantization_of(user, self._facts)

    def _requantize(
        self, value: ir.Value, common: Quantization, ops: list[Op], reader: str
    ) -> ir.Value | None:
        """Return the int8 value of a float in quantization `common`; may add a table to `ops`."""
        given = self._known.get(value)
        if given is None:
            return self._constant(value, self._facts.array(value), common)
        if given.quantization == common:
            return given.value
        requantized = _int8_like(value, f"{value.name} (int8 for {reader})")
        table = {"table": requantization_table(given.quantization, common)}
        ops.append(Op("table", [given.value], [requantized], table, 0, [_any_node(value)]))
        return requantized

    def _other_inputs(
        self, node: ir.Node, count: int, common: Quantization
    ) -> list[ir.Value | None] | None:
        """Return the inputs after the data; the padding value of a Pad is quantized."""
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
        """Return a constant as int8, if that is exact."""
        if array.dtype != np.float32:
            return None
        whole = quantize_array(array, common)
        steps = (whole.astype(np.int32) - common.zero_point).astype(np.float32)
        if not np.array_equal(steps * np.float32(common.scale), array):
            return None
        constant = _int8_like(value, f"{value.name} (constant for {common})")
        constant.shape = ir.Shape(array.shape)
        self._facts.derive(constant, Weight.of(whole))
        return constant

    def _compute(self, node: ir.Node) -> None:
        """Match an operator between Dequantize and QuantizeLinear, with its bias and activation."""
        facts = self._facts
        op = Op.of(node, self._version(node))
        if BY_KIND[op.kind].check(op, facts):
            return
        weighted = op.kind in ("Conv", "ConvTranspose", "Gemm", "MatMul")
        if weighted and not self._has_int8_weights(op):
            return
        operands = [value for value in op.inputs if value is not None]
        count = 2 if op.kind in ("Add", "Sub", "Mul") else 1
        known = [self._known[value] for value in operands[:count] if value in self._known]
        if len(known) != count:
            return
        fuse_bias(op, facts)
        fuse_channel_bias(op, facts)
        fuse_clamp(op, facts, self._version)
        user = facts.only_user(op.output)
        target = None if user is None else quantization_of(user, facts)
        if user is None or target is None or user.op_type != "QuantizeLinear":
            if op.kind in ("MatMul", "linear", "Gemm"):
                self._finish(node, op, known, None, None)
            return
        self._finish(node, op, known, target, user)

    def _has_int8_weights(self, op: Op) -> bool:
        """Return whether the weights of an operator are stored as int8 with scales."""
        weight = op.input(1)
        if weight is None or not self._facts.is_constant(weight):
            return False
        return self._facts.stored(weight).quantized is not None

    def _finish(
        self,
        node: ir.Node,
        op: Op,
        known: Sequence[Dequantized],
        target: Quantization | None,
        user: ir.Node | None,
    ) -> None:
        """Replace `op`, which reads floats, and the QuantizeLinear that reads it."""
        version = op.version
        float_ops = [dequantizing(given, version) for given in known]
        float_ops.append(op)
        nodes = list(op.nodes)
        outputs = op.outputs
        if user is not None:
            float_ops.append(Op.of(user, version))
            nodes.insert(0, user)
            outputs = user.outputs
        attributes = {
            **op.attributes,
            "operator": op.kind,
            "input_quantizations": [given.quantization for given in known],
            "output_quantization": target,
        }
        inputs = [*(given.value for given in known), *op.inputs[len(known) :]]
        kind = _KINDS.get(op.kind, "matmul-s8")
        whole = Op(
            kind, inputs, outputs, attributes, version, nodes, op.limits, float_ops=float_ops
        )
        if not rules.reason(whole, self._facts):
            self._replace(node, [whole], nodes)


def dequantizing(given: Dequantized, version: int) -> Op:
    """Return the operation that dequantizes an int8 value."""
    attributes = {"quantization": given.quantization}
    return Op(
        "dequantize", [given.value], [given.real], attributes, version, [_any_node(given.real)]
    )


def _any_node(value: ir.Value) -> ir.Node:
    node = value.producer()
    if node is None:
        raise ValueError(f"{value.name!r} has no producer")
    return node


def _int8_like(value: ir.Value, name: str = "") -> ir.Value:
    """Return a new int8 value of the shape of a float value."""
    return ir.Value(
        name=name or f"{value.name} (int8)",
        shape=value.shape,
        type=ir.TensorType(ir.DataType.INT8),
    )
