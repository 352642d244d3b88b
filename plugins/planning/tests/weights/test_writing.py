"""Files replaced atomically, on file systems of all kinds, and what killed writers left."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path

import pytest

from narrowpass_planning.weights import writing

pytestmark = pytest.mark.anywhere


def refuse_unnamed_files(monkeypatch, number):
    """Let each call that would create a file without a name fail with an error."""
    if not writing._UNNAMED:
        pytest.skip("only Linux has O_TMPFILE")
    opened = os.open

    def refuse(path, flags, *given, **more):
        if flags & writing._UNNAMED == writing._UNNAMED:
            raise OSError(number, "refused")
        return opened(path, flags, *given, **more)

    monkeypatch.setattr(os, "open", refuse)


@pytest.fixture(params=["unnamed", "refused", "absent", "without proc"])
def file_system(request, monkeypatch):
    """Write on a file system with unnamed files, and on those without."""
    if request.param == "absent":
        monkeypatch.setattr(writing, "_UNNAMED", 0)
    if request.param == "refused":
        refuse_unnamed_files(monkeypatch, errno.EOPNOTSUPP)
    if request.param == "without proc":
        monkeypatch.setattr(os.path, "exists", lambda path: False)
    return request.param


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced_at_the_end(tmp_path, file_system):
    path = tmp_path / "f"
    path.write_bytes(b"before")
    with writing.replacing(path) as file:
        file.write(b"after")
        file.flush()
        assert path.read_bytes() == b"before"
        assert len(names(tmp_path)) == 1 + (file_system != "unnamed")
    assert path.read_bytes() == b"after"
    assert stat.S_IMODE(path.stat().st_mode) & ~0o644 == 0
    assert names(tmp_path) == ["f"]


def test_an_error_leaves_the_file_as_it_was(tmp_path, file_system):
    path = tmp_path / "f"
    path.write_bytes(b"before")

    def write() -> None:
        with writing.replacing(path) as file:
            file.write(b"after")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        write()
    assert path.read_bytes() == b"before"
    assert names(tmp_path) == ["f"]


@pytest.mark.usefixtures("file_system")
def test_a_rename_that_fails_leaves_nothing(tmp_path, monkeypatch):
    def refuse(*given, **more):
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(OSError, match="no space"), writing.replacing(tmp_path / "f") as file:
        file.write(b"x")
    assert names(tmp_path) == []


def test_a_name_that_somebody_else_has_deleted(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "_UNNAMED", 0)
    unlink, rename = os.unlink, os.rename

    def deleted(name, *given, **more):
        unlink(tmp_path / name)
        rename(name, *given, **more)

    monkeypatch.setattr(os, "rename", deleted)
    with pytest.raises(FileNotFoundError), writing.replacing(tmp_path / "f"):
        pass
    assert names(tmp_path) == []


def test_an_error_that_says_nothing_of_unnamed_files_is_one(tmp_path, monkeypatch):
    refuse_unnamed_files(monkeypatch, errno.ENOSPC)
    with pytest.raises(OSError, match="refused"), writing.replacing(tmp_path / "f"):
        pass


@pytest.mark.parametrize("how", ["locked", "deleted", "replaced"])
def test_a_new_name_that_is_taken_for_a_leftover(tmp_path, monkeypatch, how):
    """Between its creation and its lock a file may be deleted: the writer takes another name."""
    monkeypatch.setattr(writing, "_UNNAMED", 0)
    lock, seen = fcntl.flock, []

    def raced(descriptor, operation):
        seen.append(descriptor)
        if len(seen) == 1:
            (name,) = names(tmp_path)
            if how == "locked":
                raise BlockingIOError
            (tmp_path / name).unlink()
            if how == "replaced":
                (tmp_path / name).write_bytes(b"of another writer")
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", raced)
    with writing.replacing(tmp_path / "f") as file:
        file.write(b"x")
    assert len(seen) == 2
    assert (tmp_path / "f").read_bytes() == b"x"
    left = [path.read_bytes() for path in tmp_path.glob(".packed-*")]
    assert left == {"locked": [b""], "deleted": [], "replaced": [b"of another writer"]}[how]


def test_what_is_left_behind(tmp_path, monkeypatch):
    old = tmp_path / ".narrowpass-old.tmp"
    new = tmp_path / ".narrowpass-new.tmp"
    left = tmp_path / ".packed-left.tmp"
    locked = tmp_path / ".packed-locked.tmp"
    link = tmp_path / ".packed-link.tmp"
    for path in (old, new, left, locked):
        path.touch()
    link.symlink_to(tmp_path / "missing")
    monkeypatch.setattr(writing.time, "time", lambda: 10_000.0)
    os.utime(old, (0, 6399))  # an hour and a second ago
    os.utime(new, (0, 6400))
    with locked.open("rb") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        assert writing.leftovers(tmp_path) == [old, left]
        assert names(tmp_path) == sorted(p.name for p in (old, new, left, locked, link))
        assert set(writing.delete_leftovers(tmp_path)) == {left, old}
        assert names(tmp_path) == sorted(p.name for p in (new, locked, link))


def test_what_is_gone_before_it_is_deleted(tmp_path, monkeypatch):
    old, left = tmp_path / ".narrowpass-old.tmp", tmp_path / ".packed-left.tmp"
    for path in (old, left):
        path.touch()
    os.utime(old, (0, 0))
    unlink = Path.unlink

    def late(path):
        unlink(path)
        unlink(path)

    monkeypatch.setattr(Path, "unlink", late)
    assert writing.delete_leftovers(tmp_path) == []
    assert names(tmp_path) == []
    assert not writing._is_old(old)


def test_links_and_pipes_of_that_name(tmp_path):
    """A link may lead to a file of somebody else, and a pipe has a reader wait."""
    folder = tmp_path / "cache"
    folder.mkdir()
    other = tmp_path / "other"
    other.write_bytes(b"kept")
    (folder / ".packed-link.tmp").symlink_to(other)
    os.mkfifo(folder / ".packed-pipe.tmp")
    assert [path.name for path in writing.leftovers(folder)] == [".packed-pipe.tmp"]
    writing.delete_leftovers(folder)
    assert names(folder) == [".packed-link.tmp"]
    assert other.read_bytes() == b"kept"


def test_a_link_to_a_new_file_is_not_that_file(tmp_path):
    file = tmp_path / "file"
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT)
    folder = os.open(tmp_path, os.O_RDONLY)
    (tmp_path / "link").symlink_to(file)
    try:
        assert writing._is_at(descriptor, folder, "file")
        assert not writing._is_at(descriptor, folder, "link")
        assert not writing._is_at(descriptor, folder, "gone")
    finally:
        os.close(descriptor)
        os.close(folder)
