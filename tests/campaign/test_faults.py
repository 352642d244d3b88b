"""Calls of the operating system that fail while models are compiled and files are written.

Under a library in C the n-th call of one function fails, for each n, or the clock jumps. Afterwards
the old files are there, or the new ones, whole; the next run is right and caches again; and nothing
is left behind.
"""

from __future__ import annotations

import pytest
from faults.outcomes import ALLOWED, ERRORS, SESSIONS, check
from faults.shim import CALLS

pytest.importorskip("narrowpass_xnn_cpu")
FEW = {"compiling": ("malloc", "own", "clock", "thread"), "starting": ("thread",)}
"""The calls of a scenario without files, and of one that is about threads."""

ALL = [
    (scenario, call, error)
    for scenario in ALLOWED
    if scenario not in SESSIONS
    for call in FEW.get(scenario, CALLS)
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
    ("starting", "thread", "EAGAIN"),
    ("saving", "thread", "EAGAIN"),
    ("saving", "stat", "EIO"),
]


@pytest.mark.parametrize(("scenario", "call", "error"), SOME)
def test_a_call_that_fails(library, tmp_path, scenario, call, error):
    assert check(library, tmp_path, scenario, call, error) > 0


@pytest.mark.long
@pytest.mark.parametrize(("scenario", "call", "error"), ALL)
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
