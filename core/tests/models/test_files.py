"""Files and folders that are written: whole or not at all, and never over what is read."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from narrowpass_ir.errors import OutputError, UsageError
from narrowpass_ir.files import (
    TEMPORARY,
    check_not_source,
    check_result_file,
    create_folder,
    replacing_file,
    sync_folder,
)


def failing(number):
    def fail(*arguments, **options):
        raise OSError(number, os.strerror(number))

    return fail


def replace(path, fail=None):
    with replacing_file(path) as file:
        file.write(b"new")
        if fail is not None:
            raise fail


def test_folders_are_created_with_those_above(tmp_path):
    for _ in range(2):
        create_folder(tmp_path / "a" / "b")
        assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_bytes(b"kept")
    for path in (tmp_path / "file", tmp_path / "file" / "b"):
        with pytest.raises(OutputError, match=r"file.*: the folder cannot be created: .*another"):
            create_folder(path)
    assert (tmp_path / "file").read_bytes() == b"kept"


def test_a_file_is_replaced_where_the_block_ends(tmp_path):
    path = tmp_path / "results.json"
    path.write_bytes(b"old")
    with replacing_file(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
        assert len(list(tmp_path.glob(TEMPORARY))) == 1
    assert path.read_bytes() == b"new"
    assert [each.name for each in tmp_path.iterdir()] == ["results.json"]


def test_a_block_that_raises_leaves_the_old_file(tmp_path):
    path = tmp_path / "results.json"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError, match="enough"):
        replace(path, fail=RuntimeError("enough"))
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["results.json"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("folder", "folder: is a folder; pass the name of a file"),
        ("pipe", "pipe: is not a regular file"),
        ("none/file", "the folder .*none does not exist; create it first"),
        ("n" * 300 + "/file", "does not exist; create it first"),
    ],
    ids=["folder", "pipe", "no folder", "long"],
)
def test_what_is_no_place_for_a_file(name, message, tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match=message), replacing_file(tmp_path / name):
        pytest.fail("the block runs")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_refuses(number, tmp_path, monkeypatch):
    path = tmp_path / "results.json"
    path.write_bytes(b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing(number))
        with pytest.raises(OutputError, match=f"be written: {os.strerror(number)}; free space"):
            replace(path)
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["results.json"]


def test_a_folder_that_cannot_be_synced(tmp_path, monkeypatch):
    for number in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
        monkeypatch.setattr(os, "fsync", failing(number))
        sync_folder(tmp_path)
    monkeypatch.setattr(os, "fsync", failing(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        sync_folder(tmp_path)


def test_what_is_read_is_not_overwritten(tmp_path):
    model, data = tmp_path / "m.onnx", tmp_path / "data.npz"
    for path in (model, data):
        path.write_bytes(b"read")
    link = tmp_path / "link"
    link.symlink_to(model)
    for out in (model, link):
        with pytest.raises(UsageError, match="is the model that is read, and is not overwritten"):
            check_not_source(out, [object(), data, model])
    with pytest.raises(UsageError, match=r"data\.npz: is a file that is read"):
        check_not_source(str(data), [str(data)])
    check_not_source(tmp_path / "new", [model, data])
    check_not_source(data, [model, tmp_path / "gone", "n" * 300])


def test_results_go_into_no_bundle_that_is_read(tmp_path):
    bundle = tmp_path / "m.narrow"
    bundle.mkdir()
    model = tmp_path / "m.onnx"
    model.write_bytes(b"read")
    sources = (str(model), str(bundle))
    (tmp_path / "link").symlink_to(bundle)
    for inside in (bundle / "r.json", tmp_path / "link" / "deep" / "r.json"):
        with pytest.raises(UsageError, match=r"--out .*r\.json: is inside .*m\.narrow"):
            check_result_file(str(inside), "--out", sources)
    with pytest.raises(UsageError, match="--out: the name is empty"):
        check_result_file("", "--out", sources)
    with pytest.raises(UsageError, match="is the model that is read"):
        check_result_file(str(model), "--out", iter(sources))
    check_result_file(str(tmp_path / "r.json"), "--out", sources)
    check_result_file(str(Path(f"{bundle}.json")), "--out", sources)
