"""Memory of actors of Ray on one host, beside those of onnxruntime.

    python benchmarks/cluster/memory.py FOLDER [--actors 1 2 4 8] [--json OUT.json]

Each actor loads a model of 24 matrices of 2048 x 2048 (403 MB) and runs a batch of 4 rows. Memory
is the proportional set of all their processes, in which each page counts once however many map it.
What actors take with a model of one small matrix is subtracted, since Ray, Arrow and imports are no
matter of the model; the last column has all of it. FOLDER takes the model, which is built once, and
the weights cache. onnxruntime's actors have one thread and its CPU provider.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import ray

import narrowpass

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the folder of `runners` and `zoo`

from runners.memory import proportional
from zoo.matmuls import write_matmuls

SIZE = 2048


def model(folder: Path, count: int, size: int) -> Path:
    """Build a model of matmuls and its bundle, if they are not there; return the bundle's path."""
    path = folder / f"matmuls{count}.narrow"
    if not path.exists():
        source = write_matmuls(path.with_suffix(".onnx"), count, size)
        narrowpass.build(source, "", path, target="xnn-cpu")
    return path


class Narrowpass:
    """An actor with `narrowpass_ray.Predictor`."""

    def __init__(self, bundle: str, cache: str) -> None:
        from narrowpass_ray import Predictor, Settings

        self._predictor = Predictor(Settings(bundle, backend="xnn-cpu", cache_dir=cache))

    def run(self, size: int) -> tuple[int, float]:
        """Compute a batch; return the process and an element of the result."""
        found = self._predictor({"x": np.ones((4, size), np.float32)})
        return os.getpid(), float(found["y"][0, 0])


class Onnxruntime:
    """An actor with a session of onnxruntime."""

    def __init__(self, bundle: str, cache: str) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        path = str(Path(bundle).with_suffix(".onnx"))
        providers = ["CPUExecutionProvider"]
        self._session = onnxruntime.InferenceSession(path, options, providers=providers)

    def run(self, size: int) -> tuple[int, float]:
        """Compute a batch; return the process and an element of the result."""
        (found,) = self._session.run(["y"], {"x": np.ones((4, size), np.float32)})
        return os.getpid(), float(found[0, 0])


def total(kind: Any, count: int, bundle: Path, size: int, cache: Path) -> int:
    """Return the memory of a number of actors after each has run."""
    remote = ray.remote(num_cpus=0)(kind)
    actors = [remote.remote(str(bundle), str(cache)) for _ in range(count)]
    pids = [pid for pid, _ in ray.get([actor.run.remote(size) for actor in actors])]
    memory = proportional(pids)
    for actor in actors:
        ray.kill(actor)
    return memory


def main() -> None:
    """Print a row for each number of actors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--actors", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    large, small = model(given.folder, 24, SIZE), model(given.folder, 1, 64)
    cache = given.folder / "cache"
    ray.init("local", num_cpus=2, include_dashboard=False, object_store_memory=100 << 20)
    rows = []
    print(f"{'':12} actors  of the model  of 1 actor  with all else")
    for kind in (Narrowpass, Onnxruntime):
        total(kind, 1, large, SIZE, cache)  # packs
        first = 0
        for count in given.actors:
            whole = total(kind, count, large, SIZE, cache)
            of_model = whole - total(kind, count, small, 64, cache)
            first = first or of_model
            rows.append({"kind": kind.__name__, "actors": count, "model": of_model, "all": whole})
            print(
                f"{kind.__name__:12} {count:6}  {of_model / 1e6:9.0f} MB  {of_model / first:8.2f} x"
                f"  {whole / 1e6:10.0f} MB"
            )
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
