"""The target of an operation, and the units of operations that run together."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Generic, TypeVar

from narrowpass_planning.graph.op import Op

OpT = TypeVar("OpT", bound=Op)
"""The operations of a backend."""


class Target(enum.Enum):
    """What executes an operation."""

    NATIVE = "native"
    """The backend, in a partition."""
    WEIGHTS = "weights"
    """Packing: evaluated once, with the weights that it changes."""
    SHAPES = "shapes"
    """Shape propagation: evaluated when shapes change, not in each run."""
    HOST = "host"
    """A numpy kernel or the reference evaluator."""


@dataclass
class Assignment(Generic[OpT]):
    """An operation and its target.

    Attributes:
        op: the operation.
        target: what executes the operation.
        reason: why it is not native; empty where it is.
    """

    op: OpT
    target: Target
    reason: str = ""


@dataclass
class Unit(Generic[OpT]):
    """Operations that run together, in order; the native ones of a unit are one partition.

    Attributes:
        native: whether it is a partition.
        ops: the operations, in order.
    """

    native: bool
    ops: list[Assignment[OpT]]
