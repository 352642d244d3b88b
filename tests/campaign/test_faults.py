"""Calls of the operating system that fail while models are compiled and files are written.

Under a library in C the n-th call of one function fails, for each n, or the clock jumps. Afterwards
the old files are there, or the new ones, whole; the next run is right and caches again; and nothing
is left behind.
"""

from __future__ import annotations

import json
import re

import pytest
from faults.shim import CALLS, build, run

pytest.importorskip("narrowpass_xnn_cpu")
pytestmark = pytest.mark.once

ALLOWED = {
    "saving": re.compile(
        r"(done; the new one|a clear error; the (old|new) one|MemoryError; the old one)"
        r"(, leftovers until the next save)?"
    ),
    "filling": re.compile(r"(done|a clear error|MemoryError); right, and cached again"),
    "reading": re.compile(r"(done|a clear error|MemoryError); right, and cached again"),
    "compiling": re.compile(r"(done|a clear error|MemoryError); right again"),
    "measuring": re.compile("(done|MemoryError); whole"),
    "calibrating": re.compile("(done|MemoryError); whole"),
    "sessions": re.compile(r"(done|a clear error|MemoryError); right, and kept again"),
    "reopening": re.compile(r"(done|a clear error|MemoryError); right, and kept again"),
}
"""What may become of a child, and of the files that it leaves."""

KILLED = {
    "saving": re.compile("died of signal 9; the (old|new) one, leftovers until the next save"),
    "filling": re.compile("died of signal 9; right, and cached again"),
    "reading": re.compile("died of signal 9; right, and cached again"),
    "measuring": re.compile("died of signal 9; whole"),
    "calibrating": re.compile("died of signal 9; whole"),
    "sessions": re.compile("died of signal 9; right, and kept again"),
    "reopening": re.compile("died of signal 9; right, and kept again"),
}
"""The same where the call kills it."""

ERRORS = {
    "write": ("ENOSPC", "EIO", "EINTR", "short", "kill"),
    "pwrite": ("ENOSPC", "EIO", "EINTR", "short", "kill"),
    "fsync": ("ENOSPC", "EIO", "EINTR", "kill"),
    "rename": ("ENOSPC", "EIO", "EACCES", "kill"),
    "mmap": ("ENOMEM", "EIO"),
    "open": ("ENOSPC", "EIO", "EINTR"),
    "ftruncate": ("ENOSPC", "EIO", "EINTR"),
    "malloc": ("ENOMEM",),
    "read": ("EIO", "EINTR", "short"),
    "pread": ("EIO", "EINTR", "short"),
    "mkdir": ("ENOSPC", "EACCES"),
    "unlink": ("EIO", "EACCES"),
    "link": ("EIO", "EACCES", "kill"),
    "lock": ("ENOLCK", "EINTR"),
    "close": ("EIO", "EINTR"),
    "stat": ("EIO", "EACCES"),
    "readdir": ("EIO",),
    "utime": ("EIO", "EACCES"),
    "lseek": ("EIO",),
    "chmod": ("EACCES",),
    "rmdir": ("EACCES",),
    "clock": ("ahead", "back"),
    "own": ("ENOMEM",),
}
IN_MEMORY = ("malloc", "own", "clock")
"""What a scenario without files has."""

ALL = [
    (scenario, call, error)
    for scenario in ALLOWED
    for call in (IN_MEMORY if scenario == "compiling" else CALLS)
    for error in ERRORS[call]
]
SOME = [
    ("saving", "write", "short"),
    ("saving", "pwrite", "ENOSPC"),
    ("saving", "rename", "EIO"),
    ("saving", "fsync", "EIO"),
    ("filling", "write", "ENOSPC"),
    ("filling", "malloc", "ENOMEM"),
    ("filling", "rename", "EIO"),
    ("reading", "mmap", "ENOMEM"),
    ("reading", "open", "EIO"),
    ("saving", "rename", "kill"),
    ("filling", "write", "kill"),
    ("reading", "read", "EIO"),
    ("reading", "pread", "short"),
    ("compiling", "own", "ENOMEM"),
    ("filling", "own", "ENOMEM"),
    ("filling", "lock", "ENOLCK"),
    ("measuring", "pwrite", "EIO"),
    ("measuring", "pwrite", "kill"),
    ("calibrating", "write", "ENOSPC"),
    ("calibrating", "rename", "kill"),
    ("sessions", "clock", "ahead"),
]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    reason = build(folder)
    if reason:
        pytest.skip(reason)
    return folder


def check(library, folder, scenario, call, error):
    done = run(library, scenario, call, error, str(folder))
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    print(scenario, call, error, found)
    allowed = (KILLED if error == "kill" else ALLOWED)[scenario]
    wrong = [text for text in found["outcomes"] if not allowed.fullmatch(text)]
    assert wrong == []
    return found["tries"]


@pytest.mark.parametrize(("scenario", "call", "error"), SOME, ids="-".join)
def test_a_call_that_fails(library, tmp_path, scenario, call, error):
    assert check(library, tmp_path, scenario, call, error) > 0


@pytest.mark.long
@pytest.mark.parametrize(("scenario", "call", "error"), ALL, ids="-".join)
def test_every_call_that_fails(library, tmp_path, scenario, call, error):
    check(library, tmp_path, scenario, call, error)


def test_damage_is_noticed(tmp_path):
    from faults.scenarios import Saving

    saving = Saving(tmp_path)
    assert saving.look("done") == "the old one, without an error"
    (tmp_path / "left.tmp").write_bytes(b"x")
    assert "left for ever" in saving.look("a clear error")
    (tmp_path / "left.tmp").unlink()
    weights = saving.target / "weights.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.chmod(0o644)
    weights.write_bytes(data)
    assert saving.look("a clear error") == "damaged"
