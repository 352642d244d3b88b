"""Shards of files: each row is in one of them, whatever their sizes; what cannot be read."""

from __future__ import annotations

import gzip
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ray_kit import write_json, write_parquet

from narrowpass.errors import DataError, UsageError
from narrowpass_ray.places import Place
from narrowpass_ray.resume import missing
from narrowpass_ray.shards import Shard, Sizes, fingerprint, format_of, plan
from narrowpass_ray.source import Batch, read


def shards_of(folder: Path, **sizes: int) -> tuple[Place, list[Shard]]:
    place = Place.of(str(folder))
    files = place.listed()
    return place, plan(place, files, format_of(files, None, str(folder)), Sizes(**sizes))


def batches(folder: Path, wanted: Any = None, batch_size: int = 7, **sizes: int) -> list[Batch]:
    place, shards = shards_of(folder, **sizes)
    shards = [Shard.from_json(shard.to_json()) for shard in shards]
    return [batch for shard in shards for batch in read(place, shard, batch_size, wanted)]


@pytest.mark.parametrize("rows", [1, 10, 11, 1000])
def test_row_groups_are_divided_among_shards(tmp_path: Path, rows: int) -> None:
    x = write_parquet(tmp_path / "in", files=3, rows=25, group=10)
    found = batches(tmp_path / "in", rows=rows)
    np.testing.assert_array_equal(np.concatenate([b.columns["x"] for b in found]), x)
    assert [n for b in found for n in b.numbers] == [*range(25)] * 3
    assert max(b.count for b in found) <= 7


def test_no_thread_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Footers are read, and files with errors found, by whoever asks for them."""
    write_parquet(tmp_path / "in", files=3, rows=25, group=10)
    threaded = shards_of(tmp_path / "in")[1]
    (tmp_path / "out").mkdir()
    for shard in threaded:
        (tmp_path / "out" / shard.output).write_bytes(b"no results")

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        assert shards_of(tmp_path / "in")[1] == threaded
        output = Place.of(str(tmp_path / "out"))
        assert missing(output, threaded, retry_errors=True) == threaded


@pytest.mark.parametrize("size", [1, 2, 13, 14, 50, 10_000])
def test_lines_are_divided_among_shards(tmp_path: Path, size: int) -> None:
    (tmp_path / "in").mkdir()
    rows = [{"n": number, "text": "ä" * (number % 5)} for number in range(40)]
    write_json(tmp_path / "in" / "a.jsonl", rows)
    write_json(tmp_path / "in" / "b.jsonl", rows[:3])
    found = batches(tmp_path / "in", bytes=size)
    assert [n for b in found for n in b.columns["n"]] == [*range(40), 0, 1, 2]
    data = (tmp_path / "in" / "a.jsonl").read_bytes()
    for batch in found:
        for name, offset, n in zip(batch.sources, batch.numbers, batch.columns["n"], strict=True):
            if name == "a.jsonl":
                assert json.loads(data[offset:].split(b"\n")[0])["n"] == n


def test_compressed_lines(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    text = "".join(f'{{"n": {n}}}\n' for n in range(30))
    (tmp_path / "in" / "a.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    found = batches(tmp_path / "in", bytes=5)
    assert [n for b in found for n in b.columns["n"]] == [*range(30)]


def test_lines_that_are_no_rows(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    rows: list[Any] = [{"n": 1}, "{", [3], {"n": None}, {"m": 5}, "", {"n": 6}, "[" * 100_000]
    write_json(tmp_path / "in" / "a.jsonl", rows)
    (batch,) = batches(tmp_path / "in", wanted=["n"], batch_size=100)
    assert batch.columns["n"] == [1, 6]
    assert sorted(batch.errors) == [1, 2, 3, 4, 6]
    assert "no object with columns" in batch.errors[2]
    assert batch.errors[3] == batch.errors[4] == "column 'n' is missing or null"


def test_nulls_are_errors_of_their_rows(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    table = pa.table({"n": [1, None, 3, 4], "s": ["a", "b", None, "d"]})
    pq.write_table(table, tmp_path / "in" / "a.parquet")
    (batch,) = batches(tmp_path / "in")
    assert batch.errors == {1: "column 'n' is null", 2: "column 's' is null"}
    assert list(batch.columns["n"]) == [1, 4]
    assert batch.columns["s"] == ["a", "d"]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in", files=1, rows=3, group=3)
    (tmp_path / "in" / "zzz.parquet").write_bytes(b"PAR1 no such file PAR1")
    first, second = batches(tmp_path / "in")
    assert first.count == 3
    assert not first.errors
    assert second.sources == ["zzz.parquet"]
    assert second.numbers == [None]
    assert "the file cannot be read" in second.errors[0]


def test_arrays_of_files_have_rows(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    np.savez(tmp_path / "in" / "a.npz", x=np.arange(10.0).reshape(5, 2), n=np.arange(5))
    np.savez(tmp_path / "in" / "b.npz", x=np.zeros((2, 2)), n=np.zeros(3))
    (tmp_path / "in" / "c.npz").write_bytes(b"nothing")
    found = batches(tmp_path / "in", batch_size=3)
    assert [b.count for b in found] == [3, 2, 1, 1]
    assert "different numbers of rows" in found[2].errors[0]
    assert "cannot be read" in found[3].errors[0]
    np.testing.assert_array_equal(found[1].columns["x"], [[6, 7], [8, 9]])


def test_images(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "in").mkdir()
    pixels = np.random.default_rng(0).integers(0, 255, (4, 5, 3)).astype(np.uint8)
    image.fromarray(pixels).save(tmp_path / "in" / "a.png")
    (tmp_path / "in" / "b.png").write_bytes(b"nothing")
    image.fromarray(pixels[:2]).save(tmp_path / "in" / "c.png")
    (batch,) = batches(tmp_path / "in")
    np.testing.assert_array_equal(batch.columns["image"][0], pixels)
    assert batch.columns["path"] == ["a.png", "c.png"]
    assert list(batch.errors) == [1]
    assert batch.numbers == [0, None, 0]


def test_hidden_files_are_left_out_and_others_are_named(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in", files=1, rows=3, group=3)
    (tmp_path / "in" / "_SUCCESS").write_bytes(b"")
    (tmp_path / "in" / ".crc").write_bytes(b"")
    assert len(batches(tmp_path / "in")) == 1
    (tmp_path / "in" / "notes.txt").write_bytes(b"")
    with pytest.raises(UsageError, match=r"notes\.txt is none of them"):
        batches(tmp_path / "in")


def test_places_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file or folder"):
        Place.of(str(tmp_path / "nowhere")).listed()
    with pytest.raises(UsageError, match="pass a path, or a URI"):
        Place.of("gopher://x/y")
    write_parquet(tmp_path / "in", files=1, rows=3, group=3)
    with pytest.raises(UsageError, match="no column 'z'"):
        batches(tmp_path / "in", wanted=["z"])


def test_a_changed_file_changes_the_fingerprint(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in", files=2, rows=3, group=3)
    before = fingerprint(Place.of(str(tmp_path / "in")).listed())
    assert fingerprint(Place.of(str(tmp_path / "in")).listed()) == before
    write_json(tmp_path / "in" / "001.parquet", [1])
    assert fingerprint(Place.of(str(tmp_path / "in")).listed()) != before
