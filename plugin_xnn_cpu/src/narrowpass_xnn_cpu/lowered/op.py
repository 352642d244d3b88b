"""Lowered operations: a computation, its operands and its result; and the step when it is packed.

A `LoweredOp` is a record. It refers to slots, which have a dtype and an order of axes, and to
constants by recipe (`Weight`). It does not need the native library. A `PackedStep` does: it has
packed the constants of an operation, and runs it.
"""

from __future__ import annotations

import abc
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from narrowpass_planning.plan.step import Run, Shape, Sizing, Slot, Step
from narrowpass_xnn_cpu.lowered.record import Record
from narrowpass_xnn_cpu.native.table.row import Selection

if TYPE_CHECKING:
    from narrowpass_xnn_cpu.native.target import Target
    from narrowpass_xnn_cpu.native.weights_cache import Session

Perm = tuple[int, ...]


class Computation(Record, abc.ABC):
    """A kind of computation with its attributes.

    Subclasses are records. Their fields are the attributes, of types that `plan.text_of` prints
    and `narrowpass_planning.stored.codec` stores.

    Attributes:
        mnemonic: the name in a printed plan.
        kernel: the name of the kernel, if it differs from the mnemonic; see `kernel_name`.
        overwrites: indices of the operands whose memory the result may reuse; see `in_place`.
    """

    mnemonic: ClassVar[str]
    kernel: ClassVar[str] = ""
    overwrites: ClassVar[tuple[int, ...]] = ()

    def in_place(self) -> Sequence[int]:
        """Return the indices of operands whose memory the result may reuse, if sizes are equal."""
        return self.overwrites

    def shape_values(self) -> tuple[str, ...]:
        """Return the names of values computed from shapes that `size` reads."""
        return ()

    def elastic(self) -> tuple[int, ...]:
        """Return the indices of operands with a column for each row of a state; see `Step`."""
        return ()

    def appended(self) -> tuple[int, int, int] | None:
        """Return the operand with new rows, and their axis in it and in the cache; see `Step`."""
        return None

    def row_axes(self, op: LoweredOp) -> int | None:
        """Return how many of the last axes are a row, where rows are independent; see `Step`.

        None where rows are computed together.
        """
        return None

    def reuse_key(self) -> Hashable:
        """Return a key: for equal keys and operand shapes, `size` returns equal results.

        None if results of `size` cannot be shared. Equal layers of a model are sized once.
        """
        return None

    def kernel_name(self, op: LoweredOp, packed: Any) -> str:
        """Return the name of the kernel for reports."""
        return self.kernel or self.mnemonic

    def precision(self, op: LoweredOp, packed: Any) -> str:
        """Return the precision of the arithmetic; empty for float32, or that of the dtype."""
        return ""

    def select(self, op: LoweredOp, target: Target) -> Selection:
        """Return the kernel for a processor, without packing.

        If packing finds that constants do not fit the kernel, the next row of the kernel table is
        used.

        Args:
            op: the operation of this computation.
            target: the processor, this one or another one.
        """
        return Selection(self.kernel_name(op, None))

    def pack(self, op: LoweredOp, session: Session | None) -> Any:
        """Create the state of the kernel between runs: packed weights or an XNNPACK operator.

        Args:
            op: the operation of this computation.
            session: of the weights cache; None to pack without the cache.

        Raises:
            UnfitError: the kernel does not compute exactly with these constants.
            BackendError: attributes that are not valid.
        """
        return None

    def shares_output(self, other: Computation) -> bool:
        """Return whether this and an earlier computation write disjoint elements of one slot."""
        return False

    @abc.abstractmethod
    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """Return result shape and kernel call for operands of these shapes; see `Step.size`.

        Raises:
            BackendError: shapes that do not fit the operation.
        """


@dataclass(frozen=True, eq=False)
class LoweredOp:
    """One operation of a lowered partition.

    Attributes:
        computation: what is computed, with its attributes.
        operands: the slots that it reads.
        output: the slot that it writes.
        layout: of the output: axis i of the slot is axis ``layout[i]`` of the value; empty for an
            intermediate result, which holds no value.
        nodes: names of the ONNX nodes that it computes; empty for a change of layout.
        note: why it is computed in float32 although int8 was requested; else empty.
    """

    computation: Computation
    operands: tuple[Slot, ...]
    output: Slot
    layout: Perm = ()
    nodes: tuple[str, ...] = ()
    note: str = ""

    @property
    def name(self) -> str:
        """The name in errors and profiles: that of the last node."""
        return self.nodes[-1] if self.nodes else self.output.name


class PackedStep(Step):
    """A lowered operation with the state of its kernel between runs.

    Args:
        op: the operation.
        session: of the weights cache; None to pack without the cache.

    Attributes:
        packed: what `Computation.pack` returned: packed weights or an XNNPACK operator.

    Raises:
        UnfitError: the kernel does not compute exactly with these constants.
        BackendError: attributes that are not valid.
    """

    def __init__(self, op: LoweredOp, session: Session | None) -> None:
        super().__init__(op.operands, op.output)
        computation = op.computation
        self.op = op
        self.packed = computation.pack(op, session)
        self.nodes = op.nodes
        self.kernel = computation.kernel_name(op, self.packed)
        self.precision = computation.precision(op, self.packed)
        if op.note and op.note not in self.precision:
            self.precision = f"{self.precision or 'float32'}: {op.note}"
        self.in_place = [n for n in computation.in_place() if n < len(op.operands)]
        self.values = computation.shape_values()
        self.elastic, self.appended = computation.elastic(), computation.appended()
        self.row_axes = computation.row_axes(op)

    @property
    def alike(self) -> Hashable:
        """See `Step.alike`."""
        key = self.op.computation.reuse_key()
        return None if key is None else (type(self.op.computation), key)

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Step.size`."""
        return self.op.computation.size(self, shapes, sizing)
