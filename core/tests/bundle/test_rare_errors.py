"""Errors of bundles that no other test meets."""

from __future__ import annotations

import copy
import errno
import io
import json
import os
import shutil
import socket
import stat
from pathlib import Path

import onnx_ir as ir
import pytest

from narrowpass.bundle import Bundle, _files, publish, verify
from narrowpass.errors import BundleError, ModelError, UsageError


def test_a_socket_in_place_of_a_file(saved, monkeypatch):
    monkeypatch.chdir(saved)  # names of sockets are short
    Path("main.onnx").unlink()
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("main.onnx")
        with pytest.raises(BundleError, match=r"main\.onnx cannot be opened"):
            Bundle.load(saved)


def test_a_disk_that_fails(saved, monkeypatch):
    class Failing(io.BytesIO):
        def read(self, *_):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def opened(descriptor, mode):
        os.close(descriptor)
        return Failing()

    monkeypatch.setattr(_files.os, "fdopen", opened)
    with pytest.raises(BundleError, match=r"manifest\.json cannot be read: Input/output error"):
        Bundle.load(saved)


def test_a_disk_that_fails_when_a_file_is_looked_at(saved, monkeypatch):
    opened = []
    stat_of = os.fstat

    def failing(descriptor):
        if stat.S_ISREG(stat_of(descriptor).st_mode):
            opened.append(descriptor)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return stat_of(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", failing)
        with pytest.raises(BundleError, match="cannot be opened: Input/output error"):
            Bundle.load(saved)
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(opened[0])


def test_a_disk_that_fails_when_a_file_is_closed(saved, monkeypatch):
    class Failing(io.BytesIO):
        def close(self):
            super().close()
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def opened(descriptor, mode):
        os.close(descriptor)
        return Failing(b"{}")

    monkeypatch.setattr(_files.os, "fdopen", opened)
    with pytest.raises(BundleError, match=r"manifest\.json cannot be read: Input/output error"):
        Bundle.load(saved)


def test_a_folder_whose_closing_fails_is_loaded(saved, monkeypatch):
    """Nothing was written to it."""
    close = os.close

    def closing(descriptor):
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        close(descriptor)
        if is_folder:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "close", closing)
    assert list(Bundle.load(saved).methods) == ["main"]


def test_a_disk_that_fails_above_the_bundle(saved, tmp_path, monkeypatch):
    bundle, status = Bundle.load(saved), os.stat

    def failing(path, **more):
        if path == tmp_path:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return status(path, **more)

    monkeypatch.setattr(os, "stat", failing)
    with pytest.raises(UsageError, match=f"the folder {tmp_path} does not exist"):
        bundle.save(tmp_path / "new")


def test_a_path_that_links_to_itself(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UsageError, match="cannot be opened"):
        Bundle.load(tmp_path / "loop")


def test_assets_are_read_and_copied(saved, tmp_path):
    bundle = Bundle.load(saved)
    copied = copy.copy(bundle)
    assert copied.assets == {"notes.txt": b"read me"}
    copied.save(tmp_path / "again")
    assert (tmp_path / "again" / "notes.txt").read_bytes() == b"read me"
    assert verify(tmp_path / "again") == []


def test_a_folder_that_is_replaced_all_the_time(saved, monkeypatch):
    """Each attempt finds a file missing and another folder in place: at the end it is an error."""
    (saved / "main.onnx").unlink()
    monkeypatch.setattr(_files, "_same", lambda fd, path: False)
    with pytest.raises(BundleError, match=r"main\.onnx is missing"):
        Bundle.load(saved)


def test_a_folder_that_is_gone_when_it_is_compared(saved, monkeypatch):
    def work(folder):
        shutil.rmtree(saved)
        raise FileNotFoundError(2, "gone", "main.onnx")

    with pytest.raises(UsageError, match="no such bundle"):
        _files.read_retrying(saved, work)


def test_a_bundle_that_a_killed_build_left_aside(saved):
    other = publish.fresh_name(saved, publish.ASIDE)
    other.mkdir()  # no bundle: it stays
    saved.rename(publish.fresh_name(saved, publish.ASIDE))
    assert Bundle.load(saved).methods.keys() == {"main"}
    assert saved.is_dir()
    assert other.is_dir()


def test_nothing_is_repaired_where_the_folder_cannot_be_read(saved, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "refused")

    monkeypatch.setattr(publish, "list_siblings", refuse)
    assert not publish.repair(saved.with_name("missing"))


def test_a_method_that_does_not_fit_into_a_file():
    class Huge:
        def SerializeToString(self, *, deterministic):  # noqa: N802  # of protobuf
            raise ValueError("exceeds 2 GiB")

    with pytest.raises(ModelError, match="'main' does not fit into an ONNX file"):
        _files._to_bytes(Huge(), "main")


def test_types_that_are_no_tensors():
    assert _files._type_text(None) is None
    assert _files._type_text(ir.SequenceType(ir.TensorType(ir.DataType.FLOAT))) == "sequence(float)"


def test_threads_and_progress_of_a_verification(saved):
    seen = []
    assert verify(saved, progress=lambda done, total: seen.append((done, total)), threads=1) == []
    assert seen[-1][0] == seen[-1][1] > 0
    with pytest.raises(UsageError, match="`threads`"):
        verify(saved, threads=0)


def test_the_safetensors_library_disagrees(saved, monkeypatch):
    class Other:
        """What the library would return for a header that it reads otherwise."""

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def keys(self):
            return []

    def refuse(*_, **__):
        raise _files.safetensors.SafetensorError("no")

    monkeypatch.setattr(_files.safetensors, "safe_open", refuse)
    assert any("refuses it: no" in problem for problem in verify(saved))
    monkeypatch.setattr(_files.safetensors, "safe_open", lambda *_, **__: Other())
    assert any("differently" in problem for problem in verify(saved))


def test_arguments_of_save(saved, tmp_path):
    bundle = Bundle.load(saved)
    with pytest.raises(UsageError, match="`threads`"):
        bundle.save(tmp_path / "x", threads=0)
    with pytest.raises(UsageError, match="`progress`"):
        bundle.save(tmp_path / "x", progress=3)
    assert not os.path.lexists(tmp_path / "x")


def resigned(path, change):
    """Change a manifest; the hash of its own text is compared by `verify` alone."""
    file = path / "manifest.json"
    raw = json.loads(file.read_text())
    change(raw)
    file.write_text(json.dumps(raw))


def test_an_asset_that_takes_the_name_of_a_method(saved):
    def change(raw):
        [asset] = raw["assets"]
        asset["path"] = "main.onnx"
        method = raw["methods"][0]
        asset.update({key: method[key] for key in ("bytes", "sha256") if key in method})

    resigned(saved, change)
    with pytest.raises(BundleError):
        Bundle.load(saved)


def test_initializers_that_a_method_does_not_have(saved):
    def change(raw):
        named = raw["methods"][0]["initializers"]
        named.append({**named[0], "name": "nobody"})

    resigned(saved, change)
    with pytest.raises(BundleError, match="initializers that it does not have"):
        Bundle.load(saved)


def test_a_path_with_a_null_byte(saved):
    bundle = Bundle.load(saved)
    with pytest.raises(UsageError, match="is not a path"):
        bundle.save("a\0b")
    with pytest.raises(UsageError, match="is not a path"):
        Bundle.load("a\0b")
