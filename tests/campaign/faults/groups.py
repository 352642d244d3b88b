"""A control group of Linux whose processes share a limit of memory, or a CPU quota."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MOUNT = re.compile(
    r"^\S+ \S+ \S+ (?P<root>\S+) (?P<point>\S+) .* - (?P<kind>cgroup2?) \S+ (?P<options>\S+)$"
)
"""A line of ``/proc/self/mountinfo``."""

UNSWAPPED = {"memory.swap.max": "0", "memory.swappiness": "0"}
"""What keeps a group from swapping, which Linux does before it ends a process."""

LIMITS = {
    "memory": ("memory.limit_in_bytes", "memory.max"),
    "cpu": ("cpu.cfs_quota_us", "cpu.max"),
}
"""The file that takes the limit of each controller, in versions 1 and 2 of control groups."""

PERIOD = 100_000
"""Microseconds in which a quota counts."""


class NoGroupError(Exception):
    """No group can be created here; the message says why."""


@dataclass(frozen=True)
class Group:
    """A group below that of this process.

    Attributes:
        folder: in the file system of control groups.
        limit: the file that takes the limit, one of `LIMITS`.
    """

    folder: Path
    limit: str

    def command(self, more: list[str]) -> list[str]:
        """Return a command that runs another one within the group."""
        return ["sh", "-c", f'echo $$ > "{self.folder}/cgroup.procs" && exec "$@"', "sh", *more]

    def allow(self, size: int) -> None:
        """Set the limit of memory in bytes."""
        (self.folder / self.limit).write_text(str(size), encoding="utf-8")
        for name, value in UNSWAPPED.items():
            if (self.folder / name).exists():
                (self.folder / name).write_text(value, encoding="utf-8")

    def share(self, processors: float) -> None:
        """Set the CPU quota."""
        quota, period = str(round(processors * PERIOD)), str(PERIOD)
        if self.limit == "cpu.max":
            (self.folder / self.limit).write_text(f"{quota} {period}", encoding="utf-8")
        else:
            (self.folder / "cpu.cfs_period_us").write_text(period, encoding="utf-8")
            (self.folder / self.limit).write_text(quota, encoding="utf-8")


def _parents(controller: str) -> Iterator[tuple[Path, str]]:
    """Yield where this process's group may have groups below it, and the file of their limit."""
    lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    own = {
        kind: path
        for _, kinds, path in (line.split(":", 2) for line in lines)
        for kind in kinds.split(",")
    }
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        found = MOUNT.match(line)
        if found is None:
            continue
        is_second = found["kind"] == "cgroup2"
        if not is_second and controller not in found["options"].split(","):
            continue
        path = own.get("", "") if is_second else own.get(controller, "")
        folder = Path(found["point"]) / os.path.relpath(path or "/", found["root"])
        yield folder, LIMITS[controller][is_second]


@contextmanager
def group(controller: str) -> Iterator[Group]:
    """Create a group for a while.

    Args:
        controller: what it limits, ``memory`` or ``cpu``.

    Raises:
        NoGroupError: this process may not, or the group would have no such limit.
    """
    reason = f"no control groups with limits of {controller} are mounted"
    for parent, limit in _parents(controller):
        folder = parent / f"narrowpass-{controller}-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError as error:
            reason = f"no control group can be created: {error}"
            continue
        try:
            if (folder / limit).exists():
                yield Group(folder, limit)
                return
            reason = f"control groups below {parent} have no limits of {controller}"
        finally:
            folder.rmdir()
    raise NoGroupError(reason)
