"""Nodes that run outside of partitions, each as a function of arrays, and units of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass.errors import BackendError
from narrowpass.reference import NodeEvaluator
from narrowpass_xnn_cpu.host import kernels
from narrowpass_xnn_cpu.host.control_flow import ControlFlow
from narrowpass_xnn_cpu.lower.facts import Facts
from narrowpass_xnn_cpu.lower.op import Op
from narrowpass_xnn_cpu.native.pool import ThreadPool
from narrowpass_xnn_cpu.plan.partition import ShapeNode, Shapes
from narrowpass_xnn_cpu.plan.step import Times


class HostNode:
    """A node that numpy or the reference evaluator runs.

    Args:
        op: the operation, of one node.
        facts: of its graph.
        model: gives operator sets and functions.

    Attributes:
        name: the node's.
        operands: names of its inputs; empty for those left out.
        inputs: names of the values that it reads, those read in subgraphs included.
        outputs: names of the values that it makes.
        kernel: what runs it, for people.
        native: whether that is a kernel of ours.
    """

    def __init__(self, op: Op, facts: Facts, model: ir.Model) -> None:
        node = op.nodes[0]
        self.name = node.name or next((v.name for v in op.outputs if v.name), "")
        self.operands = tuple("" if value is None else value.name or "" for value in op.inputs)
        self.outputs = tuple(value.name for value in op.outputs if value.name)
        kernel = kernels.make(op, facts)
        self.native = kernel is not None
        if kernel is None:
            evaluator = NodeEvaluator([node], model)
            self.kernel = "onnx.reference"
            known = facts.constants() if evaluator.defaults else {}
            fed = [name for name in evaluator.defaults if name not in known]
            self.inputs = (*evaluator.inputs, *fed)
            self._run: Callable[[dict[str, Any]], dict[str, Any]] = lambda values: evaluator.run(
                {n: _own(value) for n, value in values.items()}
            )
            return
        self.kernel = f"numpy {op.kind}"
        self.inputs = tuple(dict.fromkeys(name for name in self.operands if name))
        names = [value.name or "" for value in op.outputs]

        def run(values: dict[str, Any]) -> dict[str, Any]:
            given = [values[name] if name else None for name in self.operands]
            try:
                with np.errstate(all="ignore"):
                    made = kernels.as_results(kernel(*given))
            except kernels.FAILURES as error:
                raise BackendError(f"node {self.name!r} ({op.kind}) failed: {error}") from error
            return {name: value for name, value in zip(names, made, strict=True) if name}

        self._run = run

    def run(self, values: dict[str, Any], pool: ThreadPool) -> dict[str, Any]:
        """Run the node on the values that `inputs` names.

        Raises:
            BackendError: it fails; the message names it.
        """
        return self._run(values)

    def evaluate(self, given: Sequence[Any]) -> Sequence[np.ndarray[Any, Any]]:
        """Run the node on its operands in order; None for those left out."""
        values = dict(zip(self.operands, given, strict=True))
        made = self._run({name: value for name, value in values.items() if name})
        return [np.asarray(made[name], order="C") for name in self.outputs]


def _own(value: Any) -> Any:
    """Give a copy of what may be indices: numpy checks them before it uses them.

    They may be a feed, which others may write to in between.
    """
    return value.copy() if isinstance(value, np.ndarray) and value.dtype.kind in "iu" else value


@dataclass
class HostUnit:
    """Operations that XNNPACK has not: run node by node.

    Attributes:
        items: nodes and shape arithmetic, in order.
        outputs: names of the values that other units read.
    """

    items: list[HostNode | ControlFlow | ShapeNode]
    outputs: tuple[str, ...]

    @property
    def reads(self) -> set[str]:
        """Names of the values that the nodes read, those that they make included."""
        return {name for item in self.items for name in item.inputs}

    def run(
        self,
        values: dict[str, Any],
        shapes: Shapes,
        pool: ThreadPool,
        out: Mapping[str, Any],
        times: Times | None,
    ) -> None:
        """Run all nodes; their results go to `values`, the shapes of these to `shapes`."""
        for item in self.items:
            if isinstance(item, ShapeNode):
                item.update(shapes)
                continue
            given = {
                name: values[name] if name in values else shapes.value(name) for name in item.inputs
            }
            start = time.perf_counter()
            made = item.run(given, pool)
            if times is not None:
                times.setdefault(item, []).append(time.perf_counter() - start)
            for name, value in made.items():
                values[name] = value
                if isinstance(value, np.ndarray):
                    shapes.shapes[name] = value.shape
