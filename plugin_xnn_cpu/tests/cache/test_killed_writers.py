"""Writers of packed weights that are killed: what they leave, and what the next load finds."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from cache_kit import INPUT as X
from cache_kit import command, compiled, fork, loads, path_of, result

from narrowpass import Bundle
from narrowpass_planning.weights import writing
from narrowpass_planning.weights.file import PackedFile
from narrowpass_planning.weights.folder import listed, prune
from narrowpass_xnn_cpu.native.packer import PACKER

pytestmark = pytest.mark.anywhere


def begin(bundle: Bundle, folder: Path) -> int:
    """Fork a process that packs and writes the same file again and again; return its number."""

    def work() -> None:
        while True:
            with contextlib.suppress(FileNotFoundError):
                path_of(bundle, folder).unlink()
            compiled(bundle, folder)

    return fork(work)


def kill(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def check(bundle: Bundle, folder: Path, right: np.ndarray) -> None:
    """Check that the next load is right, and so is the file that it leaves."""
    np.testing.assert_array_equal(result(compiled(bundle, folder), X), right)
    assert PackedFile(path_of(bundle, folder), PACKER).damaged() == []


def kill_writers(folder: Path, bundle: Bundle, times: int, seed: int) -> None:
    """Kill a process that packs and writes at random moments; the next load must be right."""
    right, rng = result(compiled(bundle, cache=False), X), random.Random(seed)
    for _ in range(times):
        if rng.random() < 0.7:
            with contextlib.suppress(FileNotFoundError):
                path_of(bundle, folder).unlink()
        child = begin(bundle, folder)
        time.sleep(rng.uniform(0, 0.08))
        kill(child)
        check(bundle, folder, right)
    assert loads(bundle, folder)[1:] == [0, 0]


def test_writers_that_are_killed(tmp_path, bundle):
    folder = tmp_path / "cache"
    kill_writers(folder, bundle, times=12, seed=1)
    key = path_of(bundle, folder).name
    assert {path.name for path in folder.iterdir()} == {key, f"{key}.lock", f"{key}.checked"}


@pytest.mark.long
def test_writers_that_are_killed_for_long(tmp_path, bundle):
    kill_writers(tmp_path / "cache", bundle, times=100, seed=2)


@pytest.mark.long
def test_one_of_two_writers_is_killed(tmp_path, bundle):
    """Two processes build the same file again and again; one of them dies at a random moment."""
    right = result(compiled(bundle, cache=False), X)
    rng, folder = random.Random(3), tmp_path / "cache"
    for _ in range(100):
        first, second = begin(bundle, folder), begin(bundle, folder)
        time.sleep(rng.uniform(0.01, 0.06))
        kill(first)
        time.sleep(0.01)  # the other goes on
        assert os.waitpid(second, os.WNOHANG) == (0, 0)
        kill(second)
        check(bundle, folder, right)


def test_killed_writers_where_files_need_a_name(tmp_path, bundle, monkeypatch):
    """Without O_TMPFILE: what is left is listed, and a load or `prune` deletes it."""
    monkeypatch.setattr(writing, "_UNNAMED", 0)
    folder = tmp_path / "cache"

    def write() -> None:
        with writing.replacing(folder / "x.weights") as file:
            file.write(bytes(5000))
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    def left_one() -> Path:
        folder.mkdir(exist_ok=True)
        os.waitpid(fork(write), 0)
        (left,) = folder.glob(".packed-*.tmp")
        return left

    left = left_one()
    (item,) = listed(folder, PACKER)
    assert (item.path, item.size, item.is_leftover) == (left, 5000, True)
    _, text = command("list", "--cache-dir", folder)
    assert "left by a process that was killed" in text
    assert command("verify", "--cache-dir", folder)[0] == 0  # nothing is damaged
    assert [deleted.path for deleted in prune(folder, 0, PACKER)] == [left]
    left = left_one()
    assert loads(bundle, folder) == [3, 0, 0]
    assert not left.exists()


@pytest.mark.parametrize("named", [True, False])
def test_a_file_that_is_being_written_stays(tmp_path, bundle, monkeypatch, named):
    if named:
        monkeypatch.setattr(writing, "_UNNAMED", 0)
    folder = tmp_path / "cache"
    folder.mkdir()
    with writing.replacing(folder / "x.weights") as file:
        file.write(bytes(5000))
        file.flush()
        assert listed(folder, PACKER) == []
        assert prune(folder, 0, PACKER) == []
        compiled(bundle, folder)
        assert len(list(folder.glob(".packed-*.tmp"))) == int(named)
    assert (folder / "x.weights").stat().st_size == 5000
    assert list(folder.glob(".packed-*.tmp")) == []


def test_old_leftovers_are_listed_and_pruned(tmp_path, bundle):
    """Those of versions that had no locks of them: by their age."""
    folder = tmp_path / "cache"
    folder.mkdir()
    old, young = folder / ".narrowpass-01.tmp", folder / ".narrowpass-02.tmp"
    for path in (old, young):
        path.write_bytes(bytes(5000))
    os.utime(old, (0, 0))
    assert [item.path for item in listed(folder, PACKER)] == [old]
    assert [item.path for item in prune(folder, 0, PACKER)] == [old]
    assert young.exists()
