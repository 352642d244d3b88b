"""The kernel that is selected for a lowered operation, before anything is packed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Selection:
    """A kernel, and why it was selected.

    Attributes:
        kernel: its maker, name and call; the name alone where no table has others.
        packing: how its constants are packed; empty where it has none.
        reason: what was measured; empty where there is no other kernel.
    """

    kernel: str
    packing: str = ""
    reason: str = ""

    def facts(self) -> Mapping[str, str]:
        """Return what a printed plan says of it."""
        fields = {"kernel": self.kernel, "packing": self.packing, "reason": self.reason}
        return {name: text for name, text in fields.items() if text}
