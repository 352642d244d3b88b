"""Files of stored methods: their format, and what is no document."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import socket
import struct
import time
from pathlib import Path

import pytest

from narrowpass_planning.stored import file

pytestmark = pytest.mark.anywhere
DOCUMENT = {"a": [1, None, "é"], "b": {}}


def signed(text: bytes, key: str = "key") -> bytes:
    digest = hashlib.sha256(key.encode() + b"\0" + text).digest()
    return struct.pack("<8sIIQ32s", b"NPMETHOD", 1, 0, len(text), digest) + text


def test_a_document_is_read_with_its_key(tmp_path, caplog):
    path = tmp_path / "a" / "b" / "m.method"
    file.write(path, "key", DOCUMENT)
    assert file.read(path, "key") == DOCUMENT
    assert path.read_bytes() == signed(b'{"a":[1,null,"\\u00e9"],"b":{}}')
    assert path.parent.stat().st_mode & 0o022 == 0
    file.write(path, "other", [])
    with caplog.at_level(logging.INFO, "narrowpass"):
        assert file.read(path, "key") is None
        assert file.read(tmp_path / "missing" / "m", "key") is None
    assert caplog.records == []
    assert file.read(path, "other") == []


def test_files_that_are_none(tmp_path):
    path = tmp_path / "m"
    whole = signed(b"[1]")
    path.write_bytes(whole)
    assert file.read(path, "key") == [1]
    header = bytearray(whole)
    header[12] = 1  # reserved
    path.write_bytes(header)
    assert file.read(path, "key") == [1]
    wrong = [whole[:55], whole[:-1], whole + b" ", b"", signed(b"[1]", "kez")]
    for at in (0, 8, 16, 24, 55, 56):
        changed = bytearray(whole)
        changed[at] ^= 1
        wrong.append(bytes(changed))
    for content in wrong:
        path.write_bytes(content)
        assert file.read(path, "key") is None


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[" * 100_000])
def test_a_signed_text_that_is_no_document(tmp_path, caplog, text):
    (tmp_path / "m").write_bytes(signed(text))
    assert file.read(tmp_path / "m", "key") is None
    assert "a stored method is no document" in caplog.text


def test_what_is_too_large_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(file, "_LARGEST", 58)
    (tmp_path / "m").write_bytes(signed(b"[1]"))
    assert file.read(tmp_path / "m", "key") is None


def for_all(path: Path) -> None:
    path.chmod(0o666)


def folder_for_all(path: Path) -> None:
    path.parent.chmod(0o777)


def link(path: Path) -> None:
    path.rename(path.with_name("other"))
    path.symlink_to("other")


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def plug(path: Path) -> None:
    path.unlink()
    os.chdir(path.parent)  # names of sockets are short
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(path.name)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (for_all, "is not read"),
        (folder_for_all, "are not read"),
        (link, "cannot be read"),
        (pipe, "is no file"),
        (plug, "cannot be read"),
    ],
)
def test_foreign_files_are_not_read(tmp_path, caplog, monkeypatch, change, said):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "m"
    path.write_bytes(signed(b"[1]"))
    change(path)
    with caplog.at_level(logging.INFO, "narrowpass"):
        assert file.read(path, "key") is None
    assert said in caplog.text


def test_nothing_is_written_into_a_folder_of_others(tmp_path):
    folder = tmp_path / "c"
    folder.mkdir()
    folder.chmod(0o777)
    file.write(folder / "m", "key", DOCUMENT)
    assert list(folder.iterdir()) == []


def test_a_write_that_fails_is_done_without(tmp_path, caplog, monkeypatch):
    def refuse(path):
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(file, "replacing", refuse)
    with caplog.at_level(logging.INFO, "narrowpass"):
        file.write(tmp_path / "m", "key", DOCUMENT)
    assert "planned again by the next process" in caplog.text
    assert not (tmp_path / "m").exists()


WEEK = 7 * 24 * 3600


@pytest.mark.parametrize(
    ("age", "left"), [(0, True), (WEEK - 60, True), (WEEK + 60, False), (-50 * WEEK, True)]
)
def test_files_of_other_versions_go_after_a_week(tmp_path, age, left):
    ours, theirs, others = (tmp_path / f"{name}.method" for name in ("a-1", "a-2", "b-2"))
    for path in (ours, theirs, others):
        path.touch()
        os.utime(path, (0, time.time() - age))
    file.delete_unused(ours, "a")
    assert [path.exists() for path in (ours, theirs, others)] == [True, left, True]


def test_a_file_that_is_read_is_in_use(tmp_path):
    path = tmp_path / "a-1.method"
    path.write_bytes(signed(b"[1]"))
    os.utime(path, (0, 0))
    assert file.read(path, "key") == [1]
    file.delete_unused(tmp_path / "a-2.method", "a")
    assert path.exists()
