"""The subgraphs of If, Loop and Scan, each compiled as a method."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from narrowpass.runtime.backend import NodePlan
from narrowpass_ir.inference import infer
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.graph.op import captured
from narrowpass_planning.plan.bound import BoundPartition
from narrowpass_planning.plan.executor import Pool
from narrowpass_planning.plan.loop import LoopSignature, NativeLoop, NativeLoopFactory
from narrowpass_planning.plan.prepared import PreparedRun
from narrowpass_planning.weights.weight import Weight


class Compiled(Protocol):
    """A compiled method: the part of `Method` that a subgraph needs."""

    outputs: tuple[str, ...]

    @property
    def plans(self) -> tuple[NodePlan, ...]:
        """Where its nodes run."""

    @property
    def fresh(self) -> Collection[str]:
        """Names of the values that the last run allocated: they alias no others."""

    def run_within(self, feeds: Any, wanted: Sequence[str], pool: Pool, out: Any) -> dict[str, Any]:
        """Run it in a workspace that is entered."""

    def bind(
        self, feeds: Mapping[str, Any], pool: Pool
    ) -> tuple[BoundPartition, dict[str, Array | str]] | None:
        """Return the partition bound to the feeds, and the outputs that it does not compute.

        None where more than one partition runs.
        """

    def prepare(self, feeds: Mapping[str, Any], pool: Pool) -> PreparedRun | None:
        """Return a run for further feeds of these types and shapes, which have just run."""


Array = np.ndarray[Any, Any]

Compile = Callable[[ir.Model, Mapping[int, Weight]], Compiled]
"""Compiles a model; the mapping has weights of outer scopes, by the ``id`` of their tensors."""


@dataclass(frozen=True)
class Formal:
    """The type of an input of a body, from its argument; a declared type has precedence.

    Attributes:
        type: of the argument; None where it is unknown.
        dims: of the argument, None for unknown sizes; None where the rank is unknown.
        result: index of the output that is the input of the next iteration, whose rank may differ;
            None where there is none.
    """

    type: ir.TypeProtocol | None
    dims: Sequence[int | str | None] | None
    result: int | None = None


class Body:
    """A compiled subgraph.

    Args:
        graph: the subgraph.
        formals: types of its own inputs.
        facts: of the graph around it.
        model: has the operator sets.
        compile_: compiles a model.
        repeat: what runs many iterations in one call; None to run them one by one.

    Attributes:
        formals: names of its own inputs.
        reads: names of the values that it reads from outside.
        outputs: names of its outputs.
        declared: the type of each output, None where none is, and its dimensions, 0 for those that
            are not numbers.
    """

    def __init__(
        self,
        graph: ir.Graph,
        formals: Sequence[Formal],
        facts: Facts,
        model: ir.Model,
        compile_: Compile,
        repeat: NativeLoopFactory | None,
    ) -> None:
        self._repeat = repeat
        self.formals = tuple(value.name or "" for value in graph.inputs)
        clone = graph.clone(allow_outer_scope_values=True)
        outside: dict[ir.Value, ir.Value] = {}
        known: dict[int, Weight] = {}
        for value in captured(clone):
            inner_value = ir.Value(name=value.name, type=value.type, shape=value.shape)
            outside[value] = inner_value
            if facts.is_constant(value):
                weight = facts.stored(value)
                inner_value.const_value = _unread(weight, value)
                known[id(inner_value.const_value)] = weight
                clone.initializers[value.name or ""] = inner_value
            else:
                clone.inputs.append(inner_value)
        _replace(clone, outside)
        _skip_identities(clone)
        self.reads = tuple(value.name or "" for value in outside if not facts.is_constant(value))
        inner = ir.Model(clone, ir_version=model.ir_version)
        inner.opset_imports.update(model.opset_imports)
        _declare(inner, formals)
        self._method = compile_(inner, known)
        self.outputs = self._method.outputs
        self._repeated: NativeLoop | None = None
        self._prepared: PreparedRun | None = None
        self._given: list[Any] | None = None
        self._short = False
        self.declared = [_declared(value) for value in inner.graph.outputs]

    @property
    def plans(self) -> tuple[NodePlan, ...]:
        """Where its nodes run."""
        return self._method.plans

    @property
    def fresh(self) -> list[bool]:
        """Whether the last run allocated each output, so that it aliases no other value."""
        fresh = self.outputs if self._short else self._method.fresh
        names = self.outputs
        return [n in fresh and names.index(n) == i for i, n in enumerate(names)]

    def run(self, feeds: Mapping[str, Any], pool: Pool) -> list[Any]:
        """Run the subgraph on its own inputs and on the values around it, by name."""
        results = None if self._prepared is None else self._prepared.run(feeds)
        self._short = results is not None
        if results is None:
            results = self._method.run_within(feeds, self.outputs, pool, {})
            self._prepare(feeds, pool)
        return [results[name] for name in self.outputs]

    def _prepare(self, feeds: Mapping[str, Any], pool: Pool) -> None:
        """Let the next run be short where the feeds are like those of the run before."""
        arrays = all(type(value) is np.ndarray for value in feeds.values())
        given = [(value.dtype, value.shape) for value in feeds.values()] if arrays else None
        alike = given is not None and given == self._given
        self._given = given
        self._prepared = self._method.prepare(feeds, pool) if alike else None

    def repeated(
        self, feeds: Mapping[str, Any], roles: LoopSignature, pool: Pool
    ) -> NativeLoop | None:
        """Return the loop that runs all iterations in one call; None where there is none."""
        if self._repeat is None or not all(isinstance(v, np.ndarray) for v in feeds.values()):
            return None
        found = self._method.bind(feeds, pool)
        if found is None:
            return None
        bound, others = found
        if self._repeated is None or not self._repeated.holds(bound, others):
            self._repeated = self._repeat(bound, roles, feeds, others)
        return self._repeated if self._repeated.fits else None


def _declare(model: ir.Model, formals: Sequence[Formal]) -> None:
    """Declare the types of a body's inputs where the model does not.

    A state has the rank of the initial one, if shape inference of an iteration confirms that rank.
    """
    assumed: dict[int, int] = {}
    for index, formal in enumerate(formals):
        value = model.graph.inputs[index]
        if value.type is None:
            value.type = formal.type
        if (
            value.shape is None
            and isinstance(value.type, ir.TensorType)
            and formal.dims is not None
        ):
            if formal.result is not None:
                assumed[index] = formal.result
            value.shape = ir.Shape(formal.dims)
    while assumed:
        tried = model.clone()
        infer(tried)
        wrong = []
        for index, result in assumed.items():
            given, after = model.graph.inputs[index].shape, tried.graph.outputs[result].shape
            if given is None or after is None or len(given) != len(after):
                wrong.append(index)
        if not wrong:
            return
        for index in wrong:
            model.graph.inputs[index].shape = None
            del assumed[index]


def _skip_identities(graph: ir.Graph) -> None:
    """Bypass Identity nodes before outputs; loop conditions often have one."""
    names = {value.name for value in graph.outputs}
    for index, value in enumerate(graph.outputs):
        node = value.producer()
        if node is None or node.op_type != "Identity" or node.domain:
            continue
        source = node.inputs[0]
        if source is not None and source.name not in names:
            names.add(source.name)
            source.type = value.type if source.type is None else source.type
            graph.outputs[index] = source
            if not value.uses():
                graph.remove(node)


def _declared(value: ir.Value) -> tuple[np.dtype[Any] | None, list[int]]:
    dims = [dim if isinstance(dim, int) else 0 for dim in value.shape or ()]
    return None if value.dtype is None else value.dtype.numpy(), dims


def _unread(weight: Weight, value: ir.Value) -> ir.TensorProtocol:
    """Return a constant of an outer scope as a lazy tensor."""
    dtype = value.dtype or ir.DataType.from_numpy(weight.dtype)
    shape = ir.Shape(weight.shape)

    def read() -> ir.TensorProtocol:
        return ir.Tensor(weight.view(), dtype=dtype, name=value.name)

    return ir.LazyTensor(read, dtype=dtype, shape=shape, name=value.name)


def _replace(graph: ir.Graph, outside: dict[ir.Value, ir.Value]) -> None:
    """Replace the uses of outer values in a graph and in its subgraphs."""
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
