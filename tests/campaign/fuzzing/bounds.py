"""What one input may take: seconds, and memory by its size."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

SECONDS = 30
"""What one input may take."""
BASE = 64 << 20
"""Bytes of data that a process may take for an input, however short it is, beyond those that it
had before the first one. What it takes for each byte of an input is `Target.multiple`."""

_STATUS = Path("/proc/self/status")
_FORGET = Path("/proc/self/clear_refs")


class Bounds:
    """Limits of this process for one input after another.

    What allocates too much gets a MemoryError, which is no clear error. What takes too long gets an
    error, too; the kernel ends a process that computes on, in a library in C or Rust.

    Args:
        multiple: bytes that it may take for each byte of an input, beside `BASE`.
        noted: where the number of the input is written that is being read, for who finds the
            process ended by a signal.
    """

    def __init__(self, multiple: int, noted: Path) -> None:
        self._multiple = multiple
        self._noted = os.open(noted, os.O_WRONLY | os.O_CREAT, 0o644)
        self._before = _kibibytes("VmData") * 1024 if _STATUS.exists() else None
        signal.signal(signal.SIGALRM, _too_slow)

    def begin(self, seed: int, size: int) -> None:
        """Set the limits for an input of so many bytes."""
        os.pwrite(self._noted, b"%-20d" % seed, 0)
        signal.alarm(SECONDS)
        soft = int(time.process_time()) + 2 * SECONDS
        resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))
        if self._before is not None:
            limit = self._before + BASE + self._multiple * size
            resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))

    def end(self) -> None:
        """Lift them."""
        signal.alarm(0)
        whole = resource.RLIM_INFINITY
        for kind in (resource.RLIMIT_CPU, resource.RLIMIT_DATA):
            resource.setrlimit(kind, (whole, whole))


def _too_slow(number: int, frame: object) -> None:
    raise AssertionError(f"an input took {SECONDS} s")


def _kibibytes(name: str) -> int:
    (line,) = (line for line in _STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1])


def taken(read: Callable[[], object]) -> int | None:
    """Read an input in a child; return how many bytes more than before it had resident at once.

    None where it failed. Pages that are the parent's count before. On Linux alone.
    """
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        try:
            _FORGET.write_text("5")  # the peak that there was
            before = _kibibytes("VmHWM")
            read()
            os.write(theirs, b"%d" % (_kibibytes("VmHWM") - before))
        except BaseException:  # noqa: BLE001  # the child ends here
            traceback.print_exc(limit=-3)
            sys.stderr.flush()
        finally:
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as answer:
        found = answer.read()
    os.waitpid(child, 0)
    return int(found) * 1024 if found else None
