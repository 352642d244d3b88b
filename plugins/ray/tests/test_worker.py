"""Files of results, without Ray: rows, resumption, attempts that ended, what cannot be written."""

from __future__ import annotations

import multiprocessing
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from ray_kit import (
    POISON,
    TOLERANCE,
    ending,
    expected,
    linear_bundle,
    results,
    rows_of,
    write_json,
    write_parquet,
)

from narrowpass.errors import DataError, UsageError
from narrowpass_ray import Settings, job, map_files, resume
from narrowpass_ray.attempts import Attempts
from narrowpass_ray.places import Place
from narrowpass_ray.shards import Shard, Sizes
from narrowpass_ray.worker import Done, Worker


@pytest.fixture(scope="module")
def linear(tmp_path_factory: pytest.TempPathFactory) -> str:
    return linear_bundle(tmp_path_factory.mktemp("linear"))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let jobs compute shards in this process, one after the other; return their numbers."""
    computed: list[int] = []

    def compute(given: Any, shards: list[Shard], *_: object) -> Any:
        worker = Worker(given)
        for shard in shards:
            computed.append(shard.number)
            yield worker.compute(shard)

    monkeypatch.setattr(job, "_results", compute)
    return computed


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    import contextlib

    monkeypatch.setattr(job, "connected", lambda address: contextlib.nullcontext())


def test_each_row_is_written_once(linear: str, tmp_path: Path, here: list[int]) -> None:
    x = write_parquet(tmp_path / "in", files=3, rows=20, group=10)
    summary = map_files(
        Settings(linear), str(tmp_path / "in"), str(tmp_path / "out"), sizes=Sizes(rows=10),
        batch_size=7, keep=["id"],
    )  # fmt: skip
    assert (summary.shards, summary.rows, summary.bad, summary.failed) == (6, 60, 0, {})
    rows = results(tmp_path / "out")
    assert [row["id"] for row in rows] == [*range(60)]
    assert [row["row"] for row in rows] == [*range(20)] * 3
    np.testing.assert_allclose([row["y"] for row in rows], expected(x), atol=TOLERANCE)
    assert {row["error"] for row in rows} == {None}


def test_a_second_run_computes_what_is_missing(
    linear: str, tmp_path: Path, here: list[int]
) -> None:
    write_parquet(tmp_path / "in", files=2, rows=20, group=10)
    places = str(tmp_path / "in"), str(tmp_path / "out")
    map_files(Settings(linear), *places, sizes=Sizes(rows=10))
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").glob("part-*")}
    (tmp_path / "out" / "part-000002.parquet").unlink()
    here.clear()
    summary = map_files(Settings(linear), *places, sizes=Sizes(rows=10))
    assert here == [2]
    assert (summary.before, summary.rows) == (3, 10)
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "out").glob("part-*")}


def test_an_output_of_another_job_is_refused(linear: str, tmp_path: Path, here: list[int]) -> None:
    write_parquet(tmp_path / "in", files=1, rows=4, group=4)
    places = str(tmp_path / "in"), str(tmp_path / "out")
    map_files(Settings(linear), *places)
    with pytest.raises(UsageError, match="differs in options"):
        map_files(Settings(linear), *places, batch_size=2)
    with pytest.raises(UsageError, match="differs in options"):
        map_files(Settings(linear), *places, about="another:function")
    write_parquet(tmp_path / "in" / "more", files=1, rows=4, group=4)
    with pytest.raises(UsageError, match="differs in input"):
        map_files(Settings(linear), *places)
    with pytest.raises(UsageError, match="has other files"):
        map_files(Settings(linear), str(tmp_path / "in"), str(tmp_path / "in"))
    (tmp_path / "out" / "_narrowpass.json").write_text("{")
    with pytest.raises(DataError, match="is damaged"):
        map_files(Settings(linear), *places)
    assert here == [0]


def test_errors_stand_beside_their_rows(linear: str, tmp_path: Path, here: list[int]) -> None:
    x = rows_of(0, 6).tolist()
    x[1], x[4] = [1.0], "text"
    (tmp_path / "in").mkdir()
    rows: list[Any] = [{"id": n, "x": row} for n, row in enumerate(x)]
    write_json(tmp_path / "in" / "a.jsonl", [*rows, "no JSON"])
    places = str(tmp_path / "in"), str(tmp_path / "out")
    summary = map_files(Settings(linear), *places, keep=["id"])
    assert (summary.rows, summary.bad) == (7, 3)
    found = results(tmp_path / "out")
    assert [row["error"] is None for row in found] == [True, False, True, True, False, True, False]
    assert [row["id"] for row in found] == [0, 1, 2, 3, 4, 5, None]
    good = [row["y"] for row in found if row["error"] is None]
    np.testing.assert_allclose(good, expected([x[0], x[2], x[3], x[5]]), atol=TOLERANCE)
    assert [row["y"] for row in found if row["error"] is not None] == [None] * 3
    here.clear()
    map_files(Settings(linear), *places, keep=["id"], retry_errors=True)
    assert here == [0]


def test_a_shard_without_a_good_row_has_the_same_columns(
    linear: str, tmp_path: Path, here: list[int]
) -> None:
    (tmp_path / "in").mkdir()
    write_json(tmp_path / "in" / "a.jsonl", [{"x": rows_of(0, 1)[0].tolist()}])
    write_json(tmp_path / "in" / "b.jsonl", [{"x": [1.0]}])
    write_json(tmp_path / "in" / "c.jsonl", [])
    map_files(Settings(linear), str(tmp_path / "in"), str(tmp_path / "out"))
    schemas = [pq.read_schema(path) for path in sorted((tmp_path / "out").glob("part-*"))]
    assert len(schemas) == 3
    assert schemas[0] == schemas[1] == schemas[2]


def test_a_disk_that_is_full_costs_the_shards_that_do_not_fit(
    linear: str, tmp_path: Path, here: list[int]
) -> None:
    (tmp_path / "in").mkdir()
    texts = {"a": 10, "b": 40_000, "c": 10}
    for name, size in texts.items():
        x = rows_of(size, 1)[0].tolist()
        noise = np.random.default_rng(0).bytes(size).hex()  # which cannot be compressed to half
        write_json(tmp_path / "in" / f"{name}.jsonl", [{"id": noise, "x": x}])
    places = str(tmp_path / "in"), str(tmp_path / "out")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        summary = map_files(Settings(linear), *places, keep=["id"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(summary.failed) == [1]
    assert "File too large" in summary.failed[1]
    assert not list((tmp_path / "out").glob(".*"))
    summary = map_files(Settings(linear), *places, keep=["id"])
    assert (summary.before, summary.rows, summary.failed) == (2, 1, {})
    assert len(results(tmp_path / "out")) == 3


def test_what_is_wrong_with_all_shards_ends_the_job(
    linear: str, tmp_path: Path, here: list[int]
) -> None:
    write_parquet(tmp_path / "in", files=3, rows=4, group=4)
    with pytest.raises(DataError, match="no column 'z'"):
        map_files(Settings(linear, columns={"x": "z"}), str(tmp_path / "in"), str(tmp_path / "out"))
    assert here == [0]


def test_a_model_is_built_first(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="build one first"):
        map_files(Settings(str(tmp_path)), str(tmp_path), str(tmp_path / "out"))


def compute(given: Any, shard: Shard, queue: Any) -> None:
    queue.put(Worker(given).compute(shard))


def until_done(given: Any, shard: Shard) -> tuple[Done, int]:
    """Compute a shard in processes, until one survives; return how many there were."""
    context = multiprocessing.get_context("fork")
    for count in range(1, 20):
        queue = context.Queue()
        process = context.Process(target=compute, args=(given, shard, queue))
        process.start()
        process.join()
        if process.exitcode == 0:
            return queue.get(), count
    raise AssertionError("no process survives")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_row_that_ends_its_worker_is_found(linear: str, tmp_path: Path) -> None:
    x = write_parquet(tmp_path / "in", files=1, rows=12, group=12)
    rows = x.tolist()
    rows[5][0] = POISON
    (tmp_path / "in" / "000.parquet").unlink()
    write_json(tmp_path / "in" / "a.jsonl", [{"x": row} for row in rows])
    place, out = Place.of(str(tmp_path / "in")), Place.of(str(tmp_path / "out"))
    given = job.Job(Settings(linear, preprocess=ending), place, out, 4, ())
    (file,) = place.listed()
    done, count = until_done(given, Shard(0, "jsonl", (file.path,), (file.name,)))
    # One that notes nothing, two for the batch, two for the row.
    assert count == 6
    assert (done.rows, done.bad, done.failure) == (12, 1, "")
    found = results(tmp_path / "out")
    assert "ran out of memory" in found[5]["error"]
    good = [row["y"] for row in found if row["error"] is None]
    np.testing.assert_allclose(good, expected(np.delete(x, 5, 0)), atol=TOLERANCE)
    assert list((tmp_path / "out" / "_attempts").iterdir()) == []


def test_attempts_that_ended_elsewhere_change_nothing(tmp_path: Path) -> None:
    """A node that is lost ends workers wherever they are."""
    place = Place.of(str(tmp_path / "notes.json"))
    for batch in range(5):
        attempts = Attempts(place)
        attempts.begin(batch)
        assert not any(attempts.is_deadly(number) for number in range(6))
    assert attempts.count == 5
    attempts.end()
    assert Attempts(place).count == 1


def test_notes_that_are_cut_off_are_none(tmp_path: Path) -> None:
    place = Place.of(str(tmp_path / "notes.json"))
    place.write(b'{"attempts": 3')
    assert Attempts(place).count == 1


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"a file")
    with pytest.raises(UsageError, match="need a folder of their own"):
        resume.claim(Place.of(str(tmp_path / "out")), "_narrowpass.json", {})
