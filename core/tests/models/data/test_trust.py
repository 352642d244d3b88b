"""Which files and folders are trusted, by owner and mode."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from narrowpass_ir.data.trust import create_own_folder, distrust_file, distrust_folder

pytestmark = pytest.mark.anywhere


def status(mode: int, user: int) -> os.stat_result:
    return os.stat_result((mode, 1, 1, 1, user, user, 0, 0, 0, 0))


@pytest.fixture
def as_user(monkeypatch):
    """Run as user 1000."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


@pytest.mark.usefixtures("as_user")
@pytest.mark.parametrize(
    ("mode", "user", "reason"),
    [
        (0o644, 1000, ""),
        (0o755, 0, ""),
        (0o644, 1001, "belongs to user 1001"),
        (0o664, 1000, "can be written by other users"),
        (0o646, 1000, "can be written by other users"),
        (0o620, 0, "can be written by other users"),
    ],
)
def test_a_file(mode, user, reason):
    found = distrust_file(Path("f"), status(stat.S_IFREG | mode, user))
    assert reason in found
    assert bool(found) == bool(reason)
    assert not found or found.startswith("f ")


@pytest.mark.usefixtures("as_user")
@pytest.mark.parametrize(
    ("mode", "user", "reason"),
    [
        (0o755, 1000, ""),
        (0o755, 0, ""),
        (0o1777, 0, ""),
        (0o1777, 1001, "belongs to user 1001"),
        (0o775, 1000, "chmod go-w f"),
        (0o757, 0, "chmod go-w f"),
    ],
)
def test_a_folder(monkeypatch, mode, user, reason):
    monkeypatch.setattr(Path, "stat", lambda self: status(stat.S_IFDIR | mode, user))
    found = distrust_folder(Path("f"))
    assert reason in found
    assert bool(found) == bool(reason)
    assert not found or found.startswith("the folder f ")


def test_what_is_not_there_was_written_by_nobody(tmp_path):
    assert distrust_folder(tmp_path / "missing") == ""
    (tmp_path / "file").touch()
    assert distrust_folder(tmp_path / "file" / "below") == ""
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="loop"):
        distrust_folder(tmp_path / "loop")


@pytest.mark.usefixtures("as_user")
def test_a_sticky_folder_where_that_is_not_enough(monkeypatch):
    monkeypatch.setattr(Path, "stat", lambda self: status(stat.S_IFDIR | 0o1777, 0))
    assert "chmod go-w f" in distrust_folder(Path("f"), sticky=False)
    monkeypatch.setattr(Path, "stat", lambda self: status(stat.S_IFDIR | 0o1755, 0))
    assert distrust_folder(Path("f"), sticky=False) == ""


def test_folders_are_for_their_owner_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        (tmp_path / "there").mkdir()
        create_own_folder(tmp_path / "there" / "a" / "b")
        create_own_folder(tmp_path / "there" / "a" / "b")
    finally:
        os.umask(before)
    folders = [tmp_path / "there", tmp_path / "there" / "a", tmp_path / "there" / "a" / "b"]
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in folders] == [0o777, 0o755, 0o755]
    assert [bool(distrust_folder(folder)) for folder in folders] == [True, False, False]
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        create_own_folder(tmp_path / "file")
    with pytest.raises(NotADirectoryError):
        create_own_folder(tmp_path / "file" / "below")
