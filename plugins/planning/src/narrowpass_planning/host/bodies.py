"""The bodies and branches of control flow, compiled as methods are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from narrowpass.ir.inference import infer
from narrowpass.runtime.backend import NodePlan
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.graph.op import captured
from narrowpass_planning.plan.bound import Bound
from narrowpass_planning.plan.executor import Pool
from narrowpass_planning.plan.looping import Repeat, Repeated, Roles
from narrowpass_planning.plan.prepared import Prepared
from narrowpass_planning.weights.weight import Weight


class Compiled(Protocol):
    """A compiled method, as far as it matters here."""

    outputs: tuple[str, ...]

    @property
    def plans(self) -> tuple[NodePlan, ...]:
        """Where its nodes run."""

    @property
    def fresh(self) -> Collection[str]:
        """Names of the values that the last run has made anew."""

    def run_within(self, feeds: Any, wanted: Sequence[str], pool: Pool, out: Any) -> dict[str, Any]:
        """Run it in a workspace that is entered."""

    def bind(
        self, feeds: Mapping[str, Any], pool: Pool
    ) -> tuple[Bound, dict[str, Array | str]] | None:
        """Return what runs for feeds, where that is one partition, and what it does not make."""

    def prepare(self, feeds: Mapping[str, Any], pool: Pool) -> Prepared | None:
        """Return what runs for other feeds like these, which have just run."""


Array = np.ndarray[Any, Any]

Compile = Callable[[ir.Model, Mapping[int, Weight]], Compiled]
"""Compiles a model, of some tensors of which it is known what they are, by their ``id``."""


@dataclass(frozen=True)
class Formal:
    """What is known of an input of a body by what it is passed; its own declaration goes before.

    Attributes:
        type: what it is; None where that is not known.
        dims: sizes, or None for those that are not known; None where not even their number is.
        result: the output that is the input of the next iteration, which may be of another rank;
            None where there is none.
    """

    type: ir.TypeProtocol | None
    dims: Sequence[int | str | None] | None
    result: int | None = None


class Body:
    """A subgraph that was compiled.

    Args:
        graph: the subgraph.
        formals: what is known of its own inputs.
        facts: of the graph around it.
        model: gives operator sets.
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
        repeat: Repeat | None,
    ) -> None:
        self._repeat = repeat
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
        _skip_identities(clone)
        self.reads = tuple(value.name or "" for value in outside if not facts.is_constant(value))
        inner = ir.Model(clone, ir_version=model.ir_version)
        inner.opset_imports.update(model.opset_imports)
        _declare(inner, formals)
        self._method = compile_(inner, known)
        self.outputs = self._method.outputs
        self._repeated: Repeated | None = None
        self._prepared: Prepared | None = None
        self._given: list[Any] | None = None
        self._short = False
        self.declared = [_declared(value) for value in inner.graph.outputs]

    @property
    def plans(self) -> tuple[NodePlan, ...]:
        """Where its nodes run."""
        return self._method.plans

    @property
    def fresh(self) -> list[bool]:
        """Of each output, whether the last run has made it anew."""
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

    def repeated(self, feeds: Mapping[str, Any], roles: Roles, pool: Pool) -> Repeated | None:
        """Return what runs many iterations in one call; None where they must be run one by one."""
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
    """Return inputs of a body the types that they have; they need not be declared.

    A state has the rank of the first one, if an iteration that is given that gives it again.
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
            given, made = model.graph.inputs[index].shape, tried.graph.outputs[result].shape
            if given is None or made is None or len(given) != len(made):
                wrong.append(index)
        if not wrong:
            return
        for index in wrong:
            model.graph.inputs[index].shape = None
            del assumed[index]


def _skip_identities(graph: ir.Graph) -> None:
    """Let outputs that are other values by another name be these: a condition most often."""
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
    """Return a constant from outside as a tensor, which is read where somebody asks."""
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
