"""If and Loop: their subgraphs are compiled as methods are, and run when it is their turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from narrowpass.backend import NodePlan
from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.lower.assign import captured
from narrowpass_xnn_cpu.lower.facts import Facts
from narrowpass_xnn_cpu.lower.op import Op
from narrowpass_xnn_cpu.native.pool import ThreadPool
from narrowpass_xnn_cpu.weights.weight import Weight


class Compiled(Protocol):
    """A compiled method, as far as it matters here."""

    outputs: tuple[str, ...]
    plans: tuple[NodePlan, ...]

    def run(self, feeds: Any, wanted: Sequence[str], pool: ThreadPool, out: Any) -> dict[str, Any]:
        """Run it."""


Compile = Callable[[ir.Model, Mapping[int, Weight]], Compiled]
"""Compiles a model, of some tensors of which it is known what they are, by their ``id``."""


class Body:
    """A subgraph that was compiled.

    Args:
        graph: the subgraph.
        facts: of the graph around it.
        model: gives operator sets.
        compile_: compiles a model.

    Attributes:
        formals: names of its own inputs.
        reads: names of the values that it reads from outside.
        plans: where its nodes run.
    """

    def __init__(self, graph: ir.Graph, facts: Facts, model: ir.Model, compile_: Compile) -> None:
        self.formals = tuple(value.name or "" for value in graph.inputs)
        clone = graph.clone(allow_outer_scope_values=True)
        outside: dict[ir.Value, ir.Value] = {}
        known: dict[int, Weight] = {}
        for value in captured(clone):
            made = ir.Value(name=value.name, type=value.type, shape=value.shape)
            outside[value] = made
            if facts.is_constant(value):
                weight = facts.stored(value)
                made.const_value = _unread(weight, value)
                known[id(made.const_value)] = weight
                clone.initializers[value.name or ""] = made
            else:
                clone.inputs.append(made)
        _replace(clone, outside)
        self.reads = tuple(value.name or "" for value in outside if not facts.is_constant(value))
        inner = ir.Model(clone, ir_version=model.ir_version)
        inner.opset_imports.update(model.opset_imports)
        self._method = compile_(inner, known)
        self.plans = self._method.plans

    def run(self, given: Sequence[Any], values: dict[str, Any], pool: ThreadPool) -> list[Any]:
        """Run the subgraph on its own inputs in order, and on the values around it."""
        feeds = {name: values[name] for name in self.reads}
        feeds.update(zip(self.formals, given, strict=True))
        results = self._method.run(feeds, self._method.outputs, pool, {})
        return [results[name] for name in self._method.outputs]


def _unread(weight: Weight, value: ir.Value) -> ir.TensorProtocol:
    """Give a constant from outside as a tensor, which is read where somebody asks."""
    dtype = value.dtype or ir.DataType.from_numpy(weight.dtype)
    shape = ir.Shape(weight.shape)

    def read() -> ir.TensorProtocol:
        return ir.Tensor(weight.view(), dtype=dtype, name=value.name)

    return ir.LazyTensor(read, dtype=dtype, shape=shape, name=value.name)


def _replace(graph: ir.Graph, outside: dict[ir.Value, ir.Value]) -> None:
    """Make a graph, and those in it, read other values in place of those from outside."""
    for node in graph.all_nodes():
        for index, value in enumerate(node.inputs):
            if value in outside:
                node.replace_input_with(index, outside[value])
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
                _replace_outputs(attribute.as_graph(), outside)
    _replace_outputs(graph, outside)


def _replace_outputs(graph: ir.Graph, outside: dict[ir.Value, ir.Value]) -> None:
    for index, value in enumerate(graph.outputs):
        if value in outside:
            graph.outputs[index] = outside[value]


class ControlFlow:
    """An If or a Loop.

    Args:
        op: the operation.
        facts: of its graph.
        model: gives operator sets.
        compile_: compiles a model.

    Attributes:
        name: the node's.
        inputs: names of the values that it and its subgraphs read.
        outputs: names of the values that it makes.
        kernel: what runs it, for people.
        plans: where the nodes of its subgraphs run.
    """

    kernel = "control flow"

    def __init__(self, op: Op, facts: Facts, model: ir.Model, compile_: Compile) -> None:
        node = op.nodes[0]
        names = ("then_branch", "else_branch") if op.kind == "If" else ("body",)
        self._kind = op.kind
        self._bodies = [
            Body(node.attributes[name].as_graph(), facts, model, compile_) for name in names
        ]
        self.name = node.name or next((v.name for v in op.outputs if v.name), "")
        self._operands = tuple("" if v is None else v.name or "" for v in op.inputs)
        self._results = tuple(value.name or "" for value in op.outputs)
        self.outputs = tuple(name for name in self._results if name)
        read = [name for body in self._bodies for name in body.reads]
        self.inputs = tuple(dict.fromkeys([*filter(None, self._operands), *read]))
        self.plans = tuple(plan for body in self._bodies for plan in body.plans)
        self._scans = [_empty(v) for v in op.outputs] if op.kind == "Loop" else []

    def run(self, values: dict[str, Any], pool: ThreadPool) -> dict[str, Any]:
        """Run what the condition says, on the values that `inputs` names.

        Raises:
            BackendError: it fails; the message names it.
        """
        operands: list[Any] = [values[name] if name else None for name in self._operands]
        try:
            if self._kind == "If":
                body = self._bodies[0 if bool(operands[0].item()) else 1]
                made = body.run((), values, pool)
            else:
                made = self._loop(operands, values, pool)
        except (AttributeError, BackendError, ValueError) as error:
            raise BackendError(f"in {self._kind} {self.name!r}: {error}") from error
        return {name: value for name, value in zip(self._results, made, strict=True) if name}

    def _loop(self, operands: Sequence[Any], values: dict[str, Any], pool: ThreadPool) -> list[Any]:
        (body,) = self._bodies
        limit = None if operands[0] is None else int(operands[0].item())
        condition = len(operands) < 2 or operands[1] is None or bool(operands[1].item())
        carried = list(operands[2:])
        rows: list[list[Any]] = [[] for _ in self._results[len(carried) :]]
        count = 0
        while condition and (limit is None or count < limit):
            given = [np.array(count, np.int64), np.array(condition), *carried]
            results = body.run(given, values, pool)
            condition = bool(results[0].item())
            carried = results[1 : 1 + len(carried)]
            for row, value in zip(rows, results[1 + len(carried) :], strict=True):
                row.append(value)
            count += 1
        empty = self._scans[len(carried) :]
        return [*carried, *(np.stack(r) if r else e for r, e in zip(rows, empty, strict=True))]


def _empty(value: ir.Value) -> np.ndarray[Any, Any]:
    """Give what a scan output is when no iteration ran: nothing, of the declared type."""
    dtype = np.float32 if value.dtype is None else value.dtype.numpy()
    dims = [dim if isinstance(dim, int) else 0 for dim in value.shape or (0,)]
    return np.zeros([0, *dims[1:]], dtype)


def can_run(op: Op) -> bool:
    """Tell whether `ControlFlow` runs an operation."""
    if len(op.nodes) != 1 or op.nodes[0].domain or op.kind not in ("If", "Loop"):
        return False
    graphs = [a.as_graph() for a in op.nodes[0].attributes.values() if not a.is_ref()]
    values = [*op.inputs, *op.outputs]
    values += [value for graph in graphs for value in (*graph.inputs, *graph.outputs)]
    # Sequences and optionals go to the reference evaluator, as do types that nobody declared.
    return all(
        value is None or value.type is None or isinstance(value.type, ir.TensorType)
        for value in values
    )
