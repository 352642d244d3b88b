"""The interface that a backend implements: which operations it supports, and their lowering."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol

import onnx_ir as ir

from narrowpass_ir.inference import infer
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.host.evaluators import Evaluate
from narrowpass_planning.memory.workspace import Workspace
from narrowpass_planning.partitioner import Assignment, OpT
from narrowpass_planning.plan.executor import Executor, Pool
from narrowpass_planning.plan.loop import NativeLoopFactory
from narrowpass_planning.plan.partition import Partition
from narrowpass_planning.plan.shapes import ShapeNode
from narrowpass_planning.stored.storage import StepStorage

if TYPE_CHECKING:
    from narrowpass.runtime.meters import Meter


@dataclass(frozen=True)
class Source(Generic[OpT]):
    """The operations of a partition before they are lowered.

    Attributes:
        number: of the partition within its method.
        items: operations that the backend supports, and shape arithmetic, in order.
        outputs: values that are read outside of the partition.
        facts: of the graph.
        session: of the weights cache; None to pack for this method alone.
        workspace: memory of intermediate values.
    """

    number: int
    items: Sequence[OpT | ShapeNode]
    outputs: Sequence[ir.Value]
    facts: Facts
    session: Any
    workspace: Workspace


class StepMeter(Protocol):
    """A step that updates meters from a value in place, without a copy."""

    def begin(self, meter: Meter, scratch: Any) -> None:
        """Update `meter` in each run until `end`; `scratch` is from `Lowering.scratch`."""

    def end(self, meter: Meter) -> None:
        """Stop updating `meter`."""


class Lowering(abc.ABC, Generic[OpT]):
    """The lowering of a backend: support checks, translation to steps, and their executor.

    Unsupported operations run in numpy, or where `evaluate` says, else in the reference evaluator,
    and are reported with the reason.

    Attributes:
        executor: runs the steps.
        repeat: returns a loop over a bound partition that is one call; None to call each iteration.
        evaluate: returns what runs an operation that numpy has no kernel of; see `evaluate_by`.
        storage: of steps, so that compiled methods can be stored; None to plan in each process.
    """

    executor: Executor
    repeat: NativeLoopFactory | None = None
    evaluate: Evaluate | None = None
    storage: StepStorage | None = None

    @abc.abstractmethod
    def operation(self, node: ir.Node, version: int) -> OpT:
        """Return the operation of one node, such as ``Op.of(node, version)``.

        Args:
            node: of any operator.
            version: of its operator set.
        """

    def operations(
        self, graph: ir.Graph, facts: Facts, model: ir.Model, version: Callable[[ir.Node], int]
    ) -> Sequence[OpT]:
        """Return the operations of a graph in order; each node belongs to one of them.

        A backend overrides it to fuse nodes; by default each node is an operation.

        Args:
            graph: the main graph, or a body of control flow.
            facts: its analysis.
            model: has the operator sets and functions.
            version: returns the operator set of a node.
        """
        return [self.operation(node, version(node)) for node in graph]

    @abc.abstractmethod
    def reason(self, op: OpT, facts: Facts) -> str | None:
        """Return the reason why an operation is not supported; None where it is.

        Types are those of `Facts.dtype`; sizes may be unknown.
        """

    @abc.abstractmethod
    def lower(self, source: Source[OpT]) -> Partition:
        """Lower supported operations to a partition.

        Raises:
            BackendError: weights cannot be packed, or attributes contradict each other; the message
                names the node.
        """

    def infer(self, model: ir.Model) -> None:
        """Infer types and shapes of a model in place; operators may be expanded to others.

        Raises:
            BackendError: an operator that nothing computes.
        """
        infer(model)

    def meters(self, partition: Partition) -> Mapping[str, StepMeter]:
        """Return the steps that measure values in place, by the value's name.

        Values without one are returned as outputs when they are observed.
        """
        return {}

    def observes(self, value: ir.Value) -> bool:
        """Return whether `lower` adds a step of `meters` for a value of `Facts.observed`."""
        return False

    def scratch(self, meters: Iterable[Meter], pool: Pool) -> Any:
        """Return scratch memory for `StepMeter.begin`."""
        return None

    def computed_in(self, node: ir.Node, entry: Assignment[OpT], kernel: str) -> str:
        """Return the dtype that a node is computed in, for `explain`; empty where not known."""
        dtype = node.outputs[0].dtype if node.outputs else None
        return "" if dtype is None else dtype.name.lower()

    def precision_note(self, node: ir.Node, precision: str) -> str:
        """Return a note of `explain` on the precision of a step with float16 or bfloat16."""
        return ""
