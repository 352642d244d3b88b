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
from narrowpass_xnn_cpu.lowered.op import LoweredOp, PackedStep
from narrowpass_xnn_cpu.native.problems.quantization import UnfitError
from narrowpass_xnn_cpu.native.runtime.tape import EXECUTOR
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

    def verify(self) -> None:
        """Check that operands are defined before use, results written once, layouts permutations.

        Raises:
            BackendError: the partition is not valid; the message names the operation.
        """
        written: dict[Slot, LoweredOp] = {}
        defined = {*self.inputs.values(), *self.fixed.values()}
        for item in self.items:
            if isinstance(item, ShapeNode):
                continue
            for slot in item.operands:
                if slot not in defined and slot not in written and slot.constant is None:
                    raise _invalid(item, f"reads {slot.name!r}, which is not computed before")
            _check_output(item, written)
            if sorted(item.layout) != list(range(len(item.layout))):
                raise _invalid(item, f"has the layout {list(item.layout)}, which is no permutation")
            written[item.output] = item
        known = {*defined, *written}
        for place in self.places:
            if sorted(place.perm) != list(range(len(place.perm))):
                raise BackendError(f"value {place.name!r} lies in the order {list(place.perm)}")
        for name, slot in self.outputs.items():
            if slot not in known and slot.constant is None:
                raise BackendError(f"output {name!r} is not computed")

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


def _check_output(op: LoweredOp, written: dict[Slot, LoweredOp]) -> None:
    before = written.get(op.output)
    if op.output.constant is not None:
        raise _invalid(op, f"writes the constant {op.output.name!r}")
    if before is not None and not op.computation.shares_output(before.computation):
        raise _invalid(op, f"writes {op.output.name!r}, as {before.name!r} does")


def _invalid(op: LoweredOp, problem: str) -> BackendError:
    return BackendError(f"operation {op.name!r} ({op.computation.mnemonic}) {problem}")
