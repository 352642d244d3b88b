"""Lowering and packing of a native unit, which becomes one partition."""

from __future__ import annotations

from collections.abc import Mapping

from narrowpass.errors import BackendError
from narrowpass_planning.plan.partition import Partition
from narrowpass_planning.plan.shapes import ShapeNode
from narrowpass_planning.program.lowering import Source
from narrowpass_xnn_cpu.lower import rules
from narrowpass_xnn_cpu.lower.attention.appended import check_readers
from narrowpass_xnn_cpu.lower.builder import Builder
from narrowpass_xnn_cpu.lower.int8.offsets import store_with_offsets
from narrowpass_xnn_cpu.lower.numerics import Numerics
from narrowpass_xnn_cpu.lower.op import Op
from narrowpass_xnn_cpu.lowered.partition import LoweredPartition, UnfitConstantsError


class UnitLowering:
    """Lowers the operations of a native unit.

    Args:
        source: the operations and shape nodes, in order.
        numerics: which roundings kernels may choose.
    """

    def __init__(self, source: Source[Op], numerics: Numerics) -> None:
        self._source, self._numerics = source, numerics

    def lower(self, unfit: Mapping[str, str] | None = None) -> tuple[Builder, LoweredPartition]:
        """Return the builder and the partition.

        Args:
            unfit: why constants do not fit their kernels, by `Op.unfit_key`.

        Raises:
            BackendError: an operation that cannot be lowered; the message names its node.
        """
        builder = Builder(self._source.facts, rules.emit, numerics=self._numerics, unfit=unfit)
        for item in self._source.items:
            if isinstance(item, ShapeNode):
                builder.add_shape_node(item)
                continue
            rules.lower(item, builder)
            builder.observe(item.outputs)
        partition = builder.finish(self._source.outputs)
        check_readers(partition)
        return builder, store_with_offsets(partition)

    def pack(self) -> Partition:
        """Lower and pack the operations; those whose constants do not fit int8 kernels in float32.

        Constants are read, and checked, when they are packed. Weights in the cache were checked
        when they were packed first.

        Raises:
            BackendError: an operation that cannot be lowered; the message names its node.
        """
        source = self._source
        unfit: dict[str, str] = {}
        while True:
            builder, partition = self.lower(unfit)
            try:
                return partition.pack(source.number, source.session, source.workspace)
            except UnfitConstantsError as error:
                before = len(unfit)
                for lowered, reason in error.reasons.items():
                    unfit.setdefault(builder.origins[lowered.output].unfit_key, reason)
                if len(unfit) == before:
                    raise BackendError(f"no kernel supports these constants: {error}") from error
