"""Temporary files of dead processes, and those of living ones, whatever the clock says."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from pathlib import Path

import pytest

from narrowpass_ir.files import is_left_behind, temporary

HOUR = 3600
AGES = (0, HOUR - 60, 60 - HOUR, HOUR + 60, -HOUR - 60, 50 * 365 * 24 * HOUR)


@pytest.mark.parametrize("age", AGES)
@pytest.mark.parametrize("lives", [True, False])
def test_a_temporary_file(tmp_path: Path, age: float, lives: bool) -> None:
    with temporary(tmp_path / "f") as (file, name):
        if not lives:
            fcntl.flock(file.fileno(), fcntl.LOCK_UN)
        os.utime(name, (time.time() - age,) * 2)
        assert is_left_behind(name) == (not lives and abs(age) > HOUR)


@pytest.mark.parametrize("age", AGES)
def test_a_file_system_without_locks(
    tmp_path: Path, age: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "refused")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with temporary(tmp_path / "f") as (_, name):
        os.utime(name, (time.time() - age,) * 2)
        assert is_left_behind(name) == (age > HOUR)
