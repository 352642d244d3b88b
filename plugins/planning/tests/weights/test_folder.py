"""The cache folder: which files are opened, checked, locked, listed and deleted."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import time
from pathlib import Path

import numpy as np
import platformdirs
import pytest
from array_cache_kit import Packer, entries, floats, pack, rewrite, stored
from filelock import FileLock

from narrowpass.errors import OutputError, UsageError
from narrowpass_planning.weights import array_cache, chosen_folder, folder
from narrowpass_planning.weights.file import PackedFile
from narrowpass_planning.weights.folder import METHOD, CacheFile, Listed, listed, prune

pytestmark = pytest.mark.anywhere
PACKER = Packer()


@pytest.fixture
def read(monkeypatch):
    """Return the files whose blocks are compared with their checksums from now on."""
    found: list[PackedFile] = []
    damaged = PackedFile.damaged

    def noted(file):
        found.append(file)
        return damaged(file)

    monkeypatch.setattr(PackedFile, "damaged", noted)
    return found


def note_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.checked")


# Which folder


def test_which_folder_is_chosen(monkeypatch, tmp_path):
    monkeypatch.setenv("NARROWPASS_CACHE_DIR", str(tmp_path))
    assert chosen_folder() == tmp_path
    assert chosen_folder("x") == chosen_folder(Path("x")) == chosen_folder(b"x") == Path("x")
    monkeypatch.setenv("NARROWPASS_CACHE_DIR", "")
    assert chosen_folder() == Path(platformdirs.user_cache_dir("narrowpass")) / "weights"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (7, "not 7"),
        ("", "which '' cannot be"),
        ("a\0b", r"which 'a\\x00b' cannot be"),
        ("\ud800", "not Unicode"),
    ],
)
def test_what_is_no_folder(given, reason):
    with pytest.raises(UsageError, match=f"cache_dir .*{reason}"):
        chosen_folder(given)


# Opening


def test_a_file_is_compared_once(tmp_path, read):
    file = stored(tmp_path, floats(4, 4))
    note = note_of(file.path)
    for _ in range(3):
        assert file.open().entries
    assert len(read) == 1
    os.utime(file.path, (1, 1))  # written to
    file.open()
    assert len(read) == 2
    before = note.read_bytes()
    for content in (b"", b"{", b"[]", b" " * 5000 + before, b"\xff"):
        note.write_bytes(content)
        file.open()
    assert len(read) == 7
    note.chmod(0o666)
    file.open()
    assert len(read) == 8
    assert note.read_bytes() == before
    note.unlink()
    note.symlink_to("other")
    note.with_name("other").write_bytes(before)
    file.open()
    assert len(read) == 9
    assert not note.is_symlink()


def test_the_use_of_a_file_is_noted(tmp_path):
    file = stored(tmp_path, floats(4, 4))
    file.open()
    os.utime(note_of(file.path), (1, 1))
    file.open()
    assert note_of(file.path).stat().st_mtime > 1


def test_a_note_that_cannot_be_written_is_done_without(tmp_path, monkeypatch, read):
    file = stored(tmp_path, floats(4, 4))

    def refuse(path):
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(folder, "replacing", refuse)
    for _ in range(2):
        assert file.open().entries
    assert len(read) == 2
    assert not note_of(file.path).exists()


def test_an_opened_file_holds_no_descriptor(tmp_path):
    found = stored(tmp_path, floats(4, 4)).open()
    assert found._file.closed
    assert found.block(found.entries[0]).any()


def test_there_is_no_file(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "narrowpass"):
        assert CacheFile(tmp_path, "k", PACKER).open() is None
        assert CacheFile(tmp_path / "missing", "k", PACKER).open() is None
    assert caplog.records == []


def test_what_killed_writers_left_is_deleted(tmp_path):
    left = tmp_path / ".packed-0.tmp"
    left.touch()
    CacheFile(tmp_path, "k", PACKER).open()
    assert not left.exists()


def test_a_damaged_file_is_packed_again(tmp_path, caplog):
    file = stored(tmp_path, floats(4, 4), floats(4, 4))
    with file.path.open("r+b") as written:
        written.seek(130)
        written.write(b"\xff\xff\xff\xff")
    with caplog.at_level(logging.INFO, "narrowpass"):
        assert file.open() is None
    assert "packed again" in caplog.text
    assert "1 of 2 blocks are damaged" in caplog.text
    assert not note_of(file.path).exists()
    with file.writing() as mine:
        assert mine


@pytest.mark.usefixtures("warned")
@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_others_can_write_is_not_used_and_not_replaced(tmp_path, caplog, what):
    file = stored(tmp_path / "c", floats(4, 4))
    path = file.path if what == "file" else file.path.parent
    path.chmod(0o777)
    for _ in range(2):
        assert file.open() is None
    with file.writing() as mine:
        assert mine is False
    (record,) = caplog.records  # once
    assert f"chmod go-w {path}" in record.message
    assert "kept in memory only" in record.message


def test_a_path_that_cannot_be_opened(tmp_path, caplog):
    file = CacheFile(tmp_path, "k", PACKER)
    file.path.symlink_to("other")
    with caplog.at_level(logging.INFO, "narrowpass"):
        assert file.open() is None
    assert "cannot be read" in caplog.text


# Writing


def test_one_writer_at_a_time(tmp_path, caplog):
    one = CacheFile(tmp_path / "a" / "b", "k", PACKER)
    two = CacheFile(tmp_path / "a" / "b", "k", PACKER)
    with one.writing() as mine:
        assert mine
        with caplog.at_level(logging.INFO, "narrowpass"), two.writing(patience=0) as second:
            assert second is False
        assert "another process is writing it" in caplog.text
    with two.writing(patience=0) as mine:
        assert mine
    assert one.path.parent.stat().st_mode & 0o022 == 0


def test_a_lock_is_released_after_an_error(tmp_path):
    file = CacheFile(tmp_path, "k", PACKER)
    with pytest.raises(RuntimeError, match="stop"), file.writing():
        raise RuntimeError("stop")
    with CacheFile(tmp_path, "k", PACKER).writing(patience=0) as mine:
        assert mine


@pytest.mark.usefixtures("warned")
@pytest.mark.parametrize("below", ["", "below"])
def test_a_folder_that_is_a_file(tmp_path, caplog, below):
    (tmp_path / "f").touch()
    with CacheFile(tmp_path / "f" / below, "k", PACKER).writing() as mine:
        assert mine is False
    assert f"{tmp_path / 'f' / below} is no folder" in caplog.text


@pytest.mark.usefixtures("warned")
def test_a_folder_that_cannot_be_written(tmp_path, caplog, monkeypatch):
    def refuse(self, *given, **more):
        raise PermissionError(errno.EACCES, "refused")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with CacheFile(tmp_path / "c", "k", PACKER).writing() as mine:
        assert mine is False
    (record,) = caplog.records
    assert "refused" in record.message


def test_a_lock_that_cannot_be_released_is_no_reason_to_fail(tmp_path, monkeypatch):
    def refuse(self):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(FileLock, "release", refuse)
    with CacheFile(tmp_path, "k", PACKER).writing() as mine:
        assert mine
    monkeypatch.undo()


@pytest.mark.usefixtures("warned")
def test_a_write_that_fails_is_said_once_for_a_folder(tmp_path, caplog, monkeypatch):
    def refuse(path):
        raise OSError(errno.ENOSPC, "no space")

    array = np.zeros((2, 2), np.float32)
    monkeypatch.setattr(folder, "replacing", refuse)
    for name in ("a", "a", "b"):
        stored(tmp_path / name, array)
    assert [record.message.count("no space") for record in caplog.records] == [1, 1]


# Listing


def test_what_is_listed(tmp_path):
    assert listed(tmp_path / "missing", PACKER) == []
    assert listed(tmp_path, PACKER) == []
    path = stored(tmp_path, floats(4, 4), floats(4, 4)).path
    size = path.stat().st_size
    os.utime(path, (0, 1000))
    assert listed(tmp_path, PACKER) == [Listed(path, size, 1000.0, "", 2)]
    note_of(path).touch()
    os.utime(note_of(path), (0, 999))
    assert listed(tmp_path, PACKER)[0].used == 1000.0
    os.utime(note_of(path), (0, 1001))
    assert listed(tmp_path, PACKER)[0].used == 1001.0
    note_of(path).unlink()
    with path.open("r+b") as file:
        file.seek(128)
        file.write(b"\xff\xff\xff\xff")
    os.utime(path, (0, 1000))
    assert listed(tmp_path, PACKER)[0].problem == ""
    (damaged,) = listed(tmp_path, PACKER, verify=True)
    assert "1 of 2 blocks are damaged" in damaged.problem
    assert damaged.blocks == 2
    rewrite(path, lambda index: index.pop("entries"))
    (wrong,) = listed(tmp_path, PACKER)
    assert "has no entries" in wrong.problem
    assert (wrong.blocks, wrong.size) == (0, path.stat().st_size)


def test_files_of_a_folder_that_others_can_write(tmp_path):
    stored(tmp_path / "c", floats(4, 4))
    (tmp_path / "c").chmod(0o777)
    assert "chmod go-w" in listed(tmp_path / "c", PACKER)[0].problem


def bundle(path: Path, *sizes: int, used: float) -> int:
    """Put files into what is named as a bundle; return the bytes that a listing counts."""
    path.mkdir(parents=True)
    for number, size in enumerate(sizes):
        (path / f"{number}").write_bytes(bytes(size))
    os.utime(path, (0, used))
    return sum(sizes)


def test_bundles_and_leftovers_are_listed_by_their_last_use(tmp_path):
    file = stored(tmp_path, floats(4, 4)).path
    os.utime(file, (0, 1002))
    one = tmp_path / "set" / "a.narrow"
    size = bundle(one, 10, 20, used=1003)
    bundle(tmp_path / "top.narrow", 10, used=1)  # no cache has it
    left, small = tmp_path / ".packed-0.tmp", tmp_path / ".packed-1.tmp"
    left.write_bytes(bytes(128))
    small.write_bytes(bytes(127))
    os.utime(left, (0, 1001))
    found = listed(tmp_path, PACKER)
    assert [item.path for item in found] == [one, file, left]
    assert found[0] == Listed(one, size, 1003.0, "", 0, is_bundle=True)
    assert found[2] == Listed(left, 128, 1001.0, found[2].problem, 0, is_leftover=True)
    assert "left by a process that was killed" in found[2].problem


def test_what_is_deleted_while_it_is_listed(tmp_path, monkeypatch):
    path = stored(tmp_path, floats(4, 4)).path
    bundle(tmp_path / "set" / "a.narrow", 10, used=1)
    (tmp_path / ".packed-0.tmp").write_bytes(bytes(500))
    stat = Path.stat

    def gone(self, **more):
        if self.name.startswith((path.name, "a.narrow")) or ".tmp" in self.name:
            raise FileNotFoundError(errno.ENOENT, "gone", str(self))
        return stat(self, **more)

    monkeypatch.setattr(Path, "stat", gone)
    assert listed(tmp_path, PACKER) == []


# Pruning


@pytest.fixture
def three(tmp_path):
    """Return a file, a bundle and a file of 1000 bytes each, the last used first."""
    found = []
    for number in range(3):
        path = tmp_path / f"{number}{PACKER.suffix}"
        if number == 1:
            path = tmp_path / "set" / "1.narrow"
            bundle(path, 600, 400, used=1)
        else:
            stored(tmp_path, floats(4, 4)).path.rename(path)
            rewrite(path, lambda index: None)
            pad(path, 1000)
        os.utime(path, (0, 1000 - number))
        found.append(path)
    return found


def pad(path: Path, size: int) -> None:
    """Fill the index with spaces up to a size."""

    def change(index):
        text = json.dumps(index).encode()
        return text + b" " * (size - 256 - len(text))

    rewrite(path, change)
    assert path.stat().st_size == size


@pytest.mark.parametrize(
    ("most", "left"), [(3000, 3), (2999, 2), (2000, 2), (1999, 1), (1000, 1), (999, 0), (0, 0)]
)
def test_the_least_recently_used_are_deleted(tmp_path, three, most, left):
    note_of(three[2]).touch()
    os.utime(note_of(three[2]), (0, 0))
    deleted = prune(tmp_path, most, PACKER)
    assert [item.path for item in deleted] == three[left:]
    assert [path for path in three if path.exists()] == three[:left]
    assert note_of(three[2]).exists() == (left == 3)


def test_unusable_files_are_deleted_first(tmp_path, three):
    three[0].write_bytes(b"x" * 1000)
    assert [item.path for item in prune(tmp_path, 5000, PACKER)] == [three[0]]


def test_a_file_that_is_being_written_stays_and_counts(tmp_path, three):
    with FileLock(f"{three[0]}.lock"):
        deleted = prune(tmp_path, 1000, PACKER)
        assert [item.path for item in deleted] == three[1:]
        assert prune(tmp_path, 0, PACKER) == []
    assert three[0].exists()
    assert [item.path for item in prune(tmp_path, 0, PACKER)] == [three[0]]


def test_a_busy_file_leaves_less_room_for_others(tmp_path, three):
    three[0].write_bytes(b"x" * 1000)  # unusable: it would be deleted
    with FileLock(f"{three[0]}.lock"):
        os.utime(three[0], (0, 2000))
        assert [item.path for item in prune(tmp_path, 2000, PACKER)] == three[2:]


def test_methods_without_weights_and_leftovers_are_deleted(tmp_path):
    kept = stored(tmp_path, floats(4, 4)).path
    ours, others = tmp_path / f"k.1{METHOD}", tmp_path / f"j.k{METHOD}"
    left, small = tmp_path / ".packed-0.tmp", tmp_path / ".packed-1.tmp"
    for path in (ours, others, small):
        path.touch()
    left.write_bytes(bytes(128))
    assert [item.path for item in prune(tmp_path, 10_000, PACKER)] == [left]
    assert [path.exists() for path in (kept, ours, others, left, small)] == [
        *(True, True),
        *(False, False, False),
    ]


def test_files_of_other_versions_are_kept_by_their_last_use(tmp_path):
    """Whoever wrote them may be in use, too: they are no worse than ours."""
    ours, others = (
        stored(tmp_path, floats(4, 4), packer=each).path for each in (PACKER, Packer(2))
    )
    method = tmp_path / f"k.1{METHOD}"
    method.touch()
    os.utime(ours, (0, 1000))
    os.utime(others, (0, 2000))
    assert [item.is_foreign for item in listed(tmp_path, PACKER)] == [True, False]
    assert prune(tmp_path, ours.stat().st_size + others.stat().st_size, PACKER) == []
    assert [item.path for item in prune(tmp_path, others.stat().st_size, PACKER)] == [ours]
    assert method.exists(), "the other version still has the weights"
    assert [item.path for item in prune(tmp_path, 0, PACKER)] == [others]


WEEK = 7 * 24 * 3600


@pytest.mark.parametrize(
    ("age", "left"),
    [(0, True), (WEEK - 60, True), (60 - WEEK, True), (WEEK + 60, False), (-50 * WEEK, True)],
)
def test_a_file_of_another_version_goes_after_a_week(tmp_path, age, left):
    other = stored(tmp_path, floats(4, 4), packer=Packer(2)).path
    note = other.with_name(f"{other.name}.checked")
    note.touch()
    for path in (other, note):
        os.utime(path, (0, time.time() - age))
    longer = other.with_name(f"k2{PACKER.suffix}")  # of other weights
    longer.touch()
    os.utime(longer, (0, 0))
    stored(tmp_path, floats(4, 4))
    assert (other.exists(), note.exists(), longer.exists()) == (left, left, True)


def test_a_file_of_another_version_that_is_being_written_stays(tmp_path):
    file = stored(tmp_path, floats(4, 4), packer=Packer(2))
    os.utime(file.path, (0, 0))
    with file.writing() as mine:
        assert mine
        stored(tmp_path, floats(4, 4))
    assert file.path.exists()


def test_a_size_below_zero_and_a_file_that_cannot_be_deleted(tmp_path, three, monkeypatch):
    with pytest.raises(UsageError, match="must not be negative: -1"):
        prune(tmp_path, -1, PACKER)

    def refuse(path):
        raise PermissionError(errno.EACCES, "refused", str(path))

    monkeypatch.setattr(shutil, "rmtree", refuse)
    with pytest.raises(OutputError, match=rf"{three[1]}: cannot be deleted: refused"):
        prune(tmp_path, 0, PACKER)


def test_an_error_without_a_name_names_the_folder(tmp_path, three, monkeypatch):
    def refuse(path):
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(shutil, "rmtree", refuse)
    with pytest.raises(OutputError, match=rf"{tmp_path}: cannot be deleted: broken"):
        prune(tmp_path, 0, PACKER)


def test_a_written_file_is_that_of_the_session(tmp_path):
    array = floats(4, 4)
    file = stored(tmp_path, array)
    with array_cache().begin() as session:
        session.offer(entries(file.path), file.open())
        block = pack(session, array, "0")
    assert session.counts.hits == 1
    np.testing.assert_array_equal(block.view(np.float32).reshape(4, 4), array.T)
