"""onnx's reference evaluator, with a run loop of ours: named errors, times, and freed values."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpFunction, OpFunctionContextDependant, RuntimeContextError

from narrowpass.errors import BackendError
from narrowpass_reference.operators.replacing import replacement

Value = Any
"""What runs through the evaluator: an array, a list of arrays, or None."""

_LONGEST_CAUSE = 400


class Evaluator(ReferenceEvaluator):
    """Runs a graph, a subgraph or a function body; the base class creates those within it alike.

    Raises:
        BackendError: at construction, a node that has no implementation or unsupported
            attributes; when run, a node that fails. The message names the node and the cause.
    """

    def _init(self) -> None:
        super()._init()
        self._dead_after = _dead_values(self.nodes_, frozenset(self.output_names_))

    def _load_impl(self, node: onnx.NodeProto, input_types: Any = None) -> Callable[..., Any]:
        try:
            ours = replacement(node.domain, node.op_type, self.opsets.get(node.domain, 0))
            found = ours or super()._load_impl(node, input_types)
        except RuntimeContextError:
            # Types known when it runs are exact; declared ones may lack ranks.
            found = functools.partial(_ContextFunction, parent=self)
        except BackendError:
            raise
        except Exception as error:  # onnx's lookup raises whatever it meets
            raise BackendError(
                f"{describe(node)} has no implementation in the reference evaluator: "
                f"{root_cause(error)}"
            ) from error
        return functools.partial(_instantiate, found)

    def find(
        self, node: onnx.NodeProto, input_types: Sequence[onnx.TypeProto] | None = None
    ) -> Callable[..., Any]:
        """Find what implements `node`, without creating it.

        Args:
            node: the node.
            input_types: types of its inputs, which the bodies of some functions depend on.

        Raises:
            BackendError: nothing does.
        """
        return self._load_impl(node, input_types)

    def run(
        self,
        output_names: Sequence[str] | None,
        feed_inputs: dict[str, Value],
        attributes: dict[str, Any] | None = None,
        *_: object,
        **__: object,
    ) -> list[Value]:
        """Run as the operators with subgraphs and the function calls ask for it."""
        wanted = self.output_names_ if output_names is None else output_names
        results = self.evaluate(feed_inputs, frozenset(wanted), attributes)
        return [results[name] for name in wanted]

    def evaluate(
        self,
        values: Mapping[str, Value],
        wanted: Collection[str],
        attributes: Mapping[str, Any] | None = None,
        seconds: list[float] | None = None,
    ) -> dict[str, Value]:
        """Run all nodes.

        Args:
            values: inputs, initializers and captured values by name.
            wanted: values to keep besides the outputs; others are freed after their last use.
            attributes: of the function call whose body this is.
            seconds: the time of each node is appended to it.

        Returns:
            At least the outputs and `wanted`, by name.
        """
        results: dict[str, Value] = {"": None, **values}
        # An own initializer hides an outer value; an input that was fed overrides it.
        fed = values.keys() & set(self.input_names_)
        results.update((k, value) for k, value in self.rt_inits_.items() if k not in fed)
        for index, node in enumerate(self.rt_nodes_):
            start = time.perf_counter()
            self._step(node, results, attributes)
            if seconds is not None:
                seconds.append(time.perf_counter() - start)
            for name in self._dead_after[index]:
                if name not in wanted:
                    del results[name]
        return results

    def _step(
        self, node: Any, results: dict[str, Value], attributes: Mapping[str, Any] | None
    ) -> None:
        missing = [name for name in node.input if name not in results]
        if missing:
            raise BackendError(
                f"{describe(node.onnx_node)} reads {missing[0]!r}, which nothing before it computes"
            )
        inputs = [results[name] for name in node.input]
        if isinstance(node, OpFunction):
            # A call may leave trailing inputs out; onnx's wants as many as the body has.
            formals = getattr(node.impl_, "input_names", inputs)
            inputs.extend([None] * (len(formals) - len(inputs)))
        options: dict[str, Any] = {}
        if node.has_linked_attribute:
            options["linked_attributes"] = attributes
        if node.need_context():
            options["context"] = results
        try:
            outputs = node.run(*inputs, **options)
        except BackendError:
            raise
        except Exception as error:  # numpy code of onnx: it raises what it meets
            raise BackendError(
                f"{describe(node.onnx_node)} failed in the reference evaluator: "
                f"{root_cause(error)}; its inputs: {_describe_inputs(node.input, inputs)}"
            ) from error
        results.update(zip(node.output, outputs, strict=False))
        results[""] = None  # what an input that is left out reads


class _ContextFunction(OpFunctionContextDependant):
    """A function whose body depends on its input types, taken from the inputs when it runs."""

    def _run(self, *inputs: Value, **kwargs: Any) -> Any:
        loaded = self.parent.find(self.onnx_node, [_type_of(value) for value in inputs])
        call = loaded(self.onnx_node, self.run_params)
        missing = [None] * (len(call.impl_.input_names) - len(inputs))
        return call.run(*inputs, *missing)


def _type_of(value: Value) -> onnx.TypeProto:
    if not isinstance(value, np.ndarray):
        return onnx.TypeProto()
    dtype = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
    return onnx.helper.make_tensor_type_proto(dtype, value.shape)


def _instantiate(found: Callable[..., Any], node: onnx.NodeProto, run_params: Any) -> Any:
    try:
        return found(node, run_params)
    except BackendError:
        raise
    except Exception as error:  # constructors of onnx raise what they meet
        raise BackendError(
            f"{describe(node)} cannot be set up in the reference evaluator: {root_cause(error)}"
        ) from error


def _dead_values(
    nodes: Sequence[onnx.NodeProto], kept: Collection[str]
) -> tuple[tuple[str, ...], ...]:
    """Return, for each node, the results that nothing reads after it."""
    last: dict[str, int] = {}
    computed: set[str] = set()
    for index, node in enumerate(nodes):
        computed.update(node.output)
        for name in (*_reads(node), *node.output):
            last[name] = index
    dead: list[list[str]] = [[] for _ in nodes]
    for name in computed - set(kept) - {""}:
        dead[last[name]].append(name)
    return tuple(map(tuple, dead))


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that a node and its subgraphs mention: at least those that they read."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            yield from (output.name for output in graph.output)
            for inner in graph.node:
                yield from _reads(inner)


def describe(node: onnx.NodeProto) -> str:
    """Name a node for an error message; one without a name, by its outputs."""
    operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    if node.name:
        return f"node {node.name!r} ({operator})"
    return f"the {operator} node that computes {next(iter(node.output), '')!r}"


def root_cause(error: BaseException) -> str:
    """Return the first line of the innermost error: the evaluator wraps what went wrong."""
    while error.__cause__ is not None:
        error = error.__cause__
    first = next(iter(str(error).strip().splitlines()), "")
    text = first if len(first) <= _LONGEST_CAUSE else first[:_LONGEST_CAUSE] + "..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _describe_inputs(names: Sequence[str], values: Sequence[Value]) -> str:
    pairs = zip(names, values, strict=False)
    parts = [f"{name} {_describe_value(value)}" for name, value in pairs if name]
    return ", ".join(parts) or "none"


def _describe_value(value: Value) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, list):
        return f"sequence of {len(value)}"
    return type(value).__name__
