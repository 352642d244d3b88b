"""The lowering of `xnn-cpu`: from operations of a graph to steps of XNNPACK and our kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from narrowpass.errors import BackendError
from narrowpass.framework.classify import ACCUMULATE
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.host.evaluators import Evaluate
from narrowpass_planning.partitioner import Assignment, Target
from narrowpass_planning.plan.executor import Pool
from narrowpass_planning.plan.partition import Partition
from narrowpass_planning.plan.shapes import ShapeNode
from narrowpass_planning.program.lowering import Lowering, Source, StepMeter
from narrowpass_xnn_cpu.lower import rules
from narrowpass_xnn_cpu.lower.attention.appended import check_readers
from narrowpass_xnn_cpu.lower.builder import Builder
from narrowpass_xnn_cpu.lower.fusion.operations import operations
from narrowpass_xnn_cpu.lower.int8.offsets import store_with_offsets
from narrowpass_xnn_cpu.lower.numerics import DEFAULT, Numerics
from narrowpass_xnn_cpu.lower.op import Op
from narrowpass_xnn_cpu.lower.steps import Observe
from narrowpass_xnn_cpu.lower.storage import XnnStorage
from narrowpass_xnn_cpu.lowered.op import PackedStep
from narrowpass_xnn_cpu.lowered.partition import LoweredPartition, UnfitConstantsError
from narrowpass_xnn_cpu.native import isa
from narrowpass_xnn_cpu.native.runtime.loop import TapeLoop
from narrowpass_xnn_cpu.native.runtime.meter import scratch_for
from narrowpass_xnn_cpu.native.runtime.tape import EXECUTOR

if TYPE_CHECKING:
    from narrowpass.runtime.meters import Meter


class XnnLowering(Lowering[Op]):
    """Lowers operations to steps of XNNPACK and of kernels of our own.

    Args:
        numerics: which roundings kernels may choose.
        evaluate: returns what runs a node without a kernel; None for the reference evaluator.
    """

    executor = EXECUTOR
    repeat = TapeLoop

    def __init__(self, numerics: Numerics = DEFAULT, evaluate: Evaluate | None = None) -> None:
        self._numerics, self.evaluate = numerics, evaluate
        self.storage = XnnStorage(numerics)

    def infer(self, model: ir.Model) -> None:
        """Infer types, and expand contrib transformer operators that have no lowering rule."""
        rules.expand_checked(model)

    def operation(self, node: ir.Node, version: int) -> Op:
        """Return the operation of one node."""
        return Op.of(node, version)

    def operations(
        self, graph: ir.Graph, facts: Facts, model: ir.Model, version: Callable[[ir.Node], int]
    ) -> Sequence[Op]:
        """Return the operations of a graph, after fusion."""
        return operations(graph, facts, model, version)

    def reason(self, op: Op, facts: Facts) -> str | None:
        """Return why an operation has no native kernel; None if it has one."""
        return rules.reason(op, facts)

    def lower(self, source: Source[Op]) -> Partition:
        """Lower and pack operations; those whose constants do not fit int8 kernels in float32.

        Constants are read, and checked, when they are packed. Weights in the cache were checked
        when they were packed first.
        """
        unfit: dict[str, str] = {}
        while True:
            builder, partition = lower_unit(source, self._numerics, unfit)
            try:
                return partition.pack(source.number, source.session, source.workspace)
            except UnfitConstantsError as error:
                before = len(unfit)
                for lowered, reason in error.reasons.items():
                    unfit.setdefault(builder.origins[lowered.output].unfit_key, reason)
                if len(unfit) == before:
                    raise BackendError(f"no kernel supports these constants: {error}") from error

    def observes(self, value: ir.Value) -> bool:
        """Return whether a value is materialized as float32 while the method runs."""
        return value.producer() is not None and value.dtype == ir.DataType.FLOAT

    def meters(self, partition: Partition) -> Mapping[str, StepMeter]:
        """Return the observers on the tape, by the value's name."""
        found = {}
        for step in partition.steps:
            if isinstance(step, PackedStep) and isinstance(step.op.computation, Observe):
                found[step.op.computation.value] = step.packed
        return found

    def scratch(self, meters: Iterable[Meter], pool: Pool) -> Any:
        """Return scratch memory that is large enough for any of the meters."""
        return scratch_for(meters, pool)

    def computed_in(self, node: ir.Node, entry: Assignment[Op], kernel: str) -> str:
        """Return the dtype that a node is computed in: int8 for Q/DQ nodes that run in int8."""
        dtype = node.outputs[0].dtype if node.outputs else None
        if dtype == ir.DataType.FLOAT and entry.target is Target.NATIVE:
            operators = {each.op_type for each in (*entry.op.superseded, *entry.op.nodes)}
            joined = len(operators) > 1 and "DequantizeLinear" in operators
            # A Gather of int8 rows dequantizes them.
            bytes_to_bytes = "int8" in kernel.split() and "Gather" not in operators
            if "(weights)" not in kernel and (bytes_to_bytes or joined):
                return ir.DataType.INT8.name.lower()
        return "" if dtype is None else dtype.name.lower()

    def precision_note(self, node: ir.Node, precision: str) -> str:
        """Return a note if accumulators are of another type than the model requests."""
        requested = node.metadata_props.get(ACCUMULATE, "")
        in_float16 = precision.startswith("float16") and not isa.accumulates_float16_in_float32()
        used = "float16" if in_float16 else "float32"
        return (
            f", accumulators in {used} and not {requested}" if requested not in ("", used) else ""
        )


def lower_unit(
    source: Source[Op], numerics: Numerics, unfit: Mapping[str, str] | None = None
) -> tuple[Builder, LoweredPartition]:
    """Lower the operations of a native unit, and pack nothing.

    Args:
        source: the operations and shape nodes, in order.
        numerics: which roundings kernels may choose.
        unfit: why constants do not fit their kernels, by `Op.unfit_key`.

    Raises:
        BackendError: an operation that cannot be lowered; the message names its node.
    """
    builder = Builder(source.facts, rules.emit, numerics=numerics, unfit=unfit)
    for item in source.items:
        if isinstance(item, ShapeNode):
            builder.add_shape_node(item)
            continue
        rules.lower(item, builder)
        builder.observe(item.outputs)
    partition = builder.finish(source.outputs)
    check_readers(partition)
    return builder, store_with_offsets(partition)
