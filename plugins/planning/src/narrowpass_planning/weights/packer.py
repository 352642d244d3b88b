"""What a file of packed weights depends on beside the weights: the library and the processor."""

from __future__ import annotations

from typing import Protocol

from narrowpass.errors import InputError


class UnusableError(InputError):
    """A file of packed weights that is not for this process, or damaged; the message says why."""


class Packer(Protocol):
    """The code that packs weights: which version it is, and how it packs on this processor.

    Attributes:
        suffix: of its files in a cache folder, such as ``.weights``. No two packers share one.
    """

    suffix: str

    def build(self) -> str:
        """Return what names the version of the code; files of another one are not used."""

    def fingerprint(self, algorithm: int) -> int:
        """Return what an algorithm yields for a fixed input on this processor, as 32 bits.

        Args:
            algorithm: the number that `Entry.fingerprint` has.

        Raises:
            UnusableError: an algorithm that it does not know.
        """

    def packs_alike(self, algorithm: int, value: int) -> bool:
        """Return whether an algorithm has this fingerprint here; False for an unknown one."""
