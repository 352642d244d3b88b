"""What a shard costs beside its rows: the inputs of the cost model of a large cluster.

    python benchmarks/cluster/overhead.py FOLDER [--shards 500] [--workers 2]

Prints the time to plan (to list the input and read the footers), until the first shard is done
(which starts actors), for each further shard of one row (Ray's scheduling, the notes on attempts,
reading, writing), and what the process of the job itself computes for a shard, which limits a
cluster of any size. Then what a worker alone takes for a shard, without Ray.
"""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray
from scaling import SIZE, prepare

from narrowpass_ray import Settings, map_files
from narrowpass_ray.places import Place
from narrowpass_ray.shards import Sizes, plan
from narrowpass_ray.worker import Job, Worker


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shards", type=int, default=500)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    bundle = prepare(given.folder, 512)
    source = given.folder / f"shards{given.shards}"
    if not source.exists():
        source.mkdir()
        table = pa.table({"x": list(np.zeros((1, SIZE), np.float32))})
        for number in range(given.shards):
            pq.write_table(table, source / f"{number:06}.parquet")
    place = Place.of(str(source))
    start = time.perf_counter()
    shards = plan(place, place.listed(), "parquet", Sizes(rows=1))
    print(f"plan: {1e3 * (time.perf_counter() - start) / len(shards):.2f} ms a file")
    settings = Settings(str(bundle), backend="xnn-cpu", cache_dir=str(given.folder / "cache"))
    output = given.folder / "out"
    shutil.rmtree(output, ignore_errors=True)
    worker = Worker(Job(settings, place, Place.of(str(output)), 64, ()))
    worker.compute(shards[0])
    start = time.perf_counter()
    for shard in shards[1:101]:
        worker.compute(shard)
    print(f"a worker alone: {1e3 * (time.perf_counter() - start) / 100:.2f} ms a shard")
    shutil.rmtree(output)
    ray.init("local", num_cpus=given.workers, include_dashboard=False, log_to_driver=False)
    times: list[tuple[float, float]] = []
    start = time.perf_counter()
    map_files(
        settings, str(source), str(output), sizes=Sizes(rows=1), concurrency=given.workers,
        progress=lambda *_: times.append((time.perf_counter() - start, time.process_time())),
    )  # fmt: skip
    first, last = times[0], times[-1]
    count = len(times) - 1
    print(f"first shard: {first[0]:.1f} s")
    print(f"further shards: {1e3 * (last[0] - first[0]) / count:.1f} ms each")
    own = 1e3 * (last[1] - first[1]) / count
    print(f"of these, processor time of the job's process: {own:.1f} ms")


if __name__ == "__main__":
    main()
