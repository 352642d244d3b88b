"""Folders beside one that is written, where the system is another one or does not do as asked."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import importlib
import os
import secrets
import sys

import pytest

from narrowpass.bundle import publish
from narrowpass.bundle.publish import (
    ASIDE,
    MARKER,
    TEMPORARY,
    exchange,
    fresh_name,
    list_siblings,
    locked,
    remove_leftovers,
    temporary,
)


@pytest.fixture
def target(tmp_path):
    return tmp_path / "m.narrow"


def test_a_name_that_is_taken_is_not_taken_again(target, monkeypatch):
    drawn = iter(["00000000", "00000000", "00000001"])
    monkeypatch.setattr(secrets, "token_hex", lambda count: next(drawn))
    first = fresh_name(target, ASIDE)
    first.symlink_to("nowhere")  # a link to nothing has the name, too
    second = fresh_name(target, ASIDE)
    assert first.name == ".m.narrow.old-00000000"
    assert second.name == ".m.narrow.old-00000001"
    second.mkdir()
    assert list_siblings(target, ASIDE) == [first, second]
    assert list_siblings(target, TEMPORARY) == []


def test_a_lock_file_that_was_replaced_meanwhile_is_no_lock(target, monkeypatch):
    """Its holder removed it, and another one created the next, while we waited."""
    path, asked, flock = target.parent / ".m.narrow.lock", [], fcntl.flock

    def wait(fd, how):
        flock(fd, how)
        asked.append(os.fstat(fd).st_ino)
        if len(asked) == 1:
            path.rename(target.parent / "kept")  # so that its number is not used again
            path.touch()
        if len(asked) == 2:
            path.rename(target.parent / "kept too")

    monkeypatch.setattr(fcntl, "flock", wait)
    with locked(target):
        assert len(asked) == len(set(asked)) == 3
        assert path.stat().st_ino == asked[-1]
    assert not path.exists()


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP])
def test_without_locks_of_the_file_system_work_goes_on(number, target, monkeypatch):
    def refuse(fd, how):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with locked(target):
        with temporary(target) as folder:
            pass
        # Nobody can say whether the build lives: its folder stays.
        remove_leftovers(target)
        assert folder.is_dir()


@pytest.mark.parametrize("error", [OSError(errno.EIO, "broken"), KeyboardInterrupt()])
def test_a_lock_that_fails_leaves_no_descriptor(error, target, monkeypatch):
    opened = []

    def fail(fd, how):
        opened.append(fd)
        raise error

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(type(error)), locked(target):
        pytest.fail("the block runs")
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])


def test_a_marker_that_is_a_link_is_not_ours(target):
    """Such a folder is of another origin, and stays."""
    folder = fresh_name(target, TEMPORARY)
    folder.mkdir()
    (target.parent / "precious").write_bytes(b"kept")
    (folder / MARKER).symlink_to("../precious")
    remove_leftovers(target)
    assert (folder / MARKER).is_symlink()
    assert (target.parent / "precious").read_bytes() == b"kept"


def test_a_folder_without_a_marker_stays_where_it_has_files(target):
    full, empty = (fresh_name(target, TEMPORARY) for _ in range(2))
    full.mkdir()
    (full / "file").touch()
    empty.mkdir()
    remove_leftovers(target)
    assert full.is_dir()
    assert not empty.exists()


def test_a_folder_whose_marker_cannot_be_created_goes(target, monkeypatch):
    def refuse(*arguments, **keywords):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(OSError, match="No space left"), temporary(target):
            pytest.fail("the block runs")
    assert list(target.parent.iterdir()) == []


def test_a_folder_that_somebody_else_has_just_created_stays(target, monkeypatch):
    taken = target.parent / f".{target.name}.tmp-01234567"
    taken.mkdir()
    monkeypatch.setattr(publish, "fresh_name", lambda target, kind: taken)
    with pytest.raises(FileExistsError), temporary(target):
        pytest.fail("the block runs")
    assert taken.is_dir()


class Library:
    """The system's library with one function, which fails with a number, or not for 0."""

    def __init__(self, name, number):
        self._number = number
        self.calls = []
        setattr(self, name, self._exchange)

    def _exchange(self, *arguments):
        self.calls.append([getattr(value, "value", value) for value in arguments])
        ctypes.set_errno(self._number)
        return -1 if self._number else 0


@pytest.mark.parametrize(
    ("platform", "name"), [("darwin", "renamex_np"), ("linux", "renameat2"), ("other", "rename")]
)
def test_each_system_is_asked_in_its_own_way(platform, name, target, monkeypatch):
    first, second = target, target.with_name("other")
    monkeypatch.setattr(sys, "platform", platform)
    for number in (0, errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        library = Library(name, number)
        monkeypatch.setattr(ctypes, "CDLL", lambda path, library=library, **options: library)
        assert exchange(first, second) is (number == 0 and platform != "other")
        expected = {
            "darwin": [[os.fsencode(first), os.fsencode(second), 2]],
            "linux": [[-100, os.fsencode(first), -100, os.fsencode(second), 2]],
            "other": [],
        }
        assert library.calls == expected[platform]
    if platform != "other":
        library = Library(name, errno.EACCES)
        monkeypatch.setattr(ctypes, "CDLL", lambda path, **options: library)
        with pytest.raises(PermissionError, match=r"other"):
            exchange(first, second)


def test_folders_are_exchanged_or_neither_is_touched(target):
    other = target.with_name("other")
    for folder in (target, other):
        folder.mkdir()
        (folder / "name").write_text(folder.name)
    done = exchange(target, other)
    found = [(folder / "name").read_text() for folder in (target, other)]
    assert found == (["other", "m.narrow"] if done else ["m.narrow", "other"])


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("narrowpass_ir.siblings", "narrowpass.bundle.publish"),
        ("narrowpass_ir.data.records", "narrowpass.bundle.manifest"),
    ],
)
def test_names_are_found_where_they_were(before, now):
    old, new = importlib.import_module(before), importlib.import_module(now)
    assert all(getattr(old, name) is getattr(new, name) for name in old.__all__)
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        _ = old.other
