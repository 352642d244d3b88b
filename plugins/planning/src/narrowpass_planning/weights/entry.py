"""Records of blocks of packed weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

ALIGNMENT = 128
"""Bytes that addresses of blocks in memory, and their offsets in a file, are multiples of."""


@dataclass(frozen=True)
class Entry:
    """A block of packed weights.

    Attributes:
        name: the SHA-256, hexadecimal, of the packed content's recipe; empty for a private block.
        seed: the parameters of the packing algorithm, or the version of a backend's own layout.
        fingerprint: the number of the packing algorithm.
        address: of the first byte.
        size: bytes.
        origin: ``packed``, ``shared`` with another session, ``mapped`` from a file; or why it is
            private.
        mapped: whether it is in a mapped file, even of another session.
        owner: the object that keeps the memory alive, where the session does not.
    """

    name: str
    seed: int
    fingerprint: int
    address: int
    size: int
    origin: str
    mapped: bool = False
    owner: object = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Block:
    """The memory of packed weights; valid as long as their session.

    Attributes:
        address: of the first byte, for C.
        size: bytes.
    """

    address: Any
    size: int


def reasons(entries: Iterable[Entry]) -> dict[str, int]:
    """Count private blocks by the reason why they are not shared."""
    return dict(Counter(entry.origin for entry in entries if not entry.name))
