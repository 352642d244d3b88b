"""Places: an object store, here in memory, has the same rows and files as a disk."""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from ray_kit import TOLERANCE, expected, linear_bundle, write_parquet

from narrowpass.errors import OutputError, UsageError
from narrowpass_ray import Settings, job, map_files
from narrowpass_ray.places import Place
from narrowpass_ray.worker import Worker


@pytest.fixture
def store() -> str:
    return f"memory://{secrets.token_hex(8)}"


def test_a_job_reads_and_writes_an_object_store(
    tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compute(given: Any, shards: Any, *_: object) -> Any:
        yield from map(Worker(given).compute, shards)

    monkeypatch.setattr(job, "_results", compute)
    monkeypatch.setattr(job, "connected", lambda address: contextlib.nullcontext())
    x = write_parquet(tmp_path / "in", files=2, rows=10, group=10)
    for file in (tmp_path / "in").iterdir():
        Place.of(f"{store}/in/{file.name}").write(file.read_bytes())
    settings = Settings(linear_bundle(tmp_path))
    summary = map_files(settings, f"{store}/in", f"{store}/out", keep=["id"])
    assert (summary.shards, summary.rows, summary.failed) == (2, 20, {})
    out = Place.of(f"{store}/out")
    assert [found.name for found in out.listed()] == ["part-000000.parquet", "part-000001.parquet"]
    found = pq.read_table(out.path, filesystem=out.files).to_pylist()
    np.testing.assert_allclose(
        [row["y"] for row in sorted(found, key=lambda row: row["id"])], expected(x), atol=TOLERANCE
    )
    out.inside("part-000001.parquet").delete()
    assert map_files(settings, f"{store}/in", f"{store}/out", keep=["id"]).rows == 10


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_replaced_as_a_whole(tmp_path: Path, store: str, durable: bool) -> None:
    for place in (Place.of(f"{store}/a"), Place.of(str(tmp_path / "folder" / "a"))):
        assert place.read() is None
        place.write(b"one", durable=durable)
        place.write(b"two", durable=durable)
        assert place.read() == b"two"
        place.delete()
        place.delete()
        assert not place.exists()
    assert list((tmp_path / "folder").iterdir()) == []


@pytest.mark.parametrize("durable", [True, False])
def test_a_place_that_cannot_be_written_to(tmp_path: Path, durable: bool) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match="cannot be"):
        Place.of(str(tmp_path / "file" / "a")).write(b"", durable=durable)


def test_a_uri_that_nothing_knows() -> None:
    with pytest.raises(UsageError, match="pass a path, or a URI"):
        Place.of("gopher://x/y")
