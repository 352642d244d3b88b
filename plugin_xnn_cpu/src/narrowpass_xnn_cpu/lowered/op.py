"""Lowered operations: a computation, its operands and its result, before anything is packed.

A `LoweredOp` is a record. It refers to slots, which have a dtype and an order of axes, and to
constants by recipe (`Weight`). Nothing of it needs the native library: `packed.pack` turns it into
a step that runs.
"""

from __future__ import annotations

import abc
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from narrowpass_planning.plan.step import Run, Shape, Sizing, Slot
from narrowpass_xnn_cpu.native.table.selected import Selection

if TYPE_CHECKING:
    from narrowpass_xnn_cpu.native.target import Target
    from narrowpass_xnn_cpu.native.weights_cache import Session

Perm = tuple[int, ...]


class Computation(abc.ABC):
    """What a lowered operation computes.

    Subclasses are frozen dataclasses. Their fields are the attributes, of types that
    `lowered.text` prints and parses.

    Attributes:
        mnemonic: the name in a printed plan.
        kernel: the name of the kernel, where it is another one; see `kernel_name`.
        overwrites: indices of the operands whose memory the result may take; see `in_place`.
    """

    mnemonic: ClassVar[str]
    kernel: ClassVar[str] = ""
    overwrites: ClassVar[tuple[int, ...]] = ()

    def in_place(self) -> Sequence[int]:
        """Return the indices of the operands whose memory the result may take, if sizes agree."""
        return self.overwrites

    def shape_values(self) -> tuple[str, ...]:
        """Return the names of the values from shapes that `size` reads."""
        return ()

    def reuse_key(self) -> Hashable:
        """Return what equal `size` results follow from beside shapes; None where none are shared.

        Layers of a model have equal operations, which need not be sized one by one.
        """
        return None

    def kernel_name(self, op: LoweredOp, packed: Any) -> str:
        """Return the name of the kernel, for people."""
        return self.kernel or self.mnemonic

    def precision(self, op: LoweredOp, packed: Any) -> str:
        """Return the precision of the arithmetic; empty for float32, or that of the dtype."""
        return ""

    def select(self, op: LoweredOp, target: Target) -> Selection:
        """Return the kernel that computes it on a processor; nothing is packed.

        Constants that turn out not to fit the kernel when they are packed are computed with by the
        next row of the kernel table.

        Args:
            op: the operation that computes this.
            target: the processor, present or another one.
        """
        return Selection(self.kernel_name(op, None))

    def pack(self, op: LoweredOp, session: Session | None) -> Any:
        """Create what the kernel keeps between runs: packed weights, an XNNPACK operator.

        Args:
            op: the operation that computes this.
            session: of the weights cache; None to pack for this operation alone.

        Raises:
            UnfitError: constants that the kernel does not compute exactly with.
            BackendError: attributes that are not valid.
        """
        return None

    def shares_output(self, other: Computation) -> bool:
        """Return whether an earlier computation may write other elements of the same slot."""
        return False

    @abc.abstractmethod
    def size(self, step: PackedOp, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """Return how the operation runs on operands of these shapes; see `Step.size`.

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
        layout: the order of axes of the output: axis i of the slot is axis ``layout[i]`` of the
            value; empty for an intermediate result, which has no value.
        nodes: names of the ONNX nodes that it stands for; empty for a change of layout.
        note: why it is computed in float32 where int8 was asked for; empty otherwise.
    """

    computation: Computation
    operands: tuple[Slot, ...]
    output: Slot
    layout: Perm = ()
    nodes: tuple[str, ...] = ()
    note: str = ""

    @property
    def name(self) -> str:
        """What errors and profiles call the operation: the last of its nodes."""
        return self.nodes[-1] if self.nodes else self.output.name


class PackedOp(abc.ABC):
    """What `Computation.size` may read of the step that it is packed to.

    Attributes:
        op: the operation.
        packed: what `Computation.pack` returned.
    """

    op: LoweredOp
    packed: Any
