"""The protocol that identifies packing code: its version, and its layout on this processor."""

from __future__ import annotations

from typing import Protocol

from narrowpass.errors import InputError


class UnusableError(InputError):
    """A file of packed weights that this process cannot use; the message has the reason."""


class Packer(Protocol):
    """Identifies the code that packs weights, so that files of another layout are not used.

    Attributes:
        suffix: of its files in a cache folder, such as ``.weights``. No two packers share one.
    """

    suffix: str

    def build(self) -> str:
        """Return an identifier of the code's version; files of another one are not used."""

    def fingerprint(self, algorithm: int) -> int:
        """Return a 32-bit hash of an algorithm's output for a fixed input on this processor.

        Args:
            algorithm: the number that `Entry.fingerprint` has.

        Raises:
            UnusableError: an algorithm that it does not know.
        """

    def packs_alike(self, algorithm: int, value: int) -> bool:
        """Return whether an algorithm has this fingerprint here; False for an unknown one."""
