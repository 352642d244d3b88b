"""Ray on two nodes: datasets, files, a node and a worker that are ended in the middle."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ray_kit import (
    POISON,
    QUIET,
    TOLERANCE,
    ending,
    expected,
    linear_bundle,
    results,
    rows_of,
    slow,
    write_parquet,
)

from narrowpass_ray import Settings, map_batches, map_files
from narrowpass_ray.shards import Sizes

pytestmark = QUIET


@pytest.fixture(scope="module")
def linear(tmp_path_factory: pytest.TempPathFactory) -> str:
    return linear_bundle(tmp_path_factory.mktemp("linear"))


def test_a_dataset_is_mapped(linear: str, one_core: Any) -> None:
    import ray.data

    x = rows_of(0, 50)
    dataset = ray.data.from_numpy(x).rename_columns(["x"])
    found = map_batches(dataset, linear, batch_size=16, concurrency=1).take_all()
    assert len(found) == 50
    order = np.argsort([row["y"].tolist() for row in found], axis=0)[:, 0]
    wanted = expected(x)
    np.testing.assert_allclose(
        np.sort([row["y"] for row in found], axis=0), np.sort(wanted, axis=0), atol=TOLERANCE
    )
    assert len(order) == 50
    assert {row["error"] for row in found} == {""}


def test_an_actor_has_the_threads_of_its_cpus(linear: str) -> None:
    from narrowpass.errors import UsageError
    from narrowpass_ray.mapping import threads_of

    assert [threads_of(cpus) for cpus in (0.25, 1, 1.5, 2, 16)] == [1, 1, 1, 2, 16]
    with pytest.raises(UsageError, match="num_cpus"):
        threads_of(0)


def test_nothing_is_lost_and_nothing_is_there_twice_when_a_node_ends(
    linear: str, tmp_path: Path, one_core: Any
) -> None:
    x = write_parquet(tmp_path / "in", files=8, rows=24, group=24)
    out = tmp_path / "out"
    ended = []

    def end_a_node() -> None:
        while len(list(out.glob("part-*"))) < 2:
            time.sleep(0.01)
        ended.append(len(list(out.glob("part-*"))))
        one_core.remove_node(other_node(one_core), False)

    def end_a_worker() -> None:
        """Send SIGKILL to the process of an actor on the other node."""
        while len(list(out.glob("part-*"))) < 5:
            time.sleep(0.01)
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit() and _is_worker(folder):
                os.kill(int(folder.name), signal.SIGKILL)
                ended.append(len(list(out.glob("part-*"))))
                return

    threads = [
        threading.Thread(target=end_a_node, daemon=True),
        threading.Thread(target=end_a_worker, daemon=True),
    ]
    for thread in threads:
        thread.start()
    summary = map_files(
        Settings(linear, preprocess=slow), str(tmp_path / "in"), str(out), sizes=Sizes(rows=24),
        batch_size=4, concurrency=(1, 2), keep=["id"],
    )  # fmt: skip
    for thread in threads:
        thread.join(60)
    assert len(ended) == 2, "a node and a worker were ended"
    assert max(ended) < 8, "they were ended before the job was done"
    assert (summary.shards, summary.failed) == (8, {})
    rows = results(out)
    assert [row["id"] for row in rows] == [*range(192)]
    np.testing.assert_allclose([row["y"] for row in rows], expected(x), atol=TOLERANCE)
    assert {row["error"] for row in rows} == {None}
    undisturbed = tmp_path / "undisturbed"
    map_files(
        Settings(linear, preprocess=slow), str(tmp_path / "in"), str(undisturbed),
        sizes=Sizes(rows=24), batch_size=4, concurrency=1, keep=["id"],
    )  # fmt: skip
    assert {p.name: p.read_bytes() for p in out.glob("part-*")} == {
        p.name: p.read_bytes() for p in undisturbed.glob("part-*")
    }


@pytest.mark.long
def test_a_row_that_ends_its_actors_costs_that_row(
    linear: str, tmp_path: Path, one_core: Any
) -> None:
    x = write_parquet(tmp_path / "in", files=3, rows=12, group=12)
    x[17, 0] = POISON
    table = pa.table({"id": np.arange(12, 24), "x": list(x[12:24])})
    pq.write_table(table, tmp_path / "in" / "001.parquet")
    summary = map_files(
        Settings(linear, preprocess=ending), str(tmp_path / "in"), str(tmp_path / "out"),
        batch_size=4, concurrency=1, keep=["id"],
    )  # fmt: skip
    assert (summary.rows, summary.bad, summary.failed) == (36, 1, {})
    rows = results(tmp_path / "out")
    assert [row["id"] for row in rows if row["error"]] == [17]
    assert "ran out of memory" in rows[17]["error"]
    good = [row["y"] for row in rows if row["error"] is None]
    np.testing.assert_allclose(good, expected(np.delete(x, 17, 0)), atol=TOLERANCE)


def other_node(cluster: Any) -> Any:
    """Return a node that this process does not talk to: it would end with that."""
    import ray

    ours = ray.get_runtime_context().get_node_id()
    sockets = {node["NodeID"]: node["RayletSocketName"] for node in ray.nodes()}
    nodes = sorted(cluster.worker_nodes, key=lambda node: node.unique_id)
    return next(node for node in nodes if node.raylet_socket_name != sockets[ours])


def _is_worker(folder: Path) -> bool:
    """Return whether a process is an actor of a job that this test started."""
    try:
        name = (folder / "cmdline").read_bytes()
        environment = (folder / "environ").read_bytes()
    except OSError:
        return False
    return (
        b"ray::MapWorker" in name and f"NARROWPASS_RAY_TEST={os.getpid()}".encode() in environment
    )
