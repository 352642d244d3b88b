"""Packed weights on disk: written whole, read with distrust, right whatever happened to them."""

from __future__ import annotations

import contextlib
import errno
import gc
import hashlib
import io
import json
import logging
import multiprocessing
import os
import random
import signal
import struct
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from cache_kit import INPUT as X
from cache_kit import compiled, linear, load_in_child, network, result, saved, weights

from narrowpass import Bundle
from narrowpass.cli import main
from narrowpass.errors import UsageError
from narrowpass.io import MappedTensor
from narrowpass_xnn_cpu.weights import file as file_module
from narrowpass_xnn_cpu.weights import folder as folder_module
from narrowpass_xnn_cpu.weights.file import HEADER, PackedFile, UnusableError
from narrowpass_xnn_cpu.weights.folder import CacheFile, listed, prune
from narrowpass_xnn_cpu.weights.names import key_of


@pytest.fixture
def bundle(tmp_path):
    return saved(tmp_path / "b.narrow", main=network())


@pytest.fixture
def cache(tmp_path, bundle):
    """Give the file of packed weights, written by a first load."""
    compiled(bundle, tmp_path / "cache")
    return path_of(bundle, tmp_path / "cache")


def path_of(bundle: Bundle, folder: Path) -> Path:
    key = key_of(bundle)
    assert key is not None
    return CacheFile(folder, key).path


def loads(bundle, folder):
    """Load three times; give what each packed. All results must be those without a cache."""
    right = result(compiled(bundle, cache=False), X)
    packs = []
    for _ in range(3):
        program = compiled(bundle, folder)
        np.testing.assert_array_equal(result(program, X), right)
        packs.append(weights(program)["packs"])
        program.close()
        del program
        gc.collect()  # what failed may refer to itself in a circle
    return packs


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
    assert len(listed(cache.parent)) == 1


def test_what_is_packed_otherwise_is_added(tmp_path, bundle, cache):
    first = {item.key for item in PackedFile(cache).entries}
    # A product without its bias: the weights are the same, what is packed of them is not.
    weight = bundle.data["w0"].tensor.numpy()
    extra = saved(tmp_path / "extra.narrow", main=network(), alone=linear(weight))
    assert path_of(extra, cache.parent) == cache
    program = compiled(extra, cache.parent)
    assert (weights(program)["hits"], weights(program)["packs"]) == (3, 1)
    file = PackedFile(cache)
    assert first < {item.key for item in file.entries}
    assert len(file.entries) == 4
    assert file.damaged() == []
    assert loads(bundle, cache.parent) == [0, 0, 0]


# Damage


def test_every_cut(tmp_path, bundle, cache):
    whole = cache.read_bytes()
    start, size = struct.unpack_from("<QQ", whole, 16)
    rng = random.Random(1)
    cuts = [*range(start, start + size), *rng.sample(range(start), 200), *range(HEADER)]
    right = result(compiled(bundle, cache=False), X)
    for number, cut in enumerate(cuts):
        cache.write_bytes(whole[:cut])
        with pytest.raises(UnusableError):
            PackedFile(cache)
        if number % 40 == 0:  # the whole way takes longer
            for expected in (3, 0):
                program = compiled(bundle, cache.parent)
                np.testing.assert_array_equal(result(program, X), right)
                assert weights(program)["packs"] == expected
                del program


def test_every_byte_of_the_header(bundle, cache):
    whole = cache.read_bytes()
    for at in range(HEADER):
        for change in (1, 0x80, 0xFF):
            damaged = bytearray(whole)
            damaged[at] ^= change
            cache.write_bytes(damaged)
            with pytest.raises(UnusableError):
                PackedFile(cache)
    assert loads(bundle, cache.parent) == [3, 0, 0]


def resigned(header: bytes, index: bytes, payload: bytes) -> bytes:
    """Put a file together with right checksums of a wrong header and index."""
    text = bytearray(header[:96])
    text[32:64] = hashlib.sha256(index).digest()
    return bytes(text) + hashlib.sha256(bytes(text)).digest() + payload + index


@pytest.mark.parametrize("field", ["version", "header size", "index start", "index size"])
@pytest.mark.parametrize("value", [0, 1, 2, 127, 1 << 31, (1 << 32) - 1])
def test_each_field_of_the_header_signed_anew(bundle, cache, field, value):
    whole = bytearray(cache.read_bytes())
    at, form = {
        "version": (8, "<I"),
        "header size": (12, "<I"),
        "index start": (16, "<Q"),
        "index size": (24, "<Q"),
    }[field]
    if struct.unpack_from(form, whole, at)[0] == value:
        pytest.skip("that is its value")
    struct.pack_into(form, whole, at, value)
    whole[96:128] = hashlib.sha256(whole[:96]).digest()
    cache.write_bytes(whole)
    with pytest.raises(UnusableError):
        PackedFile(cache)
    assert loads(bundle, cache.parent) == [3, 0, 0]


def tamper(cache: Path, change) -> None:
    """Change the index, with all checksums and sizes made to fit."""
    whole = cache.read_bytes()
    start, _ = struct.unpack_from("<QQ", whole, 16)
    index = json.loads(whole[start:])
    index = change(index) or index
    text = json.dumps(index).encode()
    header = bytearray(whole[:96])
    struct.pack_into("<Q", header, 24, len(text))
    cache.write_bytes(resigned(bytes(header), text, whole[HEADER:start]))


def entry(position, value):
    """Give a change of one part of the first entry."""

    def change(index):
        index["entries"][0][position] = value

    return change


CHANGES = {
    "another machine": lambda i: i.update(architecture="z80"),
    "another build": lambda i: i.update(build="00" * 32),
    "another processor": lambda i: i["fingerprints"][0].__setitem__(1, 12345),
    "an unknown algorithm": lambda i: i["fingerprints"].append([4294967295, 1]),
    "no fingerprints": lambda i: i.pop("fingerprints"),
    "a missing fingerprint": lambda i: i["fingerprints"].pop(),
    "fingerprints of text": lambda i: i.update(fingerprints=[["a", "b"]]),
    "a huge fingerprint": lambda i: i["fingerprints"].append([1 << 70, 1]),
    "no entries": lambda i: i.pop("entries"),
    "entries of another kind": lambda i: i.update(entries=[1, 2]),
    "a list": lambda i: [i],
    "a short name": entry(0, "abcd"),
    "a name of other signs": entry(0, "x" * 64),
    "a negative seed": entry(1, -1),
    "a seed of text": entry(1, "1"),
    "a huge fingerprint number": entry(2, 1 << 32),
    "an offset in the header": entry(3, 0),
    "a crooked offset": entry(3, 129),
    "an offset far away": entry(3, 1 << 62),
    "a negative offset": entry(3, -128),
    "no size": entry(4, 0),
    "a negative size": entry(4, -4),
    "a huge size": entry(4, 1 << 63),
    "a size that is true": entry(4, True),
    "no checksum": entry(5, ""),
}


@pytest.mark.parametrize("name", CHANGES)
def test_an_index_that_lies(bundle, cache, name):
    tamper(cache, CHANGES[name])
    with pytest.raises(UnusableError):
        PackedFile(cache)
    assert loads(bundle, cache.parent) == [3, 0, 0]


@pytest.mark.parametrize(
    "change",
    [entry(3, 128 * 3), entry(4, 64), entry(5, "0" * 64), entry(1, 77)],
    ids=["a wrong place", "a wrong size", "a wrong checksum", "a wrong seed"],
)
def test_an_index_that_only_the_content_or_the_key_betrays(bundle, cache, change):
    tamper(cache, change)
    packs = loads(bundle, cache.parent)
    assert packs[0] > 0
    assert packs[2] == 0


def test_one_flipped_bit(bundle, cache):
    whole = cache.read_bytes()
    start, _ = struct.unpack_from("<QQ", whole, 16)
    blocks = PackedFile(cache).entries
    rng = random.Random(2)
    for item in blocks:
        damaged = bytearray(whole)
        damaged[item.offset + rng.randrange(item.size)] ^= 1 << rng.randrange(8)
        cache.write_bytes(damaged)
        assert [wrong.name for wrong in PackedFile(cache).damaged()] == [item.name]
        assert loads(bundle, cache.parent) == [3, 0, 0]
    assert start > HEADER


@pytest.mark.parametrize("more", [b"x", b"\0" * 4096, b"NPWCACHE"])
def test_something_after_the_end(bundle, cache, more):
    cache.write_bytes(cache.read_bytes() + more)
    with pytest.raises(UnusableError, match="after its end"):
        PackedFile(cache)
    assert loads(bundle, cache.parent) == [3, 0, 0]


@pytest.mark.parametrize("content", [b"", b"\0" * 4096, b"NPWCACHE" * 100])
def test_something_else(bundle, cache, content):
    cache.write_bytes(content)
    assert loads(bundle, cache.parent) == [3, 0, 0]


@pytest.mark.parametrize("kind", ["folder", "fifo", "dangling link"])
def test_no_file_at_all(bundle, cache, kind):
    cache.unlink()
    if kind == "folder":
        cache.mkdir()
    elif kind == "fifo":
        os.mkfifo(cache)
    else:
        cache.symlink_to(cache.parent / "nowhere" / "at" / "all")
    packs = loads(bundle, cache.parent)
    assert packs == ([3, 3, 3] if kind == "folder" else [3, 0, 0])


@pytest.mark.parametrize("content", [b"", b"{", b"[1, 2]", b"null"])
def test_a_damaged_note_means_reading_again(bundle, cache, content):
    compiled(bundle, cache.parent)
    cache.with_name(cache.name + ".checked").write_bytes(content)
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

    def write(file, entries, kept):
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
        file_module.write(file, [], None)


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


def kill_writers(tmp_path: Path, bundle: Bundle, times: int, seed: int) -> None:
    """Kill a process that packs and writes at random moments; the next load must be right."""
    right = result(compiled(bundle, cache=False), X)
    rng = random.Random(seed)
    folder = tmp_path / "cache"
    for _ in range(times):
        cache = path_of(bundle, folder)
        if rng.random() < 0.7:
            with contextlib.suppress(FileNotFoundError):
                cache.unlink()
        child = os.fork()
        if child == 0:
            while True:  # always at it
                with contextlib.suppress(FileNotFoundError):
                    cache.unlink()
                compiled(bundle, folder)
        time.sleep(rng.uniform(0, 0.05))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        program = compiled(bundle, folder)
        np.testing.assert_array_equal(result(program, X), right)
        assert PackedFile(cache).damaged() == []
        del program
    assert loads(bundle, folder)[1:] == [0, 0]


def test_writers_that_are_killed(tmp_path, bundle):
    kill_writers(tmp_path, bundle, times=8, seed=1)


@pytest.mark.long
def test_writers_that_are_killed_for_long(tmp_path, bundle):
    kill_writers(tmp_path, bundle, times=100, seed=2)


@pytest.mark.long
def test_one_of_two_writers_is_killed(tmp_path, bundle):
    """Two processes build the same file again and again; one of them dies at a random moment."""
    right = result(compiled(bundle, cache=False), X)
    rng, folder = random.Random(3), tmp_path / "cache"
    cache = path_of(bundle, folder)

    def work() -> None:
        while True:
            with contextlib.suppress(FileNotFoundError):
                cache.unlink()
            compiled(bundle, folder)

    for _ in range(100):
        children = []
        for _ in range(2):
            child = os.fork()
            if child == 0:
                work()
            children.append(child)
        time.sleep(rng.uniform(0.01, 0.06))
        os.kill(children[0], signal.SIGKILL)
        time.sleep(0.01)  # the other goes on
        assert os.waitpid(children[1], os.WNOHANG) == (0, 0)
        os.kill(children[1], signal.SIGKILL)
        for child in children:
            os.waitpid(child, 0)
        program = compiled(bundle, folder)
        np.testing.assert_array_equal(result(program, X), right)
        assert PackedFile(cache).damaged() == []
        del program


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
            entries = [e for e in PackedFile(cache).addressed() if e.name]
            CacheFile(cache.parent, key).write(entries[:1], None)
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
    cache = CacheFile(folder, key_of(bundle) or "")
    writing = CacheFile.writing
    monkeypatch.setattr(CacheFile, "writing", lambda self, patience=0.2: writing(self, 0.2))
    with writing(cache) as mine:
        assert mine
        assert weights(compiled(bundle, folder))["packs"] == 3
        assert not cache.path.exists()


# The folder


def test_listing_and_pruning(tmp_path):
    folder = tmp_path / "cache"
    assert listed(folder) == []
    for seed in range(3):
        compiled(saved(tmp_path / f"{seed}.narrow", main=network(seed)), folder)
        os.utime(listed(folder)[0].path, (1000 + seed, 1000 + seed))
    files = listed(folder)
    assert [round(item.used) for item in files] == [1002, 1001, 1000]
    (folder / f"broken{folder_module.SUFFIX}").write_bytes(b"x")
    (folder / ".narrowpass-0123.tmp").write_bytes(b"x")
    os.utime(folder / ".narrowpass-0123.tmp", (0, 0))
    assert [bool(item.problem) for item in listed(folder)] == [True, False, False, False]
    deleted = prune(folder, 2 * files[0].size)
    assert {item.path for item in deleted} == {
        folder / f"broken{folder_module.SUFFIX}",
        files[-1].path,
    }
    assert not (folder / ".narrowpass-0123.tmp").exists()
    with pytest.raises(UsageError, match="negative"):
        prune(folder, -1)
    assert len(prune(folder, 0)) == 2
    assert listed(folder) == []


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
