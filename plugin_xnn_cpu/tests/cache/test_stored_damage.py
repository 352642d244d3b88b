"""Files of compiled methods that are damaged, or that others wrote: they are planned again."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from cache_kit import INPUT, NOBODY, as_user, linear, network, own
from stored_kit import save, stored

import narrowpass

pytestmark = pytest.mark.anywhere


FOREIGN = {
    "empty": lambda path: path.write_bytes(b""),
    "short": lambda path: path.write_bytes(path.read_bytes()[:40]),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b" "),
    "a byte": lambda path: path.write_bytes(path.read_bytes()[:-9] + b"7" + path.read_bytes()[-8:]),
    "version": lambda path: path.write_bytes(path.read_bytes()[:8] + b"\2" + path.read_bytes()[9:]),
    "text": lambda path: path.write_bytes(b"{}" * 100),
    "for all": lambda path: path.chmod(0o666),
    "for the group": lambda path: path.chmod(0o664),
    "a link": lambda path: path.rename(path.with_name("other")) and path.symlink_to("other"),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
}


@pytest.mark.parametrize("change", FOREIGN)
def test_a_file_that_is_damaged_or_foreign_is_planned_again(
    tmp_path, network_path, load, planned, change
):
    """And written again: the next process restores it."""
    with load() as program:
        wanted = program.run({"x": INPUT})["y"]
    for path in stored(tmp_path):
        FOREIGN[change](path)
    for _ in range(2):
        with load() as program:
            np.testing.assert_array_equal(program.run({"x": INPUT})["y"], wanted)
    assert planned == ["main"] * 2


def test_a_file_of_another_user(tmp_path, network_path, load, planned):
    if os.geteuid():
        pytest.skip("only the superuser can change the owner of a file")
    load().close()
    for path in stored(tmp_path):
        os.chown(path, 12345, 12345)
    load().close()
    (tmp_path / "cache").chmod(0o777)
    load().close()
    assert planned == ["main"] * 3


@pytest.mark.parametrize("whose", ["another's", "the superuser's", "the user's"])
def test_a_user_reads_files_of_some(public, planned, whose):
    """Those of other users are planned again and replaced, where the folder is the user's."""
    if os.geteuid():
        pytest.skip("only the superuser can become another user")
    path, chosen = save(public, main=network()), {"threads": 1, "cache_dir": public / "cache"}
    for _ in range(2):
        narrowpass.load(path, "xnn-cpu", **chosen).close()
    assert planned == ["main"]
    own(public)
    for file in stored(public):
        owner = {"another's": 12345, "the superuser's": 0, "the user's": NOBODY}[whose]
        os.chown(file, owner, owner)

    def load():
        for _ in range(2):
            narrowpass.load(path, "xnn-cpu", **chosen).close()
        assert planned == (["main"] * 2 if whose == "another's" else ["main"])
        owners = {file.stat().st_uid for file in stored(public)}
        assert owners == ({0} if whose == "the superuser's" else {NOBODY})

    as_user(load)


def test_a_document_under_the_name_of_another(tmp_path, load, planned):
    """The key of a file is in its checksum: one that is copied over another is none."""
    matrix = np.random.default_rng(0).standard_normal((24, 24)).astype(np.float32)
    save(tmp_path, one=linear(matrix), two=linear(-matrix))
    load().close()
    one, two = sorted(stored(tmp_path), key=lambda path: path.stat().st_size)[-2:]
    two.write_bytes(one.read_bytes())
    with load() as program:
        x = np.eye(24, dtype=np.float32)
        np.testing.assert_allclose(program.run({"x": x}, "one")["y"], matrix.T, rtol=1e-6)
        np.testing.assert_allclose(program.run({"x": x}, "two")["y"], -matrix.T, rtol=1e-6)
    assert len(planned) == 3


# Documents that are damaged, and whose checksums are right


def damaged(path: Path, monkeypatch, change) -> None:
    """Change the document of a file, with a right checksum."""
    from narrowpass_planning.stored import file

    header, text = path.read_bytes()[: file._FORMAT.size], path.read_bytes()[file._FORMAT.size :]
    text = change(text)
    fields = file.MAGIC, file.VERSION, 0, len(text), file._FORMAT.unpack(header)[4]
    path.write_bytes(file._FORMAT.pack(*fields) + text)
    right = path.read_bytes()[24 : file._FORMAT.size]
    digest = file._digest
    monkeypatch.setattr(
        file, "_digest", lambda key, given: right if given == text else digest(key, given)
    )


@pytest.mark.parametrize("what", ["method", "signatures"])
@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace(b'"', b"'"),
        lambda text: b"[" * 100_000,
        lambda text: b"[3]",
        lambda text: text.replace(b"[", b"[99,", 3),
        lambda text: text.replace(b"float", b"floot"),
    ],
    ids=["no JSON", "nested too deeply", "a list", "more elements", "no dtype"],
)
def test_a_damaged_document_is_planned_again(tmp_path, monkeypatch, load, planned, change, what):
    save(tmp_path, main=linear(np.eye(24, dtype=np.float32)))
    load().close()
    with load():
        pass
    (path,) = [
        path for path in stored(tmp_path) if (b'"known"' in path.read_bytes()) == (what == "method")
    ]
    damaged(path, monkeypatch, change)
    del planned[:]
    x = np.ones((1, 24), np.float32)
    with load() as program:
        np.testing.assert_array_equal(program.run({"x": x})["y"], x)
    monkeypatch.undo()
    del planned[:]
    with load() as program:
        np.testing.assert_array_equal(program.run({"x": x})["y"], x)
    assert planned == []
