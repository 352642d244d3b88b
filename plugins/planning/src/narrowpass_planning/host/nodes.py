"""Nodes that run on the host, outside of partitions, and units of them."""

from __future__ import annotations

import operator
import time
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from narrowpass.errors import BackendError
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.graph.op import Op
from narrowpass_planning.host import kernels
from narrowpass_planning.host.control_flow import ControlFlow
from narrowpass_planning.host.evaluators import Evaluate, Evaluator
from narrowpass_planning.plan.executor import Pool
from narrowpass_planning.plan.shapes import ShapeNode, Shapes
from narrowpass_planning.plan.step import Times
from narrowpass_reference import blas_threads

if TYPE_CHECKING:
    from narrowpass_reference import NodeEvaluator

Array = np.ndarray[Any, Any]


_MULTIPLYING = {"Einsum", "GRU", "Gemm", "LSTM", "MatMul", "RNN", "SVMClassifier"}


class HostNode:
    """A node that numpy, another backend or the reference evaluator runs.

    Args:
        op: the operation, of one node.
        facts: of its graph.
        model: has the operator sets and functions.
        evaluate: returns what runs a node without a numpy kernel; None for the reference evaluator.

    Attributes:
        name: the node's.
        operands: names of its inputs; empty for absent ones.
        inputs: names of the values that it reads, those read in subgraphs included.
        outputs: names of its outputs.
        kernel: what runs it, for `explain`.
        native: whether that is a numpy kernel.
    """

    _evaluator: Evaluator | NodeEvaluator  # where there is no numpy kernel

    def __init__(
        self, op: Op, facts: Facts, model: ir.Model, evaluate: Evaluate | None = None
    ) -> None:
        node = op.nodes[0]
        self.name = node.name or next((v.name for v in op.outputs if v.name), "")
        self.operands = tuple("" if value is None else value.name or "" for value in op.inputs)
        self.outputs = tuple(value.name for value in op.outputs if value.name)
        self._kind = op.kind
        self._results = tuple(value.name or "" for value in op.outputs)
        self._function = kernels.kernel_for(op, facts)
        self.native = self._function is not None
        self._multiplies = op.kind in _MULTIPLYING
        if self._function is not None:
            self.kernel = f"numpy {op.kind}"
            self.inputs = tuple(dict.fromkeys(name for name in self.operands if name))
            return
        other = None if evaluate is None else evaluate(node, model)
        if other is not None:
            self._evaluator, self.kernel, self.inputs = other, other.kernel, other.inputs
            self._multiplies = False  # with threads of its own
            return
        # Few models need onnx's evaluator: 15 MB of each process that imports it.
        from narrowpass_reference import NodeEvaluator

        self._evaluator = evaluator = NodeEvaluator([node], model)
        self.kernel = "onnx.reference"
        self._multiplies = True  # it may: nobody knows
        known = facts.constants() if evaluator.defaults else {}
        fed = [name for name in evaluator.defaults if name not in known]
        self.inputs = (*evaluator.inputs, *fed)

    def run(self, values: dict[str, Any], shapes: Shapes, pool: Pool) -> None:
        """Run the node; its outputs go to `values`, and their shapes to `shapes`.

        The caller has numpy ignore floating-point errors.

        Raises:
            BackendError: it fails; the message names it.
        """
        if self._multiplies:
            with blas_threads(pool.threads):
                self._run(values, shapes)
        else:
            self._run(values, shapes)

    def _run(self, values: dict[str, Any], shapes: Shapes) -> None:
        if self._function is None:
            outputs = self._evaluate(
                {n: values[n] if n in values else shapes.value(n) for n in self.inputs}
            )
            for name, value in outputs.items():
                values[name] = value
                if isinstance(value, np.ndarray):
                    shapes.shapes[name] = value.shape
            return
        given = [
            values[n] if n in values else shapes.value(n) if n else None for n in self.operands
        ]
        for name, array in zip(self._results, self._computed(self._function, given), strict=True):
            if name:
                values[name] = array
                if isinstance(array, np.ndarray):  # not a sequence
                    shapes.shapes[name] = array.shape

    def _computed(self, function: kernels.Kernel, given: Sequence[Any]) -> Sequence[Array]:
        """Return the outputs of the kernel for its operands in order; None for absent ones."""
        try:
            output = function(*given)
            results = (output,) if type(output) is np.ndarray else kernels.as_results(output)
        except kernels.FAILURES as error:
            raise BackendError(f"node {self.name!r} ({self._kind}) failed: {error}") from error
        if len(results) != len(self._results):  # more than the operator has, "" among them
            raise BackendError(
                f"node {self.name!r} ({self._kind}) names {len(self._results)} outputs, and the "
                f"operator has {len(results)}"
            )
        return results

    def _evaluate(self, given: Mapping[str, Any]) -> dict[str, Any]:
        return self._evaluator.run({name: _own(value) for name, value in given.items()})

    def evaluate(self, given: Sequence[Any]) -> Sequence[Array]:
        """Run the node on its operands in order; None for absent ones."""
        if self._function is None:
            values = dict(zip(self.operands, given, strict=True))
            outputs = self._evaluate({name: value for name, value in values.items() if name})
            return [np.asarray(outputs[name], order="C") for name in self.outputs]
        with np.errstate(all="ignore"):
            results = zip(self._results, self._computed(self._function, given), strict=True)
            return [np.asarray(array, order="C") for name, array in results if name]


def _own(value: Any) -> Any:
    """Return a copy of what may be indices: numpy checks them before it uses them.

    They may be a feed, which others may write to in between.
    """
    return value.copy() if isinstance(value, np.ndarray) and value.dtype.kind in "iu" else value


HostItem = HostNode | ControlFlow | ShapeNode


class HostUnit:
    """Operations that the backend does not support, run node by node on the host.

    Args:
        items: nodes and shape arithmetic, in order.
        outputs: names of the values that other units read.

    Attributes:
        items: nodes and shape arithmetic, in order.
        outputs: names of the values that other units read.
    """

    def __init__(self, items: Sequence[HostItem], outputs: tuple[str, ...]) -> None:
        self.items = list(items)
        self.outputs = outputs
        # What follows from values of earlier units is evaluated where these have changed.
        computed = {
            name for item in items if not isinstance(item, ShapeNode) for name in item.outputs
        }
        self._early: list[ShapeNode] = []
        self._rest: list[HostItem] = []
        for item in items:
            if isinstance(item, ShapeNode) and computed.isdisjoint(item.inputs):
                self._early.append(item)
                continue
            self._rest.append(item)
            computed.update(item.outputs)
        self._numpy = any(isinstance(item, HostNode) for item in self._rest)
        own = {name for item in self._early for name in item.outputs}
        self._sizes = _read([item for item in self._early if item.by_shape], own)
        self._values = _read([item for item in self._early if not item.by_shape], own)
        self._known: tuple[list[Any], list[Any]] | None = None

    @property
    def computes(self) -> bool:
        """Whether there is more than shape arithmetic that earlier units decide."""
        return bool(self._rest)

    @property
    def reads(self) -> set[str]:
        """Names of the inputs of the nodes, values computed within the unit included."""
        return {name for item in self.items for name in item.inputs}

    def run(
        self,
        values: dict[str, Any],
        shapes: Shapes,
        pool: Pool,
        out: Mapping[str, Any],
        times: Times | None,
    ) -> None:
        """Run all nodes; their results go to `values`, the shapes of these to `shapes`."""
        if self._early:
            self._update(shapes)
        if not self._rest:
            return
        if not self._numpy:
            self._run(values, shapes, pool, times)
            return
        with np.errstate(all="ignore"):
            self._run(values, shapes, pool, times)

    def _run(self, values: dict[str, Any], shapes: Shapes, pool: Pool, times: Times | None) -> None:
        for item in self._rest:
            if isinstance(item, ShapeNode):
                item.update(shapes)
                continue
            start = 0.0 if times is None else time.perf_counter()
            item.run(values, shapes, pool)
            if times is not None:
                times.setdefault(item, []).append(time.perf_counter() - start)

    def _update(self, shapes: Shapes) -> None:
        """Evaluate shape arithmetic, unless nothing that it reads has changed."""
        known = self._known
        sizes = [shapes.shape(name) for name in self._sizes]
        values = [shapes.value(name) for name in self._values]
        if known is not None and sizes == known[0] and all(map(operator.is_, values, known[1])):
            return
        self._known = None
        for item in self._early:
            item.update(shapes)
        self._known = sizes, values


def _read(items: Sequence[ShapeNode], own: Collection[str]) -> tuple[str, ...]:
    """Return the names of the inputs of items that are not outputs of these, each once."""
    names = [name for item in items for name in item.inputs if name and name not in own]
    return tuple(dict.fromkeys(names))
