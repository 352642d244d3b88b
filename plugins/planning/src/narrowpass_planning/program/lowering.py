"""What a backend supplies: which operations it runs, and the steps that they become."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol

import onnx_ir as ir

from narrowpass.ir.inference import infer
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.memory.workspace import Workspace
from narrowpass_planning.partitioner.assigned import Assigned, OpT
from narrowpass_planning.plan.executor import Executor, Pool
from narrowpass_planning.plan.looping import Repeat
from narrowpass_planning.plan.partition import Partition
from narrowpass_planning.plan.shapes import ShapeNode

if TYPE_CHECKING:
    from narrowpass.runtime.meters import Meter


@dataclass(frozen=True)
class Source(Generic[OpT]):
    """What a partition is lowered from.

    Attributes:
        number: of the partition within its method.
        items: operations that the backend runs, and shape arithmetic, in order.
        outputs: values that are read outside of the partition.
        facts: of the graph.
        session: of the weights cache; None to pack for this method alone.
        workspace: the memory that it computes in.
    """

    number: int
    items: Sequence[OpT | ShapeNode]
    outputs: Sequence[ir.Value]
    facts: Facts
    session: Any
    workspace: Workspace


class StepMeter(Protocol):
    """A step that looks at a value where it lies."""

    def begin(self, meter: Meter, scratch: Any) -> None:
        """Let runs fill `meter` until `end`; `scratch` is what `Lowering.scratch` returned."""

    def end(self, meter: Meter) -> None:
        """Let runs fill `meter` no longer."""


class Lowering(abc.ABC, Generic[OpT]):
    """A backend's part of compiling: checks of operations, their steps, and the executor of these.

    What it does not run goes to numpy, or to the reference evaluator, with the reason.

    Attributes:
        executor: runs the steps.
        repeat: runs a bound partition many times in one call; None where each is a call.
    """

    executor: Executor
    repeat: Repeat | None = None

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
        """Return what is planned, in order: each node of the graph is of one operation.

        A backend overrides it to fuse nodes; here each is an operation by itself.

        Args:
            graph: the main graph, or a body of control flow.
            facts: what is known of it.
            model: gives operator sets and functions.
            version: returns the operator set of a node.
        """
        return [self.operation(node, version(node)) for node in graph]

    @abc.abstractmethod
    def reason(self, op: OpT, facts: Facts) -> str | None:
        """Return why an operation cannot be run; None where it can.

        Types are those of `Facts.dtype`; sizes may be unknown.
        """

    @abc.abstractmethod
    def lower(self, source: Source[OpT]) -> Partition:
        """Return the partition of operations that can be run.

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
        """Return the steps that look at values where they lie, by the value's name.

        Where there is none for a value, it is computed as an output when it is looked at.
        """
        return {}

    def observes(self, value: ir.Value) -> bool:
        """Return whether `lower` adds a step of `meters` for a value of `Facts.observed`."""
        return False

    def scratch(self, meters: Iterable[Meter], pool: Pool) -> Any:
        """Return scratch memory for `StepMeter.begin`."""
        return None

    def computed_in(self, node: ir.Node, entry: Assigned[OpT], kernel: str) -> str:
        """Return the dtype that a node is computed in, for `explain`; empty where not known."""
        dtype = node.outputs[0].dtype if node.outputs else None
        return "" if dtype is None else dtype.name.lower()

    def precision_note(self, node: ir.Node, precision: str) -> str:
        """Return what `explain` adds behind the precision of a step with narrow floats."""
        return ""
