"""Files of packed weights: what is refused with which reason, damage, and what is written."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from array_cache_kit import KNOWN, Packer, entries, floats, index_of, pack, rewrite, stored

from narrowpass_planning.weights import Entry, UnusableError, array_cache
from narrowpass_planning.weights.file import PackedFile, UntrustedError, write
from narrowpass_planning.weights.folder import CacheFile
from narrowpass_planning.weights.store import OWN_ALGORITHM

pytestmark = pytest.mark.anywhere
TWO = floats(4, 8), floats(40, 8)


@pytest.fixture
def path(tmp_path):
    """Return a file of two blocks, of 128 and of 1280 bytes."""
    return stored(tmp_path, *TWO).path


def refusal(path: Path, packer: Packer | None = None) -> str:
    with pytest.raises(UnusableError) as caught:
        PackedFile(path, packer or Packer())
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_the_format_is_what_the_module_says(path):
    """Read with struct and hashlib alone."""
    whole = path.read_bytes()
    magic, version, header, start, size = struct.unpack_from("<8sIIQQ", whole)
    assert (magic, version, header) == (b"NPWCACHE", 2, 128)
    assert whole[32:64] == hashlib.sha256(whole[start : start + size]).digest()
    assert (whole[64:96], start + size) == (bytes(32), len(whole))
    assert whole[96:128] == hashlib.sha256(whole[:96]).digest()
    index = index_of(path)
    assert index["fingerprints"] == [[0xFFFFFFFF, 0]]
    for row, matrix, offset in zip(index["entries"], TWO, (128, 256), strict=True):
        name, seed, algorithm, at, count, digest = row
        assert (seed, algorithm, at, count) == (7, 0xFFFFFFFF, offset, matrix.nbytes)
        block = whole[at : at + count]
        assert block == matrix.T.tobytes()
        line = f"{name} {seed} {algorithm} {count}\n".encode()
        assert digest == hashlib.sha256(line + block).hexdigest()


HEADERS: dict[str, tuple[int, bytes, str]] = {
    "magic": (0, b"NPWCACHF", "not a file of packed weights"),
    "version": (8, b"\3", "of format version 3, not 2"),
    "header": (12, b"\0\1", "its header is damaged"),
    "place": (16, struct.pack("<Q", 127), "cut off, or something was written"),
    "size": (24, struct.pack("<Q", 7), "cut off, or something was written"),
    "length": (24, struct.pack("<Q", 1 << 20), "cut off, or something was written"),
    "digest": (32, bytes(32), "its index is damaged"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_signed_header_that_is_wrong(path, name):
    at, content, reason = HEADERS[name]
    header = bytearray(path.read_bytes()[:96])
    header[at : at + len(content)] = content
    whole = bytes(header) + hashlib.sha256(header).digest() + path.read_bytes()[128:]
    path.write_bytes(whole)
    assert reason in refusal(path)


def test_an_index_that_starts_within_the_header(path):
    header = bytearray(path.read_bytes()[:96])
    struct.pack_into("<QQ", header, 16, 127, path.stat().st_size - 127)
    path.write_bytes(bytes(header) + hashlib.sha256(header).digest() + path.read_bytes()[128:])
    assert "cut off, or something was written" in refusal(path)


def test_an_index_of_more_than_a_gibibyte_is_not_read(path, monkeypatch):
    size = (1 << 30) + 1
    header = bytearray(path.read_bytes()[:96])
    struct.pack_into("<QQ", header, 16, 128, size)
    path.write_bytes(bytes(header) + hashlib.sha256(header).digest())
    os.truncate(path, 128 + size)  # a hole
    assert "cut off, or something was written" in refusal(path)


def test_files_that_are_short_or_not_signed(path):
    whole = path.read_bytes()
    path.write_bytes(whole[:127])
    assert "too short" in refusal(path)
    path.write_bytes(whole[:70] + b"x" + whole[71:])
    assert "its header is damaged" in refusal(path)
    path.write_bytes(whole + b" ")
    assert "cut off, or something was written" in refusal(path)


def test_the_empty_file_of_packed_weights(path):
    """Of 128 bytes and an index: the least that there can be."""
    rewrite(path, lambda index: index["entries"].clear())
    assert PackedFile(path, Packer()).entries == ()


Change = Callable[[dict[str, Any]], Any]


def row(number: int, value: object) -> Change:
    """Return a change of an element of the first entry."""

    def change(index: dict[str, Any]) -> None:
        index["entries"][0][number] = value

    return change


def twice(index: dict[str, Any]) -> None:
    """Let the second entry have the key of the first."""
    index["entries"][1][:3] = index["entries"][0][:3]


def overlapping(index: dict[str, Any]) -> None:
    index["entries"][0][4] = 129


INDICES: dict[str, tuple[Change, str]] = {
    "text": (lambda index: b"{", "not JSON as it should be"),
    "list": (lambda index: b"[]", "its index is not an object"),
    "no entries": (lambda index: index.pop("entries"), "the index has no entries"),
    "no rows": (lambda index: index.update(entries={}), "the index has no entries"),
    "no row": (lambda index: index["entries"].append(7), r"an entry that is none: 7"),
    "short": (lambda index: index["entries"][0].pop(), "an entry that is none: ["),
    "truth": (row(1, True), "an entry that is none: ["),
    "fraction": (row(3, 128.0), "an entry that is none: ["),
    "short name": (row(0, "a" * 63), "an entry that cannot be"),
    "capitals": (row(0, "A" * 64), "an entry that cannot be"),
    "short digest": (row(5, "a" * 65), "an entry that cannot be"),
    "negative seed": (row(1, -1), "an entry that cannot be"),
    "large seed": (row(1, 1 << 32), "an entry that cannot be"),
    "negative algorithm": (row(2, -1), "an entry that cannot be"),
    "large algorithm": (row(2, 1 << 32), "an entry that cannot be"),
    "header": (row(3, 0), "an entry that cannot be"),
    "unaligned": (row(3, 192), "an entry that cannot be"),
    "beyond": (row(4, 1 << 20), "an entry that cannot be"),
    "nothing": (row(4, 0), "an entry that cannot be"),
    "overlapping": (overlapping, "blocks overlap at 256"),
    "twice": (twice, "two entries of one name"),
    "architecture": (lambda index: index.update(architecture="pdp11"), "another machine"),
    "build": (lambda index: index.update(build="x"), "another build"),
    "no fingerprints": (lambda index: index.pop("fingerprints"), "has no fingerprints"),
    "no pair": (lambda index: index.update(fingerprints=[7]), "has no fingerprints"),
    "three": (lambda index: index.update(fingerprints=[[1, 2, 3]]), "has no fingerprints"),
    "texts": (lambda index: index.update(fingerprints=[["1", "2"]]), "has no fingerprints"),
    "own": (lambda index: index.update(fingerprints=[[OWN_ALGORITHM, 1]]), "another processor"),
    "unlisted": (lambda index: index.update(fingerprints=[[KNOWN, 5]]), "does not list"),
    "foreign": (lambda index: index["fingerprints"].append([KNOWN, 6]), "another processor"),
    "unknown": (lambda index: index["fingerprints"].append([12, 5]), "another processor"),
}


@pytest.mark.parametrize("name", INDICES)
def test_a_signed_index_that_is_wrong(path, name):
    change, reason = INDICES[name]
    rewrite(path, change)
    assert reason in refusal(path)


@pytest.mark.parametrize(
    "pair", [(-1, 5), (1 << 32, 5), (1 << 33, 5), (1, -1), (1, 1 << 32), (1, 1 << 33)]
)
def test_no_packer_is_asked_about_numbers_that_are_no_fingerprints(path, pair):
    class Agreeable(Packer):
        def packs_alike(self, algorithm: int, value: int) -> bool:
            return True

    rewrite(path, lambda index: index["fingerprints"].append(list(pair)))
    assert "another processor" in refusal(path, Agreeable())


@pytest.mark.parametrize("pair", [(0, 0), ((1 << 32) - 1, (1 << 32) - 1)])
def test_the_least_and_the_largest_fingerprint(path, pair):
    class Agreeable(Packer):
        def packs_alike(self, algorithm: int, value: int) -> bool:
            return (algorithm, value) == pair

    rewrite(path, lambda index: index["fingerprints"].append(list(pair)))
    assert len(PackedFile(path, Agreeable()).entries) == 2


def test_the_least_and_the_largest_seed_and_algorithm(path):
    def change(index: dict[str, Any]) -> None:
        index["entries"][0][1:3] = [0, 0]
        index["entries"][1][1:3] = [(1 << 32) - 1, (1 << 32) - 1]
        index["fingerprints"].append([0, 0])

    class Agreeable(Packer):
        def packs_alike(self, algorithm: int, value: int) -> bool:
            return True

    rewrite(path, change)
    first, second = PackedFile(path, Agreeable()).entries
    assert (first.seed, first.fingerprint) == (0, 0)
    assert (second.seed, second.fingerprint) == ((1 << 32) - 1, (1 << 32) - 1)


def test_entries_in_any_order(path):
    before = [item.name for item in PackedFile(path, Packer()).entries]
    rewrite(path, lambda index: index["entries"].reverse())
    assert [item.name for item in PackedFile(path, Packer()).entries] == before


@pytest.mark.parametrize("length", [294, 295, 10_000])
def test_a_long_row_is_shown_cut(path, length):
    """The text of a list of one text is four characters longer than that: up to 300 are shown."""
    rewrite(path, lambda index: index["entries"].append(["x" * length]))
    shown = refusal(path).partition("that is none: ")[2]
    whole = repr(["x" * length])
    assert shown == (whole if len(whole) <= 300 else whole[:297] + "...")


def test_a_file_that_others_can_write_is_refused_before_it_is_read(path):
    path.write_bytes(b"")
    path.chmod(0o666)
    with pytest.raises(UntrustedError, match="chmod go-w"):
        PackedFile(path, Packer())


def test_a_pipe_is_no_file(tmp_path):
    """And nobody waits for its other end."""
    os.mkfifo(tmp_path / "pipe", 0o600)
    assert "not a regular file" in refusal(tmp_path / "pipe")


@pytest.mark.parametrize("at", [0, (1 << 20) - 1, 1 << 20, -1])
def test_every_byte_of_a_block_is_compared(tmp_path, at):
    """Also those behind the first piece of a mebibyte that is read at a time."""
    small, large = floats(4, 8), floats(512, 513)
    path = stored(tmp_path, small, large).path
    assert PackedFile(path, Packer()).damaged() == []
    *_, last = PackedFile(path, Packer()).entries
    whole = bytearray(path.read_bytes())
    whole[last.offset + at % last.size] ^= 1
    path.write_bytes(whole)
    assert PackedFile(path, Packer()).damaged() == [last]


def test_a_file_that_changes_while_it_is_checked(path):
    file = PackedFile(path, Packer())
    os.utime(path, (1, 1))
    with pytest.raises(UnusableError, match="changed while it was read"):
        file.damaged()


def test_a_file_that_is_cut_off_while_it_is_checked(path):
    file = PackedFile(path, Packer())
    os.truncate(path, 200)
    with pytest.raises(UnusableError, match="was cut"):
        file.damaged()


def test_damage_stays_damage_when_blocks_are_added(tmp_path, path):
    """A block that was damaged meanwhile must not get a right checksum."""
    kept = PackedFile(path, Packer())
    damaged, _ = kept.entries
    with path.open("r+b") as file:
        file.seek(damaged.offset)
        file.write(b"\xff" * damaged.size)
    other = floats(2, 2)
    with array_cache().begin() as session:
        pack(session, other, "other")
        CacheFile(tmp_path, "k", Packer()).write(session.entries(), kept)
    found = PackedFile(path, Packer())
    assert [item.size for item in found.entries] == [other.nbytes, *(m.nbytes for m in TWO)]
    assert [item.key for item in found.damaged()] == [damaged.key]


def test_a_block_in_memory_replaces_that_of_the_file(tmp_path, path):
    kept = PackedFile(path, Packer())
    other = floats(4, 8)
    with array_cache().begin() as session:
        pack(session, other, "0")  # the name of the first block
        CacheFile(tmp_path, "k", Packer()).write(session.entries(), kept)
    found = PackedFile(path, Packer())
    assert {item.key for item in found.entries} == {item.key for item in kept.entries}
    assert found.block(found.entries[0]).tobytes() == other.T.tobytes()
    assert found.damaged() == []


def test_mapped_blocks_are_written_where_their_file_is_not_kept(tmp_path, path):
    mapped = entries(path)
    other = CacheFile(tmp_path, "other", Packer())
    other.write(mapped, None)
    assert index_of(other.path) == index_of(path)
    other.write(mapped, PackedFile(path, Packer()))  # each once
    assert index_of(other.path) == index_of(path)


def test_blocks_of_an_algorithm_have_its_fingerprint(tmp_path, path):
    found = [dataclasses.replace(entry, fingerprint=KNOWN) for entry in entries(path)]
    file = CacheFile(tmp_path, "other", Packer())
    file.write([*found, *entries(path)], None)
    other = file.path
    assert index_of(other)["fingerprints"] == [[KNOWN, 5], [OWN_ALGORITHM, 0]]
    assert len(PackedFile(other, Packer()).entries) == 4
    assert "another processor" in refusal(other, Packer(generation=6))


def test_blocks_of_an_unknown_algorithm_are_not_written(tmp_path):
    block = np.zeros(8, np.uint8)
    entry = Entry("a" * 64, 1, 12, block.ctypes.data, 8, "packed")
    with (tmp_path / "file").open("wb") as file, pytest.raises(UnusableError, match="no algorithm"):
        write(file, [entry], None, Packer())


def test_what_is_mapped_keeps_its_file_closed_and_readable(path):
    file = PackedFile(path, Packer())
    file.close()
    path.unlink()
    for item, matrix in zip(file.entries, TWO, strict=True):
        assert file.block(item).tobytes() == matrix.T.tobytes()
    known = [(entry.owner, entry.mapped, entry.origin) for entry in file.addressed()]
    assert known == [(file, True, "mapped")] * 2
