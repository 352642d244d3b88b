"""The verifier: rules that the structure of a model must keep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import onnx
import onnx_ir as ir

from narrowpass_ir.errors import VerificationError
from narrowpass_ir.verify._operators import (
    CONTROL_FLOW,
    Operators,
    Types,
    attribute_problems,
    control_flow_problems,
    node_label,
    normalized,
    opset_conflict,
    opset_problems,
    opset_versions,
    tensor_text,
    type_text,
    value_label,
    versions_anywhere,
)

_GRAPH = ir.AttributeType.GRAPH
_GRAPHS = ir.AttributeType.GRAPHS

# Files of IR versions up to this one list each initializer among the graph inputs too.
_INITIALIZERS_ARE_INPUTS = 3

_LIMIT = 20
"""Problems after which the search ends."""


def verify(model: ir.Model, *, unknown_operators: bool = False) -> None:
    """Check the structure of a model: the main graph, all nested graphs, all functions.

    Values are matched by identity and by name, since a file has names only. Operators are
    checked against the schemas of the imported opset versions; those of domains that onnx does
    not define, and deprecated ones, are let through. Types are checked where they are known.
    Weights are not read. The time is linear in the size of the model.

    Args:
        model: what is checked; not changed.
        unknown_operators: whether operators that onnx does not know, of domains that it defines,
            are let through too: some can be expanded.

    Raises:
        VerificationError: a rule is broken. ``problems`` has up to 20 sentences, each with
            the name of a node or value.
    """
    name = model.graph.name
    problems = Problems(f"the model {name!r}" if name else "the model")
    _Walk(model, problems, unknown_operators=unknown_operators).run()
    problems.finish()


@dataclass
class Problems:
    """What was found so far; past a limit the search ends, since the rest is mostly echo."""

    title: str
    found: list[str] = field(default_factory=list)

    def add(self, problem: str) -> None:
        """Note one broken rule.

        Raises:
            VerificationError: enough was found.
        """
        self.found.append(problem)
        if len(self.found) >= _LIMIT:
            self.finish()

    def finish(self) -> None:
        """End the search.

        Raises:
            VerificationError: something was found.
        """
        if not self.found:
            return
        count = len(self.found)
        amount = "1 problem" if count == 1 else f"{count} problems"
        if count >= _LIMIT:
            amount = f"at least {count} problems"
        listing = "".join(f"\n  - {problem}" for problem in self.found)
        raise VerificationError(f"{self.title} is invalid ({amount}):{listing}", tuple(self.found))


@dataclass(frozen=True)
class _Root:
    """The main graph or a function: what imports opsets and declares attributes.

    Attributes:
        opsets: versions by domain, ``""`` for the standard one.
        function: None for the main graph.
    """

    opsets: Mapping[str, int]
    function: ir.Function | None = None


class _Walk:
    """One traversal of a model, in the order in which a file holds it."""

    def __init__(self, model: ir.Model, problems: Problems, *, unknown_operators: bool) -> None:
        self._model = model
        self._unknown_operators = unknown_operators
        self._problems = problems
        self._operators = Operators()
        self._graphs: set[ir.Graph] = set()
        self._nodes: set[ir.Node] = set()
        self._values: list[ir.Value] = []
        self._input_count = 0
        self._calls: dict[Callee, dict[Callee, None]] = {}
        self._model_opsets = versions_anywhere(model)

    def run(self) -> None:
        model = self._model
        if not 1 <= model.ir_version <= onnx.IR_VERSION:
            self._problems.add(
                f"the model has IR version {model.ir_version}; known here are 1 to "
                f"{onnx.IR_VERSION}"
            )
        opsets = opset_versions(model)
        if not opsets:
            self._problems.add("the model imports no opset; set one in model.opset_imports")
        for problem in opset_problems(opsets):
            self._problems.add(problem)
        self._graph(Scope(model.graph, ""), _Root(opsets))
        for key, function in model.functions.items():
            self._function(key, function)
        cycle = recursion(self._calls)
        if cycle:
            path = " -> ".join(map(function_name, cycle))
            self._problems.add(f"functions call themselves: {path}; a function may not recur")
        for problem in consumer_problems(self._values, self._nodes, self._input_count):
            self._problems.add(problem)

    def _function(self, key: Callee, function: ir.Function) -> None:
        name = function_name(function.identifier())
        opsets = normalized(function.opset_imports)
        for problem in (*function_problems(key, function), *opset_problems(opsets)):
            self._problems.add(f"function {name!r}: {problem}")
        self._calls.setdefault(key, {})
        self._graph(Scope(function.graph, f" in function {name!r}"), _Root(opsets, function))

    def _graph(self, scope: Scope, root: _Root) -> None:
        graph = scope.graph
        if graph in self._graphs:
            self._problems.add(
                f"the graph {graph.name!r}{scope.where} is held in two places; clone it for one"
            )
            return
        self._graphs.add(graph)
        self._inputs(scope)
        self._initializers(scope)
        for node in graph:
            self._node(node, scope, root)
        for index, value in enumerate(graph.outputs):
            problem = scope.missing_output(value)
            if problem is None and not (value.graph is graph and value.is_graph_output()):
                problem = "is not marked as an output of its graph"
            if problem:
                label = repr(value.name) if value.name else str(index)
                self._problems.add(f"graph output {label}{scope.where}: {problem}")
        self._values.extend(scope.names.values())

    def _inputs(self, scope: Scope) -> None:
        graph, names = scope.graph, scope.names
        main = graph is self._model.graph
        for index, value in enumerate(graph.inputs):
            if not value.name:
                self._problems.add(f"graph input {index}{scope.where} has no name")
                continue
            problem = None
            producer = value.producer()
            if value.name in names:
                problem = "is defined twice"
            elif producer is not None:
                problem = f"is also computed by {node_label(producer)}"
            elif value.graph is not graph or not value.is_graph_input():
                problem = "is not marked as an input of its graph"
            elif main and value.type is None:
                problem = "has no type"
            if problem:
                self._problems.add(f"graph input {value.name!r}{scope.where} {problem}")
            names[value.name] = value

    def _initializers(self, scope: Scope) -> None:
        graph, names = scope.graph, scope.names
        for key, value in graph.initializers.items():
            found = list(initializer_problems(key, value))
            known = names.get(key)
            if known is not None and known is not value:
                found.append("has the name of a graph input, but is another value")
            if known is None and self._model.ir_version <= _INITIALIZERS_ARE_INPUTS:
                found.append(
                    f"is no graph input, as IR version {self._model.ir_version} demands; add it to "
                    f"the inputs, or raise the IR version to {_INITIALIZERS_ARE_INPUTS + 1}"
                )
            if value.graph is not graph or not value.is_initializer():
                found.append("is not marked as an initializer of its graph")
            for problem in found:
                self._problems.add(f"initializer {key!r}{scope.where} {problem}")
            names[key] = value

    def _node(self, node: ir.Node, scope: Scope, root: _Root) -> None:
        self._nodes.add(node)
        if node.graph is not scope.graph:
            self._say(node, scope, "is not marked as a node of its graph")
        inputs = self._node_inputs(node, scope)
        # Graphs of a node cannot see its outputs, so they come between.
        attributes = node.attributes.data
        if attributes:
            for problem in attribute_problems(attributes, root.function):
                self._say(node, scope, problem)
            self._nested(node, attributes, scope, root)
        outputs = self._node_outputs(node, scope)
        if not inputs and not outputs:
            self._say(node, scope, "has neither inputs nor outputs")
        self._operator(node, scope, root, inputs, outputs)

    def _node_inputs(self, node: ir.Node, scope: Scope) -> Types:
        names = scope.names
        types: list[str | None] = []
        for index, value in enumerate(node.inputs):
            if value is None:
                types.append("")
                continue
            if names.get(value.name or "") is not value:
                problem = scope.unresolved(value)
                if problem:
                    self._say(node, scope, f"input {index} {value_label(value)} {problem}")
            self._input_count += 1
            types.append(type_text(value.type))
        return tuple(types)

    def _node_outputs(self, node: ir.Node, scope: Scope) -> Types:
        names = scope.names
        nested = scope.enclosing is not None
        types: list[str | None] = []
        for index, value in enumerate(node.outputs):
            name = value.name
            if value.producer() is not node or value.index() != index:
                self._say(node, scope, f"output {index} {value_label(value)} has another producer")
            if name == "":
                types.append("")
                continue
            types.append(type_text(value.type))
            if name is None:
                self._say(node, scope, f"output {index} has no name")
                continue
            if nested or name in names:
                clash = scope.clash(name)
                if clash:
                    self._say(node, scope, f"output {name!r} {clash}")
            names[name] = value
        # A file does not hold trailing outputs that have no name.
        while types and types[-1] == "":
            types.pop()
        return tuple(types)

    def _nested(
        self, node: ir.Node, attributes: Mapping[str, ir.Attr], scope: Scope, root: _Root
    ) -> None:
        for key, attribute in attributes.items():
            kind = attribute.type
            if attribute.value is None or kind not in (_GRAPH, _GRAPHS):
                continue
            graphs = [attribute.value] if kind == _GRAPH else attribute.value
            for index, graph in enumerate(graphs):
                part = key if kind == _GRAPH else f"{key}[{index}]"
                where = f" in {part} of {node_label(node)}{scope.where}"
                self._graph(Scope(graph, where, scope), root)

    def _operator(
        self, node: ir.Node, scope: Scope, root: _Root, inputs: Types, outputs: Types
    ) -> None:
        domain = node.domain
        version = root.opsets.get(domain)
        if version is None:
            shown = domain or "ai.onnx"
            self._say(node, scope, f"is of the domain {shown!r}, whose opset is not imported")
            return
        functions = self._model.functions
        if functions and (callee := node.op_identifier()) in functions:
            if root.function is not None:
                self._calls.setdefault(root.function.identifier(), {})[callee] = None
            for problem in call_problems(functions[callee], len(inputs), len(outputs)):
                self._say(node, scope, problem)
            return
        operator = self._operators.find(domain, node.op_type, version)
        if operator is None:
            return
        if isinstance(operator, str):
            if not self._unknown_operators:
                self._say(node, scope, f"is unknown: {operator}")
            return
        attributes = node.attributes.data
        found = operator.signature_problems(inputs, outputs)
        if attributes or operator.required:
            found = (*found, *operator.attribute_problems(attributes, outputs))
        if operator.name in CONTROL_FLOW:
            found = (*found, *control_flow_problems(node, inputs, outputs))
        if root.function is not None:
            expected = self._model_opsets.get(domain)
            found = (*found, *opset_conflict(domain, node.op_type, version, expected))
        for problem in found:
            self._say(node, scope, problem)

    def _say(self, node: ir.Node, scope: Scope, problem: str) -> None:
        self._problems.add(f"{node_label(node)}{scope.where}: {problem}")


@dataclass(frozen=True)
class Scope:
    """The names that one graph defines up to the current node.

    Attributes:
        graph: the graph.
        where: the place of the graph for messages, empty for the main graph.
        names: what it defines so far.
        enclosing: the scope of the graph around it, None for the main graph or a function.
    """

    graph: ir.Graph
    where: str
    enclosing: Scope | None = None
    names: dict[str, ir.Value] = field(default_factory=dict)

    def find(self, name: str) -> tuple[ir.Value, Scope] | None:
        """Return the value that a name means here, and the scope that defines it."""
        scope: Scope | None = self
        while scope is not None:
            value = scope.names.get(name)
            if value is not None:
                return value, scope
            scope = scope.enclosing
        return None

    def clash(self, name: str) -> str | None:
        """Return why a node may not name an output so; None if it may."""
        found = self.find(name)
        if found is None:
            return None
        other, scope = found
        kind = "is defined twice" if scope is self else "hides a value of an enclosing graph"
        return f"{kind}: also {_origin(other)}{scope.where}"

    def unresolved(self, value: ir.Value) -> str | None:
        """Return why a value cannot be used here; None if it can."""
        if not value.name:
            return "cannot be used, since it has no name"
        found = self.find(value.name)
        if found is not None:
            other, scope = found
            if other is value:
                return None
            return (
                "is another value than the one that its name means there, which is "
                f"{_origin(other)}{scope.where}"
            )
        home = value.graph
        producer = value.producer()
        if home is not None and not self._encloses(home):
            label = f"the graph {home.name!r}" if home.name else "another graph"
            return f"belongs to {label}, which cannot be seen there"
        if producer is None:
            return "is defined by nothing: no graph input, initializer or output of a node"
        if home is None:
            return f"is computed by {node_label(producer)}, which is in no graph"
        return f"is used before {node_label(producer)} computes it; sort the graph topologically"

    def missing_output(self, value: ir.Value) -> str | None:
        """Return why a value cannot be an output of this graph; None if it can."""
        name = value.name
        if not name:
            return "has no name"
        known = self.names.get(name)
        if known is not None:
            return None if known is value else "is not the value that has this name in the graph"
        found = self.find(name)
        if found is not None and found[0] is value:
            return "is a value of an enclosing graph; put an Identity node between"
        return "is produced by nothing in the graph"

    def _encloses(self, graph: ir.Graph) -> bool:
        scope: Scope | None = self
        while scope is not None:
            if scope.graph is graph:
                return True
            scope = scope.enclosing
        return False


def _origin(value: ir.Value) -> str:
    producer = value.producer()
    if producer is not None:
        return f"an output of {node_label(producer)}"
    return "an initializer" if value.is_initializer() else "a graph input"


def initializer_problems(key: str, value: ir.Value) -> Iterator[str]:
    """Yield what is wrong with an initializer that its graph lists as `key`."""
    if value.name != key:
        yield f"is named {value.name!r} in its own field"
    if value.producer() is not None:
        yield "is also the output of a node"
    tensor = value.const_value
    if tensor is None:
        yield "has no const_value; set it, or remove it from the initializers"
        return
    dtype = tensor_text(tensor.dtype)
    if dtype is None:
        yield "has a tensor of no defined type"
    declared = type_text(value.type)
    if declared is not None and dtype is not None and declared != dtype:
        yield f"is declared as {declared}, but its tensor is {dtype}"
    shape = value.shape
    if shape is not None and not _fits(shape, tensor.shape):
        yield f"is declared with the shape {shape}, but its tensor has {tensor.shape}"


def _fits(declared: ir.Shape, actual: ir.ShapeProtocol) -> bool:
    if declared is actual or declared == actual:
        return True
    if len(declared) != len(actual):
        return False
    return all(
        not isinstance(dim, int) or dim == size for dim, size in zip(declared, actual, strict=True)
    )


Callee = tuple[str, str, str]
"""A function's domain, name and overload."""


def function_name(identifier: Callee) -> str:
    """Name a function as its callers do."""
    domain, name, overload = identifier
    return f"{domain}.{name}" + (f":{overload}" if overload else "")


def function_problems(key: Callee, function: ir.Function) -> Iterator[str]:
    """Yield what is wrong with a function that its model lists as `key`, apart from its nodes."""
    if key != function.identifier():
        yield f"is listed as {function_name(key)!r}; list it by its own name"
    if not function.name:
        yield "has no name"
    for name in function.graph.initializers:
        yield f"has an initializer {name!r}; functions have none, use a Constant node"
    seen: set[ir.Value] = set()
    for value in function.outputs:
        if value in seen:
            yield f"lists the output {value_label(value)} twice"
        seen.add(value)


def call_problems(function: ir.Function, inputs: int, outputs: int) -> Iterator[str]:
    """Yield what is wrong with a call that has so many inputs and outputs."""
    for what, count, most in (
        ("inputs", inputs, len(function.inputs)),
        ("outputs", outputs, len(function.outputs)),
    ):
        if count > most:
            name = function_name(function.identifier())
            yield f"has {count} {what}, but the function {name!r} has {most}"


def recursion(calls: Mapping[Callee, Iterable[Callee]]) -> list[Callee] | None:
    """Return one cycle of calls, its first function once more at the end; None if there is none."""
    finished: set[Callee] = set()
    for root in calls:
        if root in finished:
            continue
        # An explicit stack: chains of calls may be deeper than Python's.
        path = {root: iter(calls[root])}
        while path:
            current, callees = next(reversed(path.items()))
            callee = next(callees, None)
            if callee is None:
                finished.add(current)
                del path[current]
            elif callee in path:
                members = list(path)
                return [*members[members.index(callee) :], callee]
            elif callee not in finished:
                path[callee] = iter(calls.get(callee, ()))
    return None


def consumer_problems(
    values: Collection[ir.Value], nodes: AbstractSet[ir.Node], inputs: int
) -> Iterator[str]:
    """Yield which values list wrong consumers.

    Args:
        values: all values of the model.
        nodes: all nodes of the model.
        inputs: how many inputs these nodes have, left out ones apart.
    """
    # Uses are distinct: where all are right, and are as many as the inputs, none is missing.
    listed = 0
    for value in values:
        for node, index in value.uses():
            used = node.inputs
            if index < len(used) and used[index] is value and node in nodes:
                listed += 1
            else:
                listed = -1
                break
        if listed < 0:
            break
    if listed == inputs:
        return
    places = Counter(value for node in nodes for value in node.inputs if value is not None)
    for value in values:
        yield from _value_problems(value, nodes, places[value])


def _value_problems(value: ir.Value, nodes: AbstractSet[ir.Node], expected: int) -> Iterator[str]:
    label = f"value {value_label(value)}"
    right = 0
    for node, index in value.uses():
        if index >= len(node.inputs) or node.inputs[index] is not value:
            yield f"{label} lists {node_label(node)} as a consumer, but is not its input {index}"
        elif node not in nodes:
            yield (
                f"{label} is still consumed by {node_label(node)}, which is not in the model; "
                "remove nodes with graph.remove(node, safe=True)"
            )
        else:
            right += 1
    if right < expected:
        yield f"{label} is an input in {expected} places, but lists {right} of them as uses"
