"""How much memory processes have."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable
from pathlib import Path


def peak() -> int:
    """Return the most bytes that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def resident() -> int:
    """Return the bytes that this process has."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def by_kind(process: int | str = "self") -> dict[str, int]:
    """Return the bytes of a process by kind, as ``Rss`` and ``Pss``."""
    text = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii")
    return {line.split(":")[0]: 1024 * int(line.split()[1]) for line in text.splitlines()[1:]}


def proportional(processes: Iterable[int | str] = ("self",)) -> int:
    """Return the bytes of processes; shared pages are divided among all that have them."""
    return sum(by_kind(process)["Pss"] for process in processes)
