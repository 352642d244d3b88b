"""Builds the library under which calls fail, and starts processes under it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_name("faults.c")
CALLS = (
    *("write", "pwrite", "fsync", "rename", "mmap", "open", "ftruncate", "malloc"),
    *("read", "pread", "mkdir", "unlink", "link", "lock", "close", "stat", "readdir", "utime"),
    *("lseek", "chmod", "rmdir", "clock", "own", "thread"),
)
"""In the order of `enum call`."""


def build(folder: Path) -> str | None:
    """Compile the library; return why that cannot be done, None where it was."""
    if sys.platform != "linux":
        return "the library is for Linux"
    command = [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O1", "-o"]
    try:
        done = subprocess.run(
            [*command, str(folder / "faults.so"), str(SOURCE), "-ldl"],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        return f"there is no C compiler: {error}"
    if "__libc_malloc" in done.stderr:
        return "the C library is not glibc"
    return done.stderr if done.returncode else None


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `scenarios` with the library preloaded."""
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "faults.scenarios", *arguments],
        env={
            **os.environ,
            "LD_PRELOAD": str(folder / "faults.so"),
            "NARROWPASS_XNN_WITHOUT_DEEPBIND": "1",  # else malloc of the native code is libc's
            "PYTHONPATH": str(SOURCE.parents[1]),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )


class Faults:
    """The preloaded library of this process."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._arm, self._disarm = library.np_fault_arm, library.np_fault_disarm
        self._arm.argtypes = [ctypes.c_int, ctypes.c_long, ctypes.c_int]
        self._disarm.restype = ctypes.c_long

    def arm(self, call: str, n: int, error: int) -> None:
        """Let the n-th call from now on fail, with an errno or one of `scenarios.ERRORS`."""
        self._arm(CALLS.index(call), n, error)

    def disarm(self) -> int:
        """Let calls through; return how many there were."""
        found: int = self._disarm()
        return found
