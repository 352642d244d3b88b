"""Where an operation runs, and the units of operations that run together."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Generic, TypeVar

from narrowpass_planning.graph.op import Op

OpT = TypeVar("OpT", bound=Op)
"""The operations of a backend."""


class Where(enum.Enum):
    """Where an operation runs."""

    NATIVE = "native"
    WEIGHTS = "weights"
    """Done once, when the weights that it changes are packed."""
    SHAPES = "shapes"
    """Evaluated when shapes change: its result follows from them."""
    HOST = "host"


@dataclass
class Assigned(Generic[OpT]):
    """An operation and where it runs.

    Attributes:
        op: the operation.
        where: where it runs.
        reason: why it is not native; empty where it is.
    """

    op: OpT
    where: Where
    reason: str = ""


@dataclass
class Unit(Generic[OpT]):
    """Operations that run together, in order; all native ones of a unit are one partition."""

    native: bool
    ops: list[Assigned[OpT]]
