"""Packed weights on disk: written whole, read with distrust, right whatever happened to them."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import logging
import multiprocessing
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from cache_kit import INPUT as X
from cache_kit import (
    compiled,
    linear,
    load_in_child,
    loads,
    network,
    path_of,
    result,
    saved,
    weights,
)

from narrowpass.cli import main
from narrowpass.errors import UsageError
from narrowpass_ir.io import MappedTensor
from narrowpass_planning.weights import file as file_module
from narrowpass_planning.weights import folder as folder_module
from narrowpass_planning.weights.file import PackedFile
from narrowpass_planning.weights.folder import CacheFile, listed, prune
from narrowpass_planning.weights.names import key_of
from narrowpass_xnn_cpu.native.packer import PACKER

pytestmark = pytest.mark.anywhere


def test_the_second_load_packs_nothing(tmp_path, bundle):
    assert loads(bundle, tmp_path / "cache") == [3, 0, 0]
    program = compiled(bundle, tmp_path / "cache")
    found = weights(program)
    assert (found["hits"], found["misses"], found["heap_bytes"]) == (3, 0, 0)
    assert found["mapped_bytes"] > 0


def test_a_load_leaves_the_file_as_it_is(bundle, cache):
    before = cache.read_bytes(), cache.stat()
    program = compiled(bundle, cache.parent)
    assert weights(program)["packs"] == 0
    after = cache.stat()
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == (
        before[1].st_size,
        before[1].st_mtime_ns,
        before[1].st_ino,
    )
    assert cache.read_bytes() == before[0]


def test_the_content_is_read_once_only(bundle, cache, monkeypatch):
    read = []
    damaged = PackedFile.damaged
    monkeypatch.setattr(PackedFile, "damaged", lambda self: (read.append(self), damaged(self))[1])
    for _ in range(3):
        compiled(bundle, cache.parent)
    assert len(read) == 1
    os.utime(cache)  # another time of change: it is read again
    compiled(bundle, cache.parent)
    assert len(read) == 2


def test_a_hit_reads_no_weight(bundle, cache, monkeypatch):
    def unreadable(self):
        raise AssertionError(f"{self.name} was read")

    right = result(compiled(bundle, cache=False), X)
    with monkeypatch.context() as patch:
        for name in ("numpy", "read", "tobytes"):
            patch.setattr(MappedTensor, name, unreadable)
        program = compiled(bundle, cache.parent)
    assert weights(program)["hits"] == 3
    np.testing.assert_array_equal(result(program, X), right)


def test_bundles_of_the_same_weights_share_a_file(tmp_path, bundle, cache):
    other = saved(tmp_path / "other.narrow", renamed=network())
    program = compiled(other, cache.parent)
    assert weights(program)["packs"] == 0
    assert len(listed(cache.parent, PACKER)) == 1


def test_other_packings_of_a_weight_are_added_to_the_file(tmp_path, bundle, cache):
    first = {item.key for item in PackedFile(cache, PACKER).entries}
    # A matmul without its bias: the weights are the same, the packed panels differ.
    weight = bundle.data["w0"].tensor.numpy()
    extra = saved(tmp_path / "extra.narrow", main=network(), alone=linear(weight))
    assert path_of(extra, cache.parent) == cache
    program = compiled(extra, cache.parent)
    assert (weights(program)["hits"], weights(program)["packs"]) == (3, 1)
    file = PackedFile(cache, PACKER)
    assert first < {item.key for item in file.entries}
    assert len(file.entries) == 4
    assert file.damaged() == []
    assert loads(bundle, cache.parent) == [0, 0, 0]


# Places that cannot be written to


def test_a_place_that_is_no_folder(tmp_path, bundle, caplog, monkeypatch):
    monkeypatch.setattr(folder_module, "_warned", set())
    (tmp_path / "file").write_text("x")
    with caplog.at_level(logging.WARNING, "narrowpass"):
        assert loads(bundle, tmp_path / "file") == [3, 3, 3]
    assert [r.message for r in caplog.records if "in memory only" in r.message] != []
    assert len(caplog.records) == 1  # said once


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_a_disk_that_takes_no_more(tmp_path, bundle, caplog, monkeypatch, code):
    monkeypatch.setattr(folder_module, "_warned", set())

    def write(file, entries, kept, packer):
        file.write(b"NPWCACHE")
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "narrowpass"):
        patch.setattr(folder_module, "write", write)
        assert loads(bundle, tmp_path / "cache") == [3, 3, 3]
    assert len(caplog.records) == 1
    assert os.strerror(code) in caplog.text
    left = [p.name for p in (tmp_path / "cache").iterdir() if not p.name.endswith(".lock")]
    assert left == []
    assert loads(bundle, tmp_path / "cache") == [3, 0, 0]


def test_a_really_full_disk(bundle):
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("there is no /dev/full here")
    with full.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        file_module.write(file, [], None, PACKER)


# Several at once


def test_two_processes_at_once(tmp_path, bundle):
    right = result(compiled(bundle, cache=False), X).tobytes()
    context = multiprocessing.get_context("spawn")
    ready, results = context.Event(), context.Queue()
    arguments = str(tmp_path / "b.narrow"), str(tmp_path / "cache"), ready, results
    processes = [context.Process(target=load_in_child, args=arguments) for _ in range(3)]
    for process in processes:
        process.start()
    time.sleep(0.5)
    ready.set()
    found = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert [bits for _, bits in found] == [right] * 3
    assert sorted(packs for packs, _ in found) == [0, 0, 3]  # one packs, the others wait for it


def test_a_file_that_is_replaced_under_a_reader(tmp_path, bundle, cache):
    program = compiled(bundle, cache.parent)
    right = result(program, X)
    other = saved(tmp_path / "other.narrow", main=network(9))
    stop = threading.Event()

    def replace() -> None:
        key = key_of(bundle)
        assert key is not None
        while not stop.is_set():
            source = compiled(other, cache=False)
            entries = [e for e in PackedFile(cache, PACKER).addressed() if e.name]
            CacheFile(cache.parent, key, PACKER).write(entries[:1], None)
            cache.unlink()
            compiled(bundle, cache.parent)
            del source

    thread = threading.Thread(target=replace)
    thread.start()
    try:
        for _ in range(300):
            np.testing.assert_array_equal(result(program, X), right)
    finally:
        stop.set()
        thread.join()


def test_another_process_that_never_ends_its_writing(tmp_path, bundle, monkeypatch):
    folder = tmp_path / "cache"
    cache = CacheFile(folder, key_of(bundle) or "", PACKER)
    writing = CacheFile.writing
    monkeypatch.setattr(CacheFile, "writing", lambda self, patience=0.2: writing(self, 0.2))
    with writing(cache) as mine:
        assert mine
        assert weights(compiled(bundle, folder))["packs"] == 3
        assert not cache.path.exists()


# The folder


def test_listing_and_pruning(tmp_path):
    folder = tmp_path / "cache"
    assert listed(folder, PACKER) == []
    for seed in range(3):
        compiled(saved(tmp_path / f"{seed}.narrow", main=network(seed)), folder)
        os.utime(listed(folder, PACKER)[0].path, (1000 + seed, 1000 + seed))
    files = listed(folder, PACKER)
    assert [round(item.used) for item in files] == [1002, 1001, 1000]
    (folder / f"broken{PACKER.suffix}").write_bytes(b"x")
    (folder / ".narrowpass-0123.tmp").write_bytes(b"x")
    os.utime(folder / ".narrowpass-0123.tmp", (0, 0))
    assert [bool(item.problem) for item in listed(folder, PACKER)] == [True, False, False, False]
    deleted = prune(folder, 2 * files[0].size, PACKER)
    assert {item.path for item in deleted} == {
        folder / f"broken{PACKER.suffix}",
        files[-1].path,
    }
    assert not (folder / ".narrowpass-0123.tmp").exists()
    with pytest.raises(UsageError, match="negative"):
        prune(folder, -1, PACKER)
    assert len(prune(folder, 0, PACKER)) == 2
    assert listed(folder, PACKER) == []


def command(*arguments: object) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended, contextlib.redirect_stdout(io.StringIO()) as text:
        main(["cache", *map(str, arguments)])
    return int(ended.value.code or 0), text.getvalue()


def test_the_command(tmp_path, bundle, cache):
    options = "--cache-dir", cache.parent
    code, text = command("list", *options)
    assert code == 0
    assert cache.name[:16] in text
    code, text = command("list", "--json", *options)
    (row,) = json.loads(text)["files"]
    assert (row["path"], row["blocks"], row["problem"]) == (str(cache), 3, None)
    assert command("verify", *options)[0] == 0
    damaged = bytearray(cache.read_bytes())
    damaged[200] ^= 1
    cache.write_bytes(damaged)
    assert "damaged" not in command("list", *options)[1]
    code, text = command("verify", *options)
    assert code == 1
    assert "1 of 3 blocks are damaged" in text
    assert command("prune", "--max-size", "oh", *options)[0] == 2
    code, text = command("prune", "--max-size", "1KB", *options)
    assert code == 0
    assert not cache.exists()
