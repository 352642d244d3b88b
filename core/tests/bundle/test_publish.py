"""Publishing: what is replaced, what is not, and what stays beside it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import bundle_process
import pytest
from bundle_models import linear, read, tree

from narrowpass.bundle import Bundle, publish, verify
from narrowpass.errors import OutputError, UsageError


def save(path, seed=0):
    Bundle({"main": read(linear(seed))}).save(path)


def names(folder="."):
    return sorted(path.name for path in Path(folder).iterdir())


@pytest.fixture
def bundle(tmp_path):
    path = tmp_path / "model.narrow"
    save(path)
    return path


@pytest.fixture(params=["exchange", "move aside"])
def exchange(request, monkeypatch):
    """Both ways to replace a folder."""
    if request.param == "move aside":
        monkeypatch.setattr(publish, "exchange", lambda first, second: False)
    return request.param


def test_this_system_can_exchange_folders(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    if not publish.exchange(tmp_path / "a", tmp_path / "b"):
        pytest.skip("no exchange on this file system")
    assert (tmp_path / "a/b").exists()
    with pytest.raises(FileNotFoundError):
        publish.exchange(tmp_path / "a", tmp_path / "absent")


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_without_exchange_says_so(monkeypatch, tmp_path, code):
    class Library:
        @staticmethod
        def renameat2(*args):
            return -1

        renamex_np = renameat2

    monkeypatch.setattr(publish.ctypes, "CDLL", lambda *args, **kwargs: Library)
    monkeypatch.setattr(publish.ctypes, "get_errno", lambda: code)
    assert not publish.exchange(tmp_path, tmp_path)


def test_a_bundle_replaces_a_bundle_and_leaves_nothing_beside(bundle, exchange):
    before = tree(bundle)
    save(bundle, 5)
    assert tree(bundle) != before
    assert verify(bundle) == []
    assert names(bundle.parent) == [bundle.name]


def test_a_new_and_an_empty_target(tmp_path):
    (tmp_path / "empty").mkdir()
    save(tmp_path / "empty")
    save(tmp_path / "new")
    assert names(tmp_path) == ["empty", "new"]
    assert tree(tmp_path / "empty") == tree(tmp_path / "new")


def test_relative_paths_and_a_slash_at_the_end(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save("b/")
    save("./b")
    assert verify("b") == []
    assert names() == ["b"]


def test_a_link_stays_and_its_target_is_replaced(bundle):
    link = bundle.parent / "link"
    link.symlink_to(bundle.name)
    save(link, 5)
    assert link.is_symlink()
    assert verify(bundle) == []
    assert names(bundle.parent) == ["link", bundle.name]


@pytest.mark.parametrize(
    "kind", ["file", "folder", "other manifest", "broken manifest", "no parent"]
)
def test_nothing_else_is_ever_replaced(tmp_path, kind):
    target = tmp_path / "out"
    if kind == "file":
        target.write_text("mine")
    elif kind == "no parent":
        target = tmp_path / "absent/out"
    else:
        target.mkdir()
        (target / "mine.txt").write_text("mine")
        if kind == "other manifest":
            (target / "manifest.json").write_text('{"format": "else"}')
        elif kind == "broken manifest":
            (target / "manifest.json").write_text('{"format": "narrowpass bundle"')
    before = tree(tmp_path)
    with pytest.raises(UsageError, match=str(target)):
        save(target)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("path", ["", "/", "a\0b"])
def test_paths_that_are_none(path):
    with pytest.raises(UsageError):
        save(path)


def test_what_appears_meanwhile_is_not_replaced(tmp_path):
    target = tmp_path / "out"

    def race():
        with publish.replacing(target):
            target.mkdir()
            (target / "mine.txt").write_text("mine")

    with pytest.raises(UsageError):
        race()
    assert names(tmp_path) == ["out"]
    assert names(target) == ["mine.txt"]


def test_an_error_while_writing_leaves_everything(bundle):
    before = tree(bundle)

    def fail():
        with publish.replacing(bundle) as folder:
            (folder / "reports").mkdir()
            (folder / "reports/x").write_text("x")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert tree(bundle) == before
    assert names(bundle.parent) == [bundle.name]


def test_leftovers_of_killed_builds_go_and_those_of_live_ones_stay(bundle):
    parent = bundle.parent
    dead = parent / f".{bundle.name}.tmp-00000000"
    dead.mkdir()
    (dead / "manifest.json").touch()
    (dead / "weights.safetensors").write_bytes(bytes(10))
    bare = parent / f".{bundle.name}.tmp-00000001"
    bare.mkdir()
    aside = parent / f".{bundle.name}.old-00000002"
    aside.mkdir()
    (aside / "manifest.json").touch()
    stale_lock = parent / f".{bundle.name}.lock"
    stale_lock.touch()
    foreign = [
        parent / ".other.narrow.tmp-00000000",
        parent / f".{bundle.name}.tmp-0000000",
        parent / f".{bundle.name}.tmp-00000003",
    ]
    for folder in foreign:
        folder.mkdir()
    (foreign[2] / "mine").touch()
    with publish.replacing(bundle) as live:
        live.joinpath("manifest.json").write_text('{"format": "narrowpass bundle"}')
        save(bundle, 5)
        assert live.exists()
        assert not dead.exists()
        assert not bare.exists()
        assert not aside.exists()
    assert names(parent) == sorted([*(f.name for f in foreign), bundle.name])


def test_a_bundle_that_was_moved_aside_comes_back(bundle):
    before = tree(bundle)
    bundle.rename(bundle.parent / f".{bundle.name}.old-12345678")
    assert Bundle.load(bundle).pipeline == ""
    assert tree(bundle) == before
    assert names(bundle.parent) == [bundle.name]


def test_a_build_also_repairs(bundle):
    bundle.rename(bundle.parent / f".{bundle.name}.old-12345678")
    before = tree(bundle.parent)
    with pytest.raises(RuntimeError), publish.replacing(bundle):
        raise RuntimeError
    assert list(tree(bundle).values()) == list(before.values())


def test_a_failed_move_is_undone(bundle, monkeypatch):
    before = tree(bundle)
    monkeypatch.setattr(publish, "exchange", lambda first, second: False)
    rename = type(bundle).rename

    def failing(self, target):
        if ".tmp-" in self.name:
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(type(bundle), "rename", failing)
    with pytest.raises(OutputError, match="Input/output error"):
        save(bundle, 5)
    assert tree(bundle) == before
    assert names(bundle.parent) == [bundle.name]


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EDQUOT])
def test_a_folder_that_cannot_be_written(bundle, monkeypatch, code):
    def failing(self, *args, **kwargs):
        raise OSError(code, os.strerror(code))

    before = tree(bundle)
    monkeypatch.setattr(type(bundle), "mkdir", failing)
    with pytest.raises(OutputError, match=os.strerror(code)):
        save(bundle, 5)
    assert tree(bundle) == before
    assert names(bundle.parent) == [bundle.name]


def test_the_lock_holds_although_its_file_is_removed(tmp_path):
    counter = tmp_path / "counter"
    counter.write_text("0")
    command = [sys.executable, bundle_process.__file__, "count", tmp_path / "b", "200", counter]
    processes = [subprocess.Popen(list(map(str, command))) for _ in range(4)]
    assert [process.wait() for process in processes] == [0] * 4
    assert counter.read_text() == "800"
    assert names(tmp_path) == ["counter"]


def test_a_file_system_without_locks_still_publishes(bundle, monkeypatch):
    def failing(fd, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(publish.fcntl, "flock", failing)
    save(bundle, 5)
    assert verify(bundle) == []
    assert names(bundle.parent) == [bundle.name]


@pytest.mark.parametrize("renamed", [False, True])
def test_an_interrupt_while_a_folder_is_moved_aside_keeps_a_whole_bundle(
    bundle, monkeypatch, renamed
):
    rename, calls = Path.rename, []

    def interrupted(self, target):
        calls.append(self)
        if len(calls) != 2:
            return rename(self, target)
        if renamed:
            rename(self, target)
        raise KeyboardInterrupt

    monkeypatch.setattr(publish, "exchange", lambda first, second: False)
    before = tree(bundle)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", interrupted)
        with pytest.raises(KeyboardInterrupt):
            save(bundle, 5)
    assert verify(bundle) == []
    assert (tree(bundle) != before) == renamed
    save(bundle, 6)
    assert names(bundle.parent) == [bundle.name]
