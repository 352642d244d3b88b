"""How XNNPACK and kernels of our own run partitions: the lowering of `xnn-cpu`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from narrowpass.framework.classify import ACCUMULATE
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.partitioner.assignment import Assignment, Target
from narrowpass_planning.plan.executor import Pool
from narrowpass_planning.plan.partition import Partition
from narrowpass_planning.program.lowering import Lowering, Source, StepMeter
from narrowpass_xnn_cpu.lower import rules
from narrowpass_xnn_cpu.lower.fusion.operations import operations
from narrowpass_xnn_cpu.lower.op import Op
from narrowpass_xnn_cpu.lower.steps import Observe
from narrowpass_xnn_cpu.lower.unit import UnitLowering
from narrowpass_xnn_cpu.lowered.packed import PackedStep
from narrowpass_xnn_cpu.native import cpu
from narrowpass_xnn_cpu.native.executor import EXECUTOR
from narrowpass_xnn_cpu.native.looping import NativeLoop
from narrowpass_xnn_cpu.native.meter import scratch_for

if TYPE_CHECKING:
    from narrowpass.runtime.meters import Meter


class XnnLowering(Lowering[Op]):
    """Lowers operations to steps of XNNPACK and of kernels of our own.

    Args:
        winograd: whether convolutions may be computed by Winograd's algorithm.
    """

    executor = EXECUTOR
    repeat = NativeLoop

    def __init__(self, *, winograd: bool = True) -> None:
        self._winograd = winograd

    def infer(self, model: ir.Model) -> None:
        """Infer types, and write operators of transformers as those that there are rules for."""
        rules.expand_checked(model)

    def operation(self, node: ir.Node, version: int) -> Op:
        """Return the operation of one node."""
        return Op.of(node, version)

    def operations(
        self, graph: ir.Graph, facts: Facts, model: ir.Model, version: Callable[[ir.Node], int]
    ) -> Sequence[Op]:
        """Return the operations of a graph, fused as far as kernels take that."""
        return operations(graph, facts, model, version)

    def reason(self, op: Op, facts: Facts) -> str | None:
        """Return why an operation has no native kernel; None where it has."""
        return rules.reason(op, facts)

    def lower(self, source: Source[Op]) -> Partition:
        """Return the partition of these operations."""
        return UnitLowering(source, winograd=self._winograd).pack()

    def observes(self, value: ir.Value) -> bool:
        """Return whether a value lies somewhere as float32 elements while the method runs."""
        return value.producer() is not None and value.dtype == ir.DataType.FLOAT

    def meters(self, partition: Partition) -> Mapping[str, StepMeter]:
        """Return the meters that the tape fills, by the value's name."""
        found = {}
        for step in partition.steps:
            if isinstance(step, PackedStep) and isinstance(step.op.computation, Observe):
                found[step.op.computation.value] = step.packed
        return found

    def scratch(self, meters: Iterable[Meter], pool: Pool) -> Any:
        """Return scratch memory that is large enough for each of some meters."""
        return scratch_for(meters, pool)

    def computed_in(self, node: ir.Node, entry: Assignment[Op], kernel: str) -> str:
        """Return the dtype of a node: bytes where floats are only how it is written."""
        dtype = node.outputs[0].dtype if node.outputs else None
        if dtype == ir.DataType.FLOAT and entry.target is Target.NATIVE:
            operators = {each.op_type for each in (*entry.op.superseded, *entry.op.nodes)}
            joined = len(operators) > 1 and "DequantizeLinear" in operators
            # Rows that are gathered from bytes are floats when they come.
            bytes_to_bytes = "int8" in kernel.split() and "Gather" not in operators
            if "(weights)" not in kernel and (bytes_to_bytes or joined):
                return ir.DataType.INT8.name.lower()
        return "" if dtype is None else dtype.name.lower()

    def precision_note(self, node: ir.Node, precision: str) -> str:
        """Say that accumulators are not kept in what the model asks for."""
        asked = node.metadata_props.get(ACCUMULATE, "")
        halves = precision.startswith("float16") and not cpu.sums_halves_in_float32()
        kept = "float16" if halves else "float32"
        return f", sums in {kept} and not {asked}" if asked not in ("", kept) else ""
