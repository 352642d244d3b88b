"""What is packed under a name was compared with it; what others can write is not used."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import trust_kit
from cache_kit import INPUT as X
from cache_kit import (
    as_user,
    command,
    compiled,
    linear,
    loads,
    network,
    own,
    path_of,
    resigned,
    result,
    saved,
    weights,
)

from narrowpass import Bundle
from narrowpass.errors import BundleError, UsageError
from narrowpass_ir.io import MappedTensor
from narrowpass_planning.weights import folder as folder_module
from narrowpass_planning.weights.file import HEADER, PackedFile
from narrowpass_xnn_cpu.native.packer import PACKER
from narrowpass_xnn_cpu.native.weights_cache import shared

pytestmark = pytest.mark.anywhere
ROOT = os.geteuid() == 0


@pytest.fixture(autouse=True)
def nothing_was_said(monkeypatch):
    """Let each test receive the warnings that a process emits once."""
    monkeypatch.setattr(folder_module, "_warned", set())


def changed(path: Path, key: str = "w0", at: int = 5) -> bytes:
    """Change an element of a tensor; return the file as it was."""
    before = path.read_bytes()
    info = Bundle.load(path.parent).manifest.tensors[key]
    data = bytearray(before)
    struct.pack_into("<f", data, info.offset + 4 * at, 1.0e6)
    path.unlink()
    path.write_bytes(data)
    return before


def restored(path: Path, content: bytes) -> None:
    path.unlink()
    path.write_bytes(content)


# Bundles that lie


@pytest.mark.parametrize("key", ["w0", "w1", "b0"])
@pytest.mark.parametrize("cache", [True, "memory"])
def test_a_changed_weight_is_never_packed(tmp_path, bundle, cache, key):
    right = result(compiled(bundle, cache=False), X)
    file = tmp_path / "b.narrow" / "weights.safetensors"
    before = changed(file, key)
    held = shared().packed_count
    with pytest.raises(BundleError, match=rf"weights\.safetensors: tensor '{key}' was changed"):
        compiled(Bundle.load(tmp_path / "b.narrow"), tmp_path / "cache", cache=cache)
    gc.collect()
    assert shared().packed_count == held
    restored(file, before)
    program = compiled(Bundle.load(tmp_path / "b.narrow"), tmp_path / "cache", cache=cache)
    np.testing.assert_array_equal(result(program, X), right)


def test_a_bundle_that_claims_the_hashes_of_another(tmp_path, bundle):
    """Nobody else's results change, in this process or in another one."""
    folder = tmp_path / "cache"
    liar = tmp_path / "liar.narrow"
    shutil.copytree(tmp_path / "b.narrow", liar)
    changed(liar / "weights.safetensors")
    for cache in ("memory", True):
        with pytest.raises(BundleError, match=r"liar\.narrow"):
            compiled(Bundle.load(liar), folder, cache=cache)
    assert loads(bundle, folder) == [3, 0, 0]


def test_a_file_that_changes_while_it_is_packed(tmp_path, bundle, monkeypatch):
    """What is packed is what was hashed: the same bytes of memory."""
    right = result(compiled(bundle, cache=False), X)
    file = tmp_path / "b.narrow" / "weights.safetensors"
    checked = MappedTensor.checked

    def then_changed(self):
        array = checked(self)
        with file.open("r+b") as target:  # in place: who has it mapped sees it
            target.seek(self.offset)
            target.write(b"\xff" * self.nbytes)
        return array

    monkeypatch.setattr(MappedTensor, "checked", then_changed)
    program = compiled(Bundle.load(tmp_path / "b.narrow"), tmp_path / "cache")
    np.testing.assert_array_equal(result(program, X), right)


def test_a_weight_that_was_replaced_after_loading(tmp_path, bundle):
    """The key of an initializer is of the tensor that it had when it was loaded."""
    right = result(compiled(bundle, tmp_path / "cache"), X)
    other = Bundle.load(tmp_path / "b.narrow")
    value = other.methods["main"].graph.initializers["w0"]
    value.const_value = ir.Tensor(np.zeros((64, 48), np.float32), name="w0")
    changed_result = result(compiled(other, tmp_path / "cache"), X)
    assert np.abs(changed_result - right).max() > 1
    program = compiled(Bundle.load(tmp_path / "b.narrow"), tmp_path / "cache")
    np.testing.assert_array_equal(result(program, X), right)


def test_a_weights_file_that_is_cut_off_while_it_is_open(tmp_path, bundle):
    from narrowpass.errors import ModelError

    other = Bundle.load(tmp_path / "b.narrow")
    os.truncate(tmp_path / "b.narrow" / "weights.safetensors", 300)
    with pytest.raises(ModelError, match="was cut from"):
        compiled(other, tmp_path / "cache")


# Cache files that lie


def signed(cache: Path, change) -> None:
    """Change entries of a file, and sign all of it with valid checksums."""
    import hashlib
    import json

    whole = cache.read_bytes()
    start, _ = struct.unpack_from("<QQ", whole, 16)
    index = json.loads(whole[start:])
    for row in index["entries"]:
        change(row)
        name, seed, fingerprint, offset, size, _ = row
        digest = hashlib.sha256(f"{name} {seed} {fingerprint} {size}\n".encode())
        digest.update(whole[offset : offset + size])
        row[5] = digest.hexdigest()
    text = json.dumps(index).encode()
    header = bytearray(whole[:96])
    struct.pack_into("<Q", header, 24, len(text))
    cache.unlink()
    cache.write_bytes(resigned(bytes(header), text, whole[HEADER:start]))


@pytest.mark.parametrize("size", [1, 64, 128, -64, 64 * 1024])
@pytest.mark.parametrize("ours", [True, False])
def test_blocks_of_another_size_than_is_needed(tmp_path, size, ours, monkeypatch):
    """Of kernels of ours, and of XNNPACK's, which say how much they need only late."""
    from narrowpass_xnn_cpu.native import target

    lanes = target.current().fp32_packing if ours else 0
    monkeypatch.setitem(target.OVERRIDES, "fp32_lanes", lanes)
    bundle = saved(tmp_path / "b.narrow", main=network())
    compiled(bundle, tmp_path / "cache")
    cache = path_of(bundle, tmp_path / "cache")
    file = PackedFile(cache, PACKER)
    last = max(item.offset for item in file.entries)

    def change(row):
        row[4] = row[4] + size if size < 0 else size
        if row[3] != last and size > 1000:
            row[4] = 1  # only the last one has room to grow
        elif size > 1000:
            row[4] += 1

    before = {item.key: item.size for item in file.entries}
    if size > 1000:
        grow(cache, size)
    signed(cache, change)
    assert loads(bundle, tmp_path / "cache") == [3, 0, 0]
    assert {item.key: item.size for item in PackedFile(cache, PACKER).entries} == before


def grow(cache: Path, size: int) -> None:
    """Put bytes between the blocks and the index."""
    whole = cache.read_bytes()
    start, _ = struct.unpack_from("<QQ", whole, 16)
    header = bytearray(whole[:96])
    struct.pack_into("<Q", header, 16, start + size + 4096)
    more = bytes(size + 4096)
    cache.unlink()
    cache.write_bytes(resigned(bytes(header), whole[start:], whole[HEADER:start] + more))


def test_a_block_under_the_name_of_another_one(tmp_path):
    """Two blocks of one size that change places keep their bytes, and not their checksums."""
    import json

    matrices = [
        np.random.default_rng(i).standard_normal((48, 48)).astype(np.float32) for i in (1, 2)
    ]
    bundle = saved(tmp_path / "b.narrow", one=linear(matrices[0]), two=linear(matrices[1]))
    compiled(bundle, tmp_path / "cache")
    cache = path_of(bundle, tmp_path / "cache")
    whole = cache.read_bytes()
    start, _ = struct.unpack_from("<QQ", whole, 16)
    index = json.loads(whole[start:])
    one, two = index["entries"]
    one[3:], two[3:] = two[3:], one[3:]
    cache.unlink()
    cache.write_bytes(
        resigned(whole[:96], json.dumps(index, separators=(",", ":")).encode(), whole[HEADER:start])
    )
    program = compiled(bundle, tmp_path / "cache")
    for method, matrix in zip(("one", "two"), matrices, strict=True):
        np.testing.assert_allclose(result(program, X, method), X @ matrix.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "text",
    [
        b'{"entries": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"entries": [], "entries": []}',
        b'{"entries": [[NaN]]}',
        b'{"entries": "\\ud800"}',
        b'{"entries": ' + b"9" * 10_000 + b"}",
        b"\xff\xfe",
    ],
    ids=["nested", "twice", "nan", "surrogate", "digits", "no text"],
)
def test_an_index_that_is_hard_to_read(bundle, cache, text):
    whole = cache.read_bytes()
    start, _ = struct.unpack_from("<QQ", whole, 16)
    header = bytearray(whole[:96])
    struct.pack_into("<Q", header, 24, len(text))
    cache.unlink()
    cache.write_bytes(resigned(bytes(header), text, whole[HEADER:start]))
    assert command("list", "--cache-dir", cache.parent)[0] == 0
    assert command("verify", "--cache-dir", cache.parent)[0] == 1
    assert loads(bundle, cache.parent) == [3, 0, 0]


@pytest.mark.parametrize("given", ["a\0b", "", "\ud800", 7, b"a\0b"])
def test_a_folder_that_is_no_path(tmp_path, bundle, given):
    with pytest.raises(UsageError, match="cache_dir"):
        compiled(bundle, given)


# Who may have written a file


DISTRUSTED = trust_kit.DISTRUSTED | {
    "another's folder": (
        lambda cache: trust_kit.other_owner(cache.parent), "belongs to user", "cache_dir"
    )
}  # fmt: skip


@pytest.mark.parametrize("name", DISTRUSTED)
def test_files_that_others_can_write_are_not_used(bundle, cache, caplog, name):
    change, reason, remedy = DISTRUSTED[name]
    change(cache)
    check_unused(bundle, cache, caplog, (name, reason, remedy))


@pytest.mark.skipif(not ROOT, reason="the test above is a user's")
@pytest.mark.parametrize("name", DISTRUSTED)
def test_files_that_others_can_write_are_not_used_by_a_user(public, caplog, name):
    change, reason, remedy = DISTRUSTED[name]
    bundle = saved(public / "b.narrow", main=network())
    assert loads(bundle, public / "cache") == [3, 0, 0]
    command("verify", "--cache-dir", public / "cache")
    own(public)
    cache = path_of(bundle, public / "cache")
    change(cache)
    as_user(lambda: check_unused(bundle, cache, caplog, (name, reason, remedy)))


def check_unused(bundle, cache, caplog, wanted):
    """Load thrice without the cache; the user is warned once, and nothing is written."""
    name, reason, remedy = wanted
    before = cache.read_bytes()
    with caplog.at_level(logging.WARNING, "narrowpass"):
        assert loads(bundle, cache.parent) == [3, 3, 3]
    (record,) = caplog.records  # once
    assert reason in record.message
    assert remedy in record.message
    assert str(cache if "file" in name else cache.parent) in record.message
    assert cache.read_bytes() == before
    code, text = command("verify", "--cache-dir", cache.parent)
    assert code == 1
    assert reason in text


def test_a_folder_with_the_sticky_bit(tmp_path, bundle):
    """As /tmp: others may put files there, and not replace those that are there."""
    folder = tmp_path / "common"
    folder.mkdir()
    folder.chmod(0o1777)
    assert loads(bundle, folder) == [3, 0, 0]
    path_of(bundle, folder).chmod(0o646)
    assert loads(bundle, folder) == [3, 3, 3]


def test_written_files_are_usable_with_any_umask(tmp_path, bundle):
    before = os.umask(0)
    try:
        assert loads(bundle, tmp_path / "cache") == [3, 0, 0]
    finally:
        os.umask(before)
    for path in (tmp_path / "cache", *(tmp_path / "cache").glob("*.weights*")):
        if not path.name.endswith(".lock"):
            assert not path.stat().st_mode & 0o022, path


def test_a_link_is_not_followed(tmp_path, bundle, cache):
    place = tmp_path / "elsewhere"
    cache.rename(place)
    cache.symlink_to(place)
    before = place.read_bytes()
    assert loads(bundle, cache.parent) == [3, 0, 0]
    assert place.read_bytes() == before
    assert not cache.is_symlink()


def test_a_note_that_others_can_write_is_ignored(bundle, cache, monkeypatch):
    compiled(bundle, cache.parent)
    note = cache.with_name(cache.name + ".checked")
    note.chmod(0o666)
    read = []
    damaged = PackedFile.damaged
    monkeypatch.setattr(PackedFile, "damaged", lambda self: (read.append(self), damaged(self))[1])
    for _ in range(2):
        compiled(bundle, cache.parent)
    assert len(read) == 1  # and written again, so that only we can


# Several at once


def test_mapped_blocks_are_mapped_for_all_sharers(bundle, cache):
    first, second = compiled(bundle, cache.parent), compiled(bundle, cache.parent)
    for program in (first, second):
        found = weights(program)
        assert found["heap_bytes"] == 0
        assert found["mapped_bytes"] == sum(item.size for item in PackedFile(cache, PACKER).entries)
    assert weights(second)["hits"] == 3


def test_a_fork_keeps_the_mapping(tmp_path, bundle, cache):
    """The child runs its parent's program, loads others from the file, and packs what is new."""
    program = compiled(bundle, cache.parent)
    right = result(program, X)
    other = saved(tmp_path / "other.narrow", main=network(9))
    expected = result(compiled(other, cache=False), X)
    context = multiprocessing.get_context("fork")
    results = context.Queue()

    def work() -> None:
        own = result(program, X)
        again = compiled(bundle, cache.parent)
        new = compiled(other, cache.parent)
        results.put((own, result(again, X), weights(again)["packs"], result(new, X)))

    child = context.Process(target=work)
    child.start()
    own, again, packs, new = results.get(timeout=60)
    child.join()
    assert child.exitcode == 0
    np.testing.assert_array_equal(own, right)
    np.testing.assert_array_equal(again, right)
    np.testing.assert_array_equal(new, expected)
    assert packs == 0
    assert loads(other, cache.parent) == [0, 0, 0]


def test_a_disk_that_is_full(tmp_path, bundle, caplog):
    """A limit of the size of files stops the write as a full disk does: in the middle."""
    script = f"""
import resource, signal, sys
sys.path.insert(0, {str(Path(__file__).parents[1] / "kits")!r})
from pathlib import Path
from cache_kit import Bundle, compiled, result, INPUT
bundle = Bundle.load({str(tmp_path / "b.narrow")!r})
right = result(compiled(bundle, cache=False), INPUT)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))
folder = Path({str(tmp_path / "cache")!r})
assert (result(compiled(bundle, folder), INPUT) == right).all()
assert sorted(p.suffix for p in folder.iterdir()) == [".lock"], list(folder.iterdir())
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("kept in memory only") <= 1
    assert loads(bundle, tmp_path / "cache") == [3, 0, 0]


@pytest.mark.parametrize("whose", ["of the user", "of the superuser"])
def test_a_folder_that_can_only_be_read(public, whose):
    """A user's own, and one that the superuser has filled for all."""
    folder = public / "cache"
    bundle = saved(public / "b.narrow", main=network())
    assert loads(bundle, folder) == [3, 0, 0]
    if whose == "of the user":
        own(public)
    elif not ROOT:
        pytest.skip("only the superuser can fill it")
    names = sorted(folder.iterdir())
    folder.chmod(0o555)

    def read():
        assert loads(bundle, folder) == [0, 0, 0]
        with pytest.raises(PermissionError):
            (folder / "new").touch()

    try:
        as_user(read)
    finally:
        folder.chmod(0o755)
    assert sorted(folder.iterdir()) == names


@pytest.mark.skipif(not ROOT, reason="only the superuser has files that a user cannot read")
def test_a_file_that_cannot_be_read(public):
    """The weights are packed, and the file stays."""
    bundle = saved(public / "b.narrow", main=network())
    assert loads(bundle, public / "cache") == [3, 0, 0]
    cache = path_of(bundle, public / "cache")
    before = cache.read_bytes()
    cache.chmod(0o600)
    as_user(lambda: loads(bundle, public / "cache") == [3, 3, 3] or pytest.fail("it was used"))
    assert cache.read_bytes() == before


def test_a_cache_file_that_is_cut_off_while_it_is_checked(bundle, cache):
    """An error, and no crash: it is not read by its mapping."""
    from narrowpass_planning.weights.file import UnusableError

    file = PackedFile(cache, PACKER)
    os.truncate(cache, 200)
    with pytest.raises(UnusableError, match="was cut"):
        file.damaged()
    file.close()
    assert loads(bundle, cache.parent) == [3, 0, 0]
