"""A bundle compiled for the reference evaluator."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from narrowpass.errors import BackendError, UsageError
from narrowpass.runtime.backend import CompileOptions, Feeds, NodePlan, NodeTime, Outputs, Program
from narrowpass.runtime.requests import (
    check_kept,
    check_targets,
    choose_method,
    choose_outputs,
    write_outputs,
)
from narrowpass_ir.arguments import count_of
from narrowpass_ir.data.feeds import FeedChecker
from narrowpass_ir.verify import Signature
from narrowpass_reference._evaluator import Evaluator, Value
from narrowpass_reference._graph import conform, constant_array, create_evaluator, fresh
from narrowpass_reference.threads import blas_threads

if TYPE_CHECKING:
    from narrowpass.bundle import Bundle


@dataclass(frozen=True)
class _Method:
    """One method, ready to run.

    Attributes:
        evaluator: runs the nodes.
        constants: initializers by name, most of them views of mapped weights.
        checker: what may be fed.
        outputs: names of the outputs, in order.
        readable: types of the outputs and of the values that were kept, by name.
        known: names of all values of the graph, for messages.
        plans: where the nodes run, those of subgraphs included.
    """

    evaluator: Evaluator
    constants: Mapping[str, Value]
    checker: FeedChecker
    outputs: tuple[str, ...]
    readable: Mapping[str, ir.TypeProtocol | None]
    known: frozenset[str]
    plans: tuple[NodePlan, ...]

    def evaluate(
        self, feeds: Mapping[str, Value], wanted: Sequence[str], seconds: list[float] | None = None
    ) -> dict[str, Value]:
        """Run the nodes on feeds that were checked."""
        # numpy checks indices before it uses them: others may write to a feed in between.
        own = {
            name: value.copy()
            if isinstance(value, np.ndarray) and value.dtype.kind in "iu"
            else value
            for name, value in feeds.items()
        }
        # Division by zero, overflow and NaN follow IEEE 754: no reason to warn.
        with np.errstate(all="ignore"):
            return self.evaluator.evaluate(
                {**self.constants, **own}, frozenset(wanted), seconds=seconds
            )


class ReferenceProgram(Program):
    """Runs methods with onnx's reference evaluator. Several threads may run it at once.

    Slow by design: it is the oracle for other backends. `CompileOptions.threads` is the most that
    numpy's matmuls use.
    """

    def __init__(self, bundle: Bundle, options: CompileOptions) -> None:
        self._methods = {
            name: _compile(name, model, options.keep) for name, model in bundle.methods.items()
        }
        self._signatures = {name: Signature.of(model) for name, model in bundle.methods.items()}
        self._closed = False
        self._threads = options.threads
        known = frozenset().union(*(method.known for method in self._methods.values()))
        check_kept(options.keep, known)

    @property
    def methods(self) -> Sequence[str]:
        """The names of the methods, in the order of the bundle."""
        return tuple(self._methods)

    def signature(self, method: str = "main") -> Signature:
        """Return the inputs and outputs of a method; see `Program.signature`."""
        self._check_open()
        return choose_method(self._signatures, method)[1]

    def run(
        self,
        feeds: Feeds,
        method: str = "main",
        outputs: Sequence[str] | None = None,
        out: Outputs | None = None,
    ) -> Outputs:
        """Run a method; see `Program.run`.

        Results have exactly the dtypes that the model declares and share memory with nothing.
        Sequences are lists, strings are object arrays of `str`, an empty optional is None.
        """
        name, chosen = self._choose(method)
        wanted = choose_outputs(name, outputs, chosen.outputs, chosen.readable, chosen.known)
        targets = {} if out is None else out
        check_targets(name, targets, wanted)
        feeds = chosen.checker.check(feeds)
        results = self._evaluate(name, chosen, feeds, wanted)
        values = {
            output: conform(results[output], chosen.readable[output], output) for output in wanted
        }
        given = {name: fresh(value) for name, value in values.items() if name not in targets}
        given |= write_outputs(values, targets)
        return {name: given[name] for name in wanted}

    def explain(self) -> list[NodePlan]:
        """Report for each node, those of subgraphs included, what runs it."""
        self._check_open()
        return [plan for method in self._methods.values() for plan in method.plans]

    def profile(self, feeds: Feeds, method: str = "main", runs: int = 5) -> list[NodeTime]:
        """Run a method `runs` times and report the median time of each node of its graph.

        A node with subgraphs, or that calls a function, stands for what runs in it.

        Raises:
            UsageError: an unknown method, or `runs` below 1.
            DataError: feeds that do not fit the method's inputs.
            BackendError: the computation failed.
        """
        name, chosen = self._choose(method)
        runs = count_of(runs, "`runs`")
        feeds = chosen.checker.check(feeds)
        rows: list[list[float]] = []
        for _ in range(runs):
            seconds: list[float] = []
            self._evaluate(name, chosen, feeds, chosen.outputs, seconds)
            rows.append(seconds)
        return [
            NodeTime(
                node=proto.name or next(iter(proto.output), ""),
                op_type=f"{proto.domain}.{proto.op_type}" if proto.domain else proto.op_type,
                kernel="onnx.reference",
                seconds=statistics.median(times),
            )
            for proto, times in zip(chosen.evaluator.nodes_, zip(*rows, strict=True), strict=True)
        ]

    def stats(self) -> dict[str, Any]:
        """Return the counts of methods, nodes and initializers, and the bytes of the latter.

        The bytes are those of arrays, of which most are views of mapped files: an initializer
        that several methods share is counted once for each.
        """
        self._check_open()
        arrays = [array for method in self._methods.values() for array in method.constants.values()]
        return {
            "methods": len(self._methods),
            "nodes": sum(len(method.plans) for method in self._methods.values()),
            "initializers": len(arrays),
            "initializer_bytes": sum(int(array.nbytes) for array in arrays),
        }

    def close(self) -> None:
        """Free the evaluators and the views of the weights. A second call does nothing."""
        self._closed = True
        self._methods = {}

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("the program is closed; compile the bundle again to run it")

    def _choose(self, method: str) -> tuple[str, _Method]:
        methods = self._methods  # before the check: another thread may close the program after it
        self._check_open()
        return choose_method(methods, method)

    def _evaluate(
        self,
        name: str,
        method: _Method,
        feeds: Mapping[str, Any],
        wanted: Sequence[str],
        seconds: list[float] | None = None,
    ) -> dict[str, Value]:
        try:
            with blas_threads(self._threads):
                return method.evaluate(feeds, wanted, seconds)
        except BackendError as error:
            raise BackendError(f"method {name!r}: {error}") from error


def _compile(name: str, model: ir.Model, keep: Sequence[str]) -> _Method:
    graph = model.graph
    values = {value.name: value for value in (*graph.inputs, *graph.initializers.values())}
    values.update((value.name, value) for node in graph for value in node.outputs)
    outputs = tuple(value.name or "" for value in graph.outputs)
    kept = [value for value in keep if value in values]
    readable = {value: values[value].type for value in kept}
    readable.update((value.name or "", value.type) for value in graph.outputs)
    try:
        evaluator = create_evaluator(
            graph,
            [value.name or "" for value in graph.inputs],
            outputs,
            model.opset_imports,
            model.functions,
        )
        constants = {key: constant_array(value) for key, value in graph.initializers.items()}
    except BackendError as error:
        raise BackendError(f"method {name!r}: {error}") from error
    return _Method(
        evaluator=evaluator,
        constants=constants,
        checker=FeedChecker.of(graph, name),
        outputs=outputs,
        readable=readable,
        known=frozenset(value for value in values if value),
        plans=tuple(_plan(name, node, model) for node in graph.all_nodes()),
    )


def _plan(method: str, node: ir.Node, model: ir.Model) -> NodePlan:
    dtype = node.outputs[0].dtype if node.outputs else None
    return NodePlan(
        method=method,
        node=node.name or next((value.name for value in node.outputs if value.name), ""),
        op_type=f"{node.domain}.{node.op_type}" if node.domain else node.op_type,
        dtype="" if dtype is None else dtype.name.lower(),
        partition=None,
        kernel="function body" if node.op_identifier() in model.functions else "onnx.reference",
    )
