"""Functions of one tensor of bytes: tables of 256 entries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from narrowpass.errors import BackendError
from narrowpass_planning.graph.facts import Facts
from narrowpass_reference import NodeEvaluator
from narrowpass_xnn_cpu.lower.builder import Builder
from narrowpass_xnn_cpu.lower.int8.values import (
    Dequantized,
    from_bytes,
    quantization_of,
    to_bytes,
)
from narrowpass_xnn_cpu.lower.op import Op
from narrowpass_xnn_cpu.lower.rule import Rule, rules
from narrowpass_xnn_cpu.lower.steps import Lookup
from narrowpass_xnn_cpu.native.problems.quantization import Quantization

IDENTITY = bytes(range(256))

_MOST_NODES = 64

POINTWISE = frozenset(
    [
        "Abs",
        "Add",
        "And",
        "Celu",
        "Ceil",
        "Clip",
        "Cos",
        "Div",
        "Elu",
        "Equal",
        "Erf",
        "Exp",
        "Floor",
        "Gelu",
        "Greater",
        "GreaterOrEqual",
        "HardSigmoid",
        "HardSwish",
        "Identity",
        "IsInf",
        "IsNaN",
        "LeakyRelu",
        "Less",
        "LessOrEqual",
        "Log",
        "Max",
        "Min",
        "Mish",
        "Mul",
        "Neg",
        "Not",
        "Or",
        "PRelu",
        "Pow",
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
        "Sub",
        "Swish",
        "Tan",
        "Tanh",
        "ThresholdedRelu",
        "Where",
        "Xor",
    ]
)
"""Operators whose elements each follow from one element of each operand."""


def requantizing(given: Quantization, made: Quantization) -> bytes:
    """Give the table that turns bytes of one quantization into those of another one."""
    return to_bytes(from_bytes(given), made).tobytes()


def clamping(low: int, high: int) -> bytes:
    """Give the table that clamps bytes, taken as int8."""
    whole = np.arange(256, dtype=np.uint8).view(np.int8)
    return np.clip(whole, low, high).tobytes()


def region(
    quantize: ir.Node,
    known: Mapping[ir.Value, Dequantized],
    facts: Facts,
    model: ir.Model,
    version: int,
) -> Op | None:
    """Give a function of one tensor of bytes that ends in a QuantizeLinear as one operation.

    Nodes in it compute elementwise, and nobody outside reads what is between them.

    Args:
        quantize: the last node.
        known: floats that bytes stand for.
        facts: of the graph.
        model: gives operator sets and functions.
        version: of the operator set.
    """
    made = quantization_of(quantize, facts)
    found = None if made is None else _collected(quantize, known, facts)
    if made is None or found is None:
        return None
    source = found.sources[0].value
    rank = facts.rank(source)
    if rank is None or rank != facts.rank(quantize.outputs[0]):
        return None  # a constant adds dimensions
    numbers = _evaluated(quantize, found, facts, model)
    if numbers is None:
        return None
    attributes = {"table": to_bytes(numbers, made).tobytes()}
    nodes = [quantize, *found.nodes]
    return Op("table", [source], [quantize.outputs[0]], attributes, version, nodes)


@dataclass(frozen=True)
class _Region:
    """Nodes in order, the floats that they start from, and constants."""

    nodes: list[ir.Node]
    sources: list[Dequantized]
    constants: list[ir.Value]


def _collected(
    quantize: ir.Node, known: Mapping[ir.Value, Dequantized], facts: Facts
) -> _Region | None:
    """Give what lies before a QuantizeLinear, if it is a function of one tensor of bytes."""
    inside: set[ir.Node] = set()
    sources: dict[ir.Value, Dequantized] = {}
    constants: list[ir.Value] = []
    waiting = [quantize.inputs[0]]
    while waiting:
        value = waiting.pop()
        if value is None:
            continue
        if facts.is_constant(value):
            if any(dim != 1 for dim in facts.dims(value) or ()):
                return None
            constants.append(value)
            continue
        if value in known:
            sources[value] = known[value]
            continue
        node = value.producer()
        if node is None or node.graph is not quantize.graph or len(node.outputs) != 1:
            return None
        if node.domain or node.op_type not in POINTWISE or len(inside) == _MOST_NODES:
            return None
        if node not in inside:
            inside.add(node)
            waiting += node.inputs
    if len({given.value for given in sources.values()}) != 1:
        return None
    for node in inside:
        readers = {use.node for use in node.outputs[0].uses()} - inside
        if node.outputs[0].name in facts.needed or readers - {quantize}:
            return None
    return _Region(_in_order(inside), list(sources.values()), constants)


def _in_order(nodes: set[ir.Node]) -> list[ir.Node]:
    """Give nodes after those whose results they read."""
    order: list[ir.Node] = []
    waiting = list(nodes)
    while waiting:
        node = waiting[-1]
        makers = {value.producer() for value in node.inputs if value is not None}
        missing = (nodes & makers).difference(order)
        if missing:
            waiting += missing
            continue
        waiting.pop()
        if node not in order:
            order.append(node)
    return order


def _evaluated(
    quantize: ir.Node, region: _Region, facts: Facts, model: ir.Model
) -> np.ndarray | None:
    """Give what the region makes of the bytes 0 to 255: float32 [256]."""
    end = quantize.inputs[0]
    values = {given.real.name or "": from_bytes(given.quantization) for given in region.sources}
    name = "" if end is None else end.name or ""
    if region.nodes:
        values |= {value.name or "": facts.array(value) for value in region.constants}
        try:
            values |= NodeEvaluator(region.nodes, model).run(values, [name])
        except BackendError:
            return None  # whoever runs the nodes will say so
    numbers = np.asarray(values[name])
    return numbers.reshape(-1) if numbers.size == 256 and numbers.dtype == np.float32 else None


def _table(op: Op, builder: Builder) -> None:
    given, entries = op.required(0), op.attributes["table"]
    perm = builder.layout(given)
    slot = builder.at(given, perm)
    if entries == IDENTITY:
        builder.alias(op.output, slot, perm)
        return
    builder.compute(Lookup(entries), [slot], op.output, perm)


RULES: tuple[Rule, ...] = (*rules("table", lower=_table, check=lambda op, facts: None),)
