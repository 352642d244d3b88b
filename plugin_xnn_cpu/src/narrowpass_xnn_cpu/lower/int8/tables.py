"""Pointwise functions of one int8 tensor, as lookup tables of 256 entries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from narrowpass.errors import BackendError
from narrowpass_planning.graph.facts import Facts
from narrowpass_xnn_cpu.lower.builder import Builder
from narrowpass_xnn_cpu.lower.int8.values import (
    Dequantized,
    dequantize_all,
    quantization_of,
    quantize_array,
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
"""Operators that compute each element from one element of each operand."""


def requantization_table(source: Quantization, target: Quantization) -> bytes:
    """Return the lookup table from one quantization to another."""
    return quantize_array(dequantize_all(source), target).tobytes()


def clamp_table(low: int, high: int) -> bytes:
    """Return the lookup table that clamps int8 to a range."""
    whole = np.arange(256, dtype=np.uint8).view(np.int8)
    return np.clip(whole, low, high).tobytes()


def match_table(
    quantize: ir.Node,
    known: Mapping[ir.Value, Dequantized],
    facts: Facts,
    model: ir.Model,
    version: int,
) -> Op | None:
    """Match a pointwise function of one int8 tensor between DequantizeLinear and QuantizeLinear.

    Its nodes are in `POINTWISE`, and no other node reads its intermediate values.

    Args:
        quantize: the last node.
        known: dequantized int8 values, by their float value.
        facts: of the graph.
        model: its operator sets and functions.
        version: of the operator set of `quantize`.
    """
    target = quantization_of(quantize, facts)
    found = None if target is None else _collect_region(quantize, known, facts)
    if target is None or found is None:
        return None
    source = found.sources[0].value
    rank = facts.rank(source)
    if rank is None or rank != facts.rank(quantize.outputs[0]):
        return None  # a constant adds dimensions
    numbers = _evaluate_all(quantize, found, facts, model)
    if numbers is None:
        return None
    attributes = {"table": quantize_array(numbers, target).tobytes()}
    nodes = [quantize, *found.nodes]
    return Op("table", [source], [quantize.outputs[0]], attributes, version, nodes)


@dataclass(frozen=True)
class _Region:
    """Nodes in topological order, the dequantized values that they read, and constants."""

    nodes: list[ir.Node]
    sources: list[Dequantized]
    constants: list[ir.Value]


def _collect_region(
    quantize: ir.Node, known: Mapping[ir.Value, Dequantized], facts: Facts
) -> _Region | None:
    """Return the nodes before a QuantizeLinear, if they are a function of one int8 tensor."""
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
    return _Region(_topological_order(inside), list(sources.values()), constants)


def _topological_order(nodes: set[ir.Node]) -> list[ir.Node]:
    """Return nodes, each after those whose results it reads."""
    order: list[ir.Node] = []
    waiting = list(nodes)
    while waiting:
        node = waiting[-1]
        producers = {value.producer() for value in node.inputs if value is not None}
        missing = (nodes & producers).difference(order)
        if missing:
            waiting += missing
            continue
        waiting.pop()
        if node not in order:
            order.append(node)
    return order


def _evaluate_all(
    quantize: ir.Node, region: _Region, facts: Facts, model: ir.Model
) -> np.ndarray | None:
    """Return the results of a region for all int8 values, indexed as uint8: float32 [256]."""
    end = quantize.inputs[0]
    values = {given.real.name or "": dequantize_all(given.quantization) for given in region.sources}
    name = "" if end is None else end.name or ""
    if region.nodes:
        from narrowpass_reference import NodeEvaluator  # with onnx's evaluator, which is large

        values |= {value.name or "": facts.array(value) for value in region.constants}
        try:
            values |= NodeEvaluator(region.nodes, model).run(values, [name])
        except BackendError:
            return None  # the same error is raised where the nodes are run
    numbers = np.asarray(values[name])
    return numbers.reshape(-1) if numbers.size == 256 and numbers.dtype == np.float32 else None


def _table(op: Op, builder: Builder) -> None:
    given, entries = op.required(0), op.attributes["table"]
    perm = builder.layout(given)
    slot = builder.slot_of(given, perm)
    if entries == IDENTITY:
        builder.alias(op.output, slot, perm)
        return
    builder.compute(Lookup(entries), [slot], op.output, perm)


RULES: tuple[Rule, ...] = (*rules("table", lower=_table, check=lambda op, facts: None),)
