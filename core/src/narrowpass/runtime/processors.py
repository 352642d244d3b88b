"""How many processors this process may use: its affinity mask and the CPU quota of a container."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_PROCESS = Path("/proc/self")
_GROUP = re.compile(r"(?m)^\d+:(.*?):(/.*)$")
_MOUNT = re.compile(r"(?m)^(?:\S+ ){3}(\S+) (\S+) .* - cgroup(?:(2) .*| \S+ (?:.+,)?cpu(?:,.+)?)$")
_QUOTA = re.compile(r"([1-9]\d{0,18})\s+([1-9]\d{0,18})\s*")  # neither "max" nor -1


def usable_processors() -> int:
    """Return the size of the affinity mask, or the CPU quota of the control groups if less.

    A quota, such as that of ``docker run --cpus 1.5``, is rounded up: to 2 processors.
    """
    most = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min([most, *_quotas()])


def _quotas() -> Iterator[int]:
    """Yield the quotas of this process's groups and of their parents, as far as they are read."""
    groups, mounts = _GROUP.findall(_read("cgroup")), _MOUNT.findall(_read("mountinfo"))
    own = {kind: PurePosixPath(path) for kinds, path in groups for kind in kinds.split(",")}
    for root, point, second in mounts:
        path = own.get("" if second else "cpu")
        names = ("cpu.max",) if second else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        if path and path.is_relative_to(root):
            below = path.relative_to(root)
            for folder in (below, *below.parents):
                text = " ".join(_read(Path(point, folder, name)) for name in names)
                if found := _QUOTA.fullmatch(text):
                    yield -(-int(found[1]) // int(found[2]))


def _read(path: str | Path) -> str:
    try:
        return (_PROCESS / path).read_text(encoding="utf-8", errors="surrogateescape")
    except (OSError, ValueError):
        return ""
