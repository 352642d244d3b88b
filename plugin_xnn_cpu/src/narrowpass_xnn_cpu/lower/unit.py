"""Native units: their operations are lowered to one partition, and packed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.lower import rules
from narrowpass_xnn_cpu.lower.assign import Assigned, Unit, Where, reads
from narrowpass_xnn_cpu.lower.builder import Builder
from narrowpass_xnn_cpu.lower.facts import Facts
from narrowpass_xnn_cpu.lower.int8.offsets import with_offsets
from narrowpass_xnn_cpu.lower.op import Op
from narrowpass_xnn_cpu.lowered.partition import LoweredPartition, UnfitConstantsError
from narrowpass_xnn_cpu.plan.partition import Partition, ShapeNode
from narrowpass_xnn_cpu.plan.workspace import Workspace
from narrowpass_xnn_cpu.weights.session import Session


def outputs_of(units: Sequence[Unit], facts: Facts) -> list[list[ir.Value]]:
    """Return for each unit the values that others, or somebody outside of the graph, read."""
    owner = {id(e.op): i for i, unit in enumerate(units) for e in unit.ops}
    read_by: dict[str, set[int]] = {}
    for unit in units:
        for entry in unit.ops:
            if entry.op.kind in ("Shape", "Size") and entry.where is Where.SHAPES:
                continue
            for value in reads(entry.op):
                read_by.setdefault(value.name or "", set()).add(owner[id(entry.op)])
    found = []
    for index, unit in enumerate(units):
        wanted = facts.given if is_native(unit) else facts.needed
        found.append(
            [
                value
                for entry in unit.ops
                for value in entry.op.outputs
                if value.name
                and value.name not in facts.fixed
                and (value.name in wanted or read_by.get(value.name, set()) - {index})
            ]
        )
    return found


def is_native(unit: Unit) -> bool:
    """Return whether a unit is a native partition."""
    return any(entry.where is Where.NATIVE for entry in unit.ops)


class UnitLowering:
    """Lowers the operations of a native unit.

    Args:
        entries: the operations, in order.
        facts: of the graph.
        outputs: the values that others read.
        shape_node: returns the shape node of an operation that follows from shapes.
        winograd: whether convolutions may be computed by Winograd's algorithm.
    """

    def __init__(
        self,
        entries: Sequence[Assigned],
        facts: Facts,
        outputs: Sequence[ir.Value],
        shape_node: Callable[[Op], ShapeNode],
        *,
        winograd: bool,
    ) -> None:
        self._entries, self._facts, self._outputs = entries, facts, outputs
        self._shape_node, self._winograd = shape_node, winograd

    def lower(self, unfit: Mapping[str, str] | None = None) -> tuple[Builder, LoweredPartition]:
        """Return the builder and the partition.

        Args:
            unfit: why constants of operations do not fit int8 kernels, by the first output.

        Raises:
            BackendError: an operation that cannot be lowered; the message names its node.
        """
        builder = Builder(self._facts, rules.emit, winograd=self._winograd, unfit=unfit)
        for entry in self._entries:
            if entry.where is Where.SHAPES:
                builder.add_shape_node(self._shape_node(entry.op))
                continue
            rules.lower(entry.op, builder)
            builder.observe(entry.op.outputs)
        return builder, with_offsets(builder.finish(self._outputs))

    def pack(self, number: int, session: Session | None, workspace: Workspace) -> Partition:
        """Lower and pack the operations; those whose constants are unfit without int8.

        Constants are read when they are packed: what a weights cache has was found fit before.

        Args:
            number: of the partition within its method.
            session: of the weights cache; None to pack for each operation alone.
            workspace: the memory that the partition computes in.

        Raises:
            BackendError: an operation that cannot be lowered; the message names its node.
        """
        unfit: dict[str, str] = {}
        while True:
            builder, partition = self.lower(unfit)
            try:
                return partition.pack(number, session, workspace)
            except UnfitConstantsError as error:
                before = len(unfit)
                for lowered, reason in error.reasons.items():
                    unfit.setdefault(builder.origins[lowered.output].output.name or "", reason)
                if len(unfit) == before:
                    raise BackendError(f"no kernel takes these constants: {error}") from error
