"""Rows per second of a job over files, with 1 to 4 workers, beside those of onnxruntime.

    python benchmarks/cluster/scaling.py FOLDER [--workers 1 2 4] [--rows 16384] [--runs 3]
        [--json OUT.json]

The model has 8 layers of 512 x 512. Rows are Parquet files of 512 rows, a shard each. Both sides
read, compute and write the same way, with one thread for each worker; onnxruntime's actor is
`narrowpass_ray.worker.Worker` with a session in place of the program. The clock runs from when each
worker may have done a shard to the last one, so that starting actors does not count; the time of
all, and that until the first shard was done, have columns of their own. The median of `--runs` jobs
counts. The machine's cores limit what is to gain: the first line says how many there are.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray

import narrowpass
from narrowpass_ray import Settings, job, map_files, worker
from narrowpass_ray.predictor import Predictor
from narrowpass_ray.shards import Sizes

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the folder of `zoo`

from zoo.matmuls import write_matmuls

SIZE, LAYERS, SHARD = 512, 8, 512


def prepare(folder: Path, rows: int) -> Path:
    """Build model and input, if they are not there; return the bundle's path."""
    bundle = folder / "layers.narrow"
    if not bundle.exists():
        model = write_matmuls(bundle.with_suffix(".onnx"), LAYERS, SIZE, relu=True)
        narrowpass.build(model, "", bundle, target="xnn-cpu")
    source = folder / f"rows{rows}"
    if not source.exists():
        source.mkdir()
        for number in range(rows // SHARD):
            x = np.random.default_rng(number).normal(size=(SHARD, SIZE)).astype(np.float32)
            pq.write_table(pa.table({"x": list(x)}), source / f"{number:05}.parquet")
    return bundle


class Session:
    """What `Predictor` uses of a program, by onnxruntime."""

    def __init__(self, path: str, program: Any) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        providers = ["CPUExecutionProvider"]
        self._session = onnxruntime.InferenceSession(path, options, providers=providers)
        self.inputs, self.outputs = program.inputs, program.outputs

    def run(self, feeds: Any, method: str, outputs: Any) -> dict[str, Any]:
        """Run the session."""
        names = [spec.name for spec in self._session.get_outputs()]
        return dict(zip(names, self._session.run(None, dict(feeds)), strict=True))


class OnnxruntimeWorker(worker.Worker):
    """A worker whose model runs on onnxruntime."""

    def compute(self, shard: Any) -> Any:
        """Compute a shard; the session takes the program's place before the first one."""
        if self._predictor is None:
            self._predictor = Predictor(self._job.settings)
            path = str(Path(self._job.settings.bundle).with_suffix(".onnx"))
            self._predictor.program = Session(path, self._predictor.program)
        return super().compute(shard)


def timed(folder: Path, bundle: Path, rows: int, workers: int) -> tuple[float, float, float]:
    """Return rows per second after the first shards, seconds of all, and until the first shard."""
    output = folder / "out"
    shutil.rmtree(output, ignore_errors=True)
    times: list[float] = []
    start = time.perf_counter()
    map_files(
        Settings(str(bundle), backend="xnn-cpu", cache_dir=str(folder / "cache")),
        str(folder / f"rows{rows}"), str(output), sizes=Sizes(rows=SHARD), batch_size=64,
        concurrency=workers, num_cpus=1,
        progress=lambda what, done, total: times.append(time.perf_counter() - start),
    )  # fmt: skip
    # All workers are at work once each has had the time of a shard.
    first = times[workers - 1]
    speed = SHARD * (len(times) - workers) / (times[-1] - first)
    return speed, times[-1], times[0]


def main() -> None:
    """Print a row for each number of workers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rows", type=int, default=16_384)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    bundle = prepare(given.folder, given.rows)
    ray.init("local", num_cpus=max(given.workers), include_dashboard=False, log_to_driver=False)
    print(f"{len(os.sched_getaffinity(0))} cores")
    print(f"{'':12} workers  rows per second  of 1 worker  seconds of all  until the first shard")
    found = []
    for kind in (worker.Worker, OnnxruntimeWorker):
        name = "onnxruntime" if kind is OnnxruntimeWorker else "narrowpass"
        job.Worker = kind
        base = 0.0
        for workers in given.workers:
            runs = [timed(given.folder, bundle, given.rows, workers) for _ in range(given.runs)]
            speed, total, first = (statistics.median(column) for column in zip(*runs, strict=True))
            base = base or speed
            found.append({"kind": name, "workers": workers, "rows_per_second": speed,
                          "seconds": total, "first": first})  # fmt: skip
            print(
                f"{name:12} {workers:7}  {speed:15.0f}  {speed / base:9.2f} x  {total:14.1f}"
                f"  {first:21.1f}"
            )
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
