"""The kernel selected for a lowered operation, before its constants are packed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Selection:
    """A kernel, and why it was selected; all as text.

    Attributes:
        kernel: ``own`` or ``xnnpack``, name and call; the name alone if it has no row in the table.
        packing: the packed layout of constants; empty if it has none.
        reason: the measurement behind the selection; empty if there is no other kernel.
    """

    kernel: str
    packing: str = ""
    reason: str = ""

    def facts(self) -> Mapping[str, str]:
        """Return the fields that a printed plan has, without empty ones."""
        fields = {"kernel": self.kernel, "packing": self.packing, "reason": self.reason}
        return {name: text for name, text in fields.items() if text}
