"""Builds a generated model with large external data, against copying and syncing its files.

Usage: ``python benchmarks/passes/large_build.py [--gigabytes 2] [--runs 5] [--folder DIR]
[-p PIPELINE]``

The two are run in turns on one file system, each with all files in the page cache and nothing
left to be written. The build runs in a process of its own; its private memory is what
``/proc/PID/smaps_rollup`` says at the worst moment, above what it says after the imports. All
that is written is deleted at the end.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

WIDTH = 4096
GOAL_SECONDS = 3.0
GOAL_MEGABYTES = 250.0

CHILD = """
import sys, time
import narrowpass
import narrowpass.bundle, narrowpass.driver, narrowpass_ir.io, narrowpass_ir.verify
plugins = narrowpass.load_plugins()
narrowpass.driver.registry_for(plugins)
print("imported", flush=True)
sys.stdin.readline()
began = time.perf_counter()
narrowpass.build(sys.argv[1], sys.argv[2], sys.argv[3], plugins=plugins)
print(time.perf_counter() - began, flush=True)
sys.stdin.readline()
"""


def generate(folder: Path, gigabytes: float) -> Path:
    """Write an embedding of a quarter of the bytes, and square MatMuls for the rest."""
    total = int(gigabytes * 1e9) // 4
    rows = total // 4 // WIDTH
    layers = max(1, (total - rows * WIDTH) // WIDTH**2)
    shapes = [("embedding", (rows, WIDTH)), *((f"w{i}", (WIDTH, WIDTH)) for i in range(layers))]
    tensors, offset = [], 0
    rng = np.random.default_rng(0)
    block = rng.standard_normal(1 << 22, np.float32)
    with (folder / "model.data").open("wb") as file:
        for number, (name, shape) in enumerate(shapes):
            count = shape[0] * shape[1]
            for start in range(0, count, len(block)):
                file.write((block + np.float32(number + start))[: count - start].data)
            tensors.append(external(name, shape, offset))
            offset += 4 * count
    nodes = [helper.make_node("Gather", ["embedding", "ids"], ["h0"])]
    for i in range(layers):
        nodes += [
            helper.make_node("Identity", [f"h{i}"], [f"i{i}"]),
            helper.make_node("MatMul", [f"i{i}", f"w{i}"], [f"m{i}"]),
            helper.make_node("Constant", [], [f"c{i}"], value_float=0.5),
            helper.make_node("Mul", [f"m{i}", f"c{i}"], [f"h{i + 1}"]),
        ]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["N"])
    out = helper.make_tensor_value_info(f"h{layers}", TensorProto.FLOAT, ["N", WIDTH])
    graph = helper.make_graph(nodes, "large", [ids], [out], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


def external(name: str, shape: tuple[int, int], offset: int) -> TensorProto:
    """Describe a float tensor in ``model.data``."""
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
    tensor.data_location = TensorProto.EXTERNAL
    entries = {"location": "model.data", "offset": offset, "length": 4 * shape[0] * shape[1]}
    for key, entry in entries.items():
        tensor.external_data.add(key=key, value=str(entry))
    return tensor


def copy(model: Path, out: Path) -> float:
    """Copy the model's files and sync them; return the seconds."""
    os.sync()
    began = time.perf_counter()
    out.mkdir()
    for path in (model, model.with_suffix(".data")):
        shutil.copyfile(path, out / path.name)
        with (out / path.name).open("rb+") as file:
            os.fsync(file.fileno())
    fd = os.open(out, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    spent = time.perf_counter() - began
    shutil.rmtree(out)
    return spent


def private(pid: int) -> dict[str, float]:
    """Return the private memory of a process in megabytes."""
    fields = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, size, *_ = line.split()
        fields[name.rstrip(":")] = int(size) * 1024 / 1e6
    return {"dirty": fields["Private_Dirty"], "anonymous": fields["Anonymous"]}


class Sampler(threading.Thread):
    """Looks at a process every few milliseconds and keeps the worst."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid = pid
        self.start_values = private(pid)
        self.worst = dict(self.start_values)
        self.stop = threading.Event()

    def run(self) -> None:
        """Sample until `stop` is set."""
        while not self.stop.wait(0.01):
            for name, size in private(self.pid).items():
                self.worst[name] = max(self.worst[name], size)

    def grown(self) -> dict[str, float]:
        """Return the worst above the first sample."""
        return {name: size - self.start_values[name] for name, size in self.worst.items()}


def build(model: Path, pipeline: str, out: Path) -> tuple[float, float, dict[str, float]]:
    """Build in a process; return seconds of the call, of the process, and memory grown."""
    os.sync()
    began = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(model), pipeline, str(out)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    if child.stdin is None or child.stdout is None:
        raise RuntimeError("no pipes")
    child.stdout.readline()
    sampler = Sampler(child.pid)
    sampler.start()
    child.stdin.write("\n")
    child.stdin.flush()
    inside = float(child.stdout.readline())
    sampler.stop.set()
    sampler.join()
    child.communicate("\n")
    spent = time.perf_counter() - began
    shutil.rmtree(out)
    return inside, spent, sampler.grown()


def main() -> int:
    """Run the comparison and print it; 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where to write; a temporary folder without")
    parser.add_argument("-p", "--pipeline", default="fold")
    options = parser.parse_args()
    copies, calls, processes, dirty, anonymous = [], [], [], [], []
    with tempfile.TemporaryDirectory(prefix="large-build-", dir=options.folder) as name:
        folder = Path(name)
        model = generate(folder, options.gigabytes)
        size = model.with_suffix(".data").stat().st_size
        print(f"{size / 1e9:.2f} GB, pipeline {options.pipeline!r}, {options.runs} runs each")
        for run in range(options.runs):
            copies.append(copy(model, folder / "copy"))
            inside, spent, grown = build(model, options.pipeline, folder / "out.narrow")
            calls.append(inside)
            processes.append(spent)
            dirty.append(grown["dirty"])
            anonymous.append(grown["anonymous"])
            print(
                f"  run {run + 1}: copy {copies[-1]:6.2f} s   build {inside:6.2f} s"
                f"   process {spent:6.2f} s   memory {max(grown.values()):5.0f} MB",
                flush=True,
            )
    baseline = statistics.median(copies)
    rows = [
        ("copy and sync", baseline, None),
        ("build, the call", statistics.median(calls), GOAL_SECONDS),
        ("build, the process", statistics.median(processes), GOAL_SECONDS),
    ]
    print(f"{'median of ' + str(options.runs):24}{'seconds':>10}{'more':>10}{'goal':>10}")
    met = True
    for what, seconds, goal in rows:
        more = "" if goal is None else f"{seconds - baseline:+.2f}"
        limit = "" if goal is None else f"+{goal:.2f}"
        print(f"{what:24}{seconds:10.2f}{more:>10}{limit:>10}")
        met = met and (goal is None or seconds - baseline <= goal)
    print(f"{'private memory, peak':24}{'MB':>10}{'':>10}{'goal':>10}")
    for what, sizes in (("Private_Dirty", dirty), ("anonymous", anonymous)):
        print(f"{what:24}{max(sizes):10.0f}{'':>10}{GOAL_MEGABYTES:10.0f}")
        met = met and max(sizes) <= GOAL_MEGABYTES
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
