"""A lowered partition: operations and shape nodes in the order in which they run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from narrowpass.errors import BackendError
from narrowpass_planning.memory.workspace import Workspace
from narrowpass_planning.plan.partition import Partition, ValueLayout
from narrowpass_planning.plan.shapes import ShapeNode
from narrowpass_planning.plan.step import Slot
from narrowpass_xnn_cpu.lowered.op import LoweredOp
from narrowpass_xnn_cpu.lowered.packed import PackedStep
from narrowpass_xnn_cpu.native.problems.quantization import UnfitError
from narrowpass_xnn_cpu.native.runtime.executor import EXECUTOR
from narrowpass_xnn_cpu.native.weights_cache import Session

Item = LoweredOp | ShapeNode


class UnfitConstantsError(Exception):
    """Packing has found constants that do not fit their kernels.

    Attributes:
        reasons: by operation.
    """

    def __init__(self, reasons: Mapping[LoweredOp, str]) -> None:
        super().__init__(", ".join(reasons.values()))
        self.reasons = dict(reasons)


@dataclass(frozen=True)
class LoweredPartition:
    """Operations that run as one tape, before packing.

    Attributes:
        items: operations and shape nodes, each after those whose results it reads.
        inputs: slots of the operands from outside, by the value's name.
        outputs: slots of the values that are read outside, by name.
        fixed: slots of values that follow from shapes, by name.
        places: slots and layouts of the values of the partition.
    """

    items: tuple[Item, ...]
    inputs: Mapping[str, Slot]
    outputs: Mapping[str, Slot]
    fixed: Mapping[str, Slot]
    places: tuple[ValueLayout, ...]

    @property
    def ops(self) -> list[LoweredOp]:
        """The operations, in order."""
        return [item for item in self.items if isinstance(item, LoweredOp)]

    def with_ops(self, change: Callable[[LoweredOp], LoweredOp]) -> LoweredPartition:
        """Return the partition with each operation mapped by `change`."""
        items = (change(i) if isinstance(i, LoweredOp) else i for i in self.items)
        return dataclasses.replace(self, items=tuple(items))

    def pack(self, number: int, session: Session | None, workspace: Workspace) -> Partition:
        """Pack all operations.

        Args:
            number: of the partition within its method.
            session: of the weights cache; None to pack without the cache.
            workspace: memory for intermediate results.

        Raises:
            UnfitConstantsError: kernels do not compute exactly with some constants.
            BackendError: attributes that are not valid; the message names the node.
        """
        items: list[PackedStep | ShapeNode] = []
        unfit: dict[LoweredOp, str] = {}
        for item in self.items:
            if isinstance(item, ShapeNode):
                items.append(item)
                continue
            try:
                items.append(PackedStep(item, session))
            except UnfitError as error:
                unfit[item] = str(error)
            except BackendError as error:
                kind = item.computation.mnemonic
                raise BackendError(
                    f"node {item.name!r} ({kind}) cannot be packed: {error}"
                ) from error
        if unfit:
            raise UnfitConstantsError(unfit)
        return Partition(
            number, items, self.inputs, self.outputs, self.fixed, self.places, workspace, EXECUTOR
        )
