"""The verifier: rules that a model must keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from narrowpass_ir.verify._attributes import attribute_problems
from narrowpass_ir.verify._consumers import consumer_problems
from narrowpass_ir.verify._control_flow import CONTROL_FLOW, control_flow_problems
from narrowpass_ir.verify._functions import (
    Callee,
    call_problems,
    function_name,
    function_problems,
    recursion,
)
from narrowpass_ir.verify._initializers import initializer_problems
from narrowpass_ir.verify._operators import Operators, Types
from narrowpass_ir.verify._opsets import (
    normalized,
    opset_conflict,
    opset_problems,
    opset_versions,
    versions_anywhere,
)
from narrowpass_ir.verify._problems import Problems, node_label, value_label
from narrowpass_ir.verify._scopes import Scope
from narrowpass_ir.verify._types import type_text

_GRAPH = ir.AttributeType.GRAPH
_GRAPHS = ir.AttributeType.GRAPHS

# Files of IR versions up to this one list each initializer among the graph inputs too.
_INITIALIZERS_ARE_INPUTS = 3


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
