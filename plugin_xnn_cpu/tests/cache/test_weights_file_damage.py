"""Files of packed weights that are cut, changed or something else: they are not used."""

from __future__ import annotations

import hashlib
import json
import os
import random
import struct
from pathlib import Path

import numpy as np
import pytest
from cache_kit import INPUT as X
from cache_kit import compiled, loads, resigned, result, weights

from narrowpass_planning.weights.file import HEADER, PackedFile, UnusableError
from narrowpass_xnn_cpu.native.packer import PACKER

pytestmark = pytest.mark.anywhere


def test_a_file_cut_off_anywhere_is_replaced(tmp_path, bundle, cache):
    whole = cache.read_bytes()
    start, size = struct.unpack_from("<QQ", whole, 16)
    rng = random.Random(1)
    cuts = [*range(start, start + size), *rng.sample(range(start), 200), *range(HEADER)]
    right = result(compiled(bundle, cache=False), X)
    for number, cut in enumerate(cuts):
        cache.write_bytes(whole[:cut])
        with pytest.raises(UnusableError):
            PackedFile(cache, PACKER)
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
                PackedFile(cache, PACKER)
    assert loads(bundle, cache.parent) == [3, 0, 0]


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
        value += 1  # it must not stay what it is
    struct.pack_into(form, whole, at, value)
    whole[96:128] = hashlib.sha256(whole[:96]).digest()
    cache.write_bytes(whole)
    with pytest.raises(UnusableError):
        PackedFile(cache, PACKER)
    assert loads(bundle, cache.parent) == [3, 0, 0]


def tamper(cache: Path, change) -> None:
    """Change the index, and set all checksums and sizes accordingly."""
    whole = cache.read_bytes()
    start, _ = struct.unpack_from("<QQ", whole, 16)
    index = json.loads(whole[start:])
    index = change(index) or index
    text = json.dumps(index).encode()
    header = bytearray(whole[:96])
    struct.pack_into("<Q", header, 24, len(text))
    cache.write_bytes(resigned(bytes(header), text, whole[HEADER:start]))


def entry(position, value):
    """Return a change of one part of the first entry."""

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
def test_an_index_with_false_entries_is_refused(bundle, cache, name):
    tamper(cache, CHANGES[name])
    with pytest.raises(UnusableError):
        PackedFile(cache, PACKER)
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
    blocks = PackedFile(cache, PACKER).entries
    rng = random.Random(2)
    for item in blocks:
        damaged = bytearray(whole)
        damaged[item.offset + rng.randrange(item.size)] ^= 1 << rng.randrange(8)
        cache.write_bytes(damaged)
        assert [wrong.name for wrong in PackedFile(cache, PACKER).damaged()] == [item.name]
        assert loads(bundle, cache.parent) == [3, 0, 0]
    assert start > HEADER


@pytest.mark.parametrize("more", [b"x", b"\0" * 4096, b"NPWCACHE"])
def test_something_after_the_end(bundle, cache, more):
    cache.write_bytes(cache.read_bytes() + more)
    with pytest.raises(UnusableError, match="after its end"):
        PackedFile(cache, PACKER)
    assert loads(bundle, cache.parent) == [3, 0, 0]


@pytest.mark.parametrize("content", [b"", b"\0" * 4096, b"NPWCACHE" * 100])
def test_a_file_of_something_else_is_replaced(bundle, cache, content):
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
