"""Compares the latency, load time and memory of narrowpass with those of other runtimes, in fp32.

    python benchmarks/runtimes.py MODEL.onnx ... [--threads 1 all] [--sequence 128] [--rounds 7]
        [--runtimes narrowpass onnxruntime openvino executorch] [--plot OUT.svg] [--json OUT.json]

Each runtime has a process of its own with the model in it, and the processes are asked in turn: a
round times some runs in each of them, after a pause in which the workers of the one before fall
asleep. Shown are the median over rounds of each round's median, and the ratio to narrowpass: above
1, narrowpass is faster. Load time is that from the file to the first result. Memory is the resident
set after the runs, less that of the process before the model. Outputs are compared with
onnxruntime's. Without `--runtimes`, those that are installed take part; ExecuTorch does for models
that ``export_executorch.py`` has lowered. Needs the dependency group ``peers``, ``executorch`` for
that one, and matplotlib for ``--plot``.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

RUNTIMES = ("narrowpass", "onnxruntime", "openvino", "executorch")
PAUSE = 0.05
SECONDS = 0.4
Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]
Run = Callable[[Feeds], list[Array]]


def load_narrowpass(path: str, threads: int) -> Run:
    """Give what runs a model on the native backend."""
    import narrowpass

    program = narrowpass.load(path, "xnn-cpu", threads=threads)
    return lambda feeds: list(program.run(feeds).values())


def load_onnxruntime(path: str, threads: int) -> Run:
    """Give what runs a model on onnxruntime, with all its optimizations."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda feeds: session.run(None, feeds)


def load_openvino(path: str, threads: int) -> Run:
    """Give what runs a model on OpenVINO, in fp32."""
    import openvino

    core = openvino.Core()
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
    }
    request = core.compile_model(path, "CPU", settings).create_infer_request()

    def run(feeds: Feeds) -> list[Array]:
        results = request.infer(feeds, share_inputs=True, share_outputs=True)
        return [results[index] for index in range(len(results))]

    return run


def load_executorch(path: str, threads: int) -> Run:
    """Give what runs a model that ``export_executorch.py`` lowered, from beside the ONNX file."""
    import torch
    from executorch.extension.pybindings import portable_lib
    from executorch.runtime import Runtime

    portable_lib._unsafe_reset_threadpool(threads)  # noqa: SLF001  # no public one
    method = Runtime.get().load_program(lowered(path)).load_method("forward")

    def run(feeds: Feeds) -> list[Array]:
        results = method.execute([torch.from_numpy(array) for array in feeds.values()])
        return [result.numpy() for result in results]

    return run


def lowered(path: str) -> Path:
    """Give the path of a model for ExecuTorch: NAME.pte for NAME-torchscript.onnx."""
    return Path(path).with_name(Path(path).stem.rsplit("-", 1)[0] + ".pte")


LOADERS = {
    "narrowpass": load_narrowpass,
    "onnxruntime": load_onnxruntime,
    "openvino": load_openvino,
    "executorch": load_executorch,
}


def resident() -> int:
    """Give the resident set of this process in bytes."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def serve(runtime: str, path: str, threads: int, feeds: Feeds, pipe: Connection) -> None:
    """Load a model, then time runs whenever asked to."""
    importlib.import_module(runtime)
    before = resident()
    start = time.perf_counter()
    run = LOADERS[runtime](path, threads)
    first = [np.array(value) for value in run(feeds)]
    pipe.send((time.perf_counter() - start, first))
    while (seconds := pipe.recv()) is not None:
        run(feeds)
        times = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(times) < 3:
            start = time.perf_counter()
            run(feeds)
            times.append(time.perf_counter() - start)
        pipe.send((statistics.median(times), resident() - before))


def make_feeds(path: str, sequence: int) -> Feeds:
    """Make random feeds; the first dynamic dimension is 1, others are `sequence`."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    feeds: Feeds = {}
    for value in session.get_inputs():
        shape = [
            dim if isinstance(dim, int) else (1 if axis == 0 else sequence)
            for axis, dim in enumerate(value.shape)
        ]
        if "int" not in value.type:
            feeds[value.name] = rng.standard_normal(shape).astype(np.float32)
        elif "mask" in value.name:
            feeds[value.name] = np.ones(shape, np.int64)
        else:
            high = 2 if "type" in value.name else 1000
            feeds[value.name] = rng.integers(0, high, shape, dtype=np.int64)
    return feeds


def measure(path: str, threads: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Time all runtimes on one model, in turns."""
    feeds = make_feeds(path, arguments.sequence)
    context = multiprocessing.get_context("spawn")
    pipes: dict[str, Connection] = {}
    rows: dict[str, dict[str, Any]] = {}
    outputs = {}
    for runtime in arguments.runtimes:
        if runtime == "executorch" and not lowered(path).exists():
            continue  # only what torch has can be had
        ours, theirs = context.Pipe()
        process = context.Process(
            target=serve, args=(runtime, path, threads, feeds, theirs), daemon=True
        )
        process.start()
        theirs.close()
        seconds, outputs[runtime] = ours.recv()
        rows[runtime] = {"load": seconds, "rounds": []}
        pipes[runtime] = ours
    for _ in range(arguments.rounds):
        for runtime, pipe in pipes.items():
            time.sleep(PAUSE)
            pipe.send(SECONDS)
            latency, memory = pipe.recv()
            rows[runtime]["rounds"].append(latency)
            rows[runtime]["memory"] = memory
    for pipe in pipes.values():
        pipe.send(None)
    right = outputs.get("onnxruntime")
    for runtime, row in rows.items():
        row["latency"] = statistics.median(row["rounds"])
        row["ratio"] = row["latency"] / statistics.median(rows["narrowpass"]["rounds"])
        if right is not None:
            pairs = zip(outputs[runtime], right, strict=True)
            row["relative"] = max(
                float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30)) for a, b in pairs
            )
    return rows


def show(model: str, threads: int, rows: dict[str, dict[str, Any]]) -> None:
    """Print one model's rows."""
    for runtime, row in rows.items():
        print(
            f"{model:28} {threads:7} {runtime:12} {row['latency'] * 1e3:9.3f} {row['ratio']:6.2f}"
            f" {row['load'] * 1e3:9.1f} {row['memory'] / 1e6:9.1f} {row.get('relative', 0):9.1e}",
            flush=True,
        )


def plot(results: list[dict[str, Any]], file: str) -> None:
    """Draw the ratios of the other runtimes' latencies to narrowpass's."""
    import matplotlib.pyplot as plt

    labels = [f"{r['model']}, {r['threads']} thr." for r in results]
    others = [name for name in RUNTIMES[1:] if any(name in r["rows"] for r in results)]
    figure, axes = plt.subplots(figsize=(8, 1 + 0.4 * len(labels)))
    height = 0.8 / max(1, len(others))
    for number, name in enumerate(others):
        ratios = [result["rows"].get(name, {}).get("ratio", 0.0) for result in results]
        places = [index + number * height for index in range(len(labels))]
        axes.barh(places, ratios, height, label=name)
    axes.axvline(1.0, color="black")
    axes.set_yticks([index + 0.4 - height / 2 for index in range(len(labels))], labels)
    axes.invert_yaxis()
    axes.set_xlabel("latency, as a multiple of narrowpass's")
    axes.legend()
    figure.tight_layout()
    figure.savefig(file)


def main() -> None:
    """Read the command line, measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL.onnx")
    parser.add_argument("--threads", nargs="+", default=["1", "all"], metavar="N")
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--runtimes", nargs="+", choices=RUNTIMES)
    parser.add_argument("--plot", metavar="OUT.svg")
    parser.add_argument("--json", metavar="OUT.json")
    arguments = parser.parse_args()
    installed = [name for name in RUNTIMES if importlib.util.find_spec(name) is not None]
    arguments.runtimes = arguments.runtimes or installed
    missing = [name for name in arguments.runtimes if name not in installed]
    if missing:
        sys.exit(
            f"{missing[0]} is not installed: pip install --group peers (or --group executorch)"
        )
    every = len(os.sched_getaffinity(0))
    counts = [every if text == "all" else int(text) for text in arguments.threads]
    print(
        f"{'model':28} {'threads':>7} {'runtime':12} {'ms':>9} {'ratio':>6} {'load ms':>9}"
        f" {'MB':>9} {'relative':>9}"
    )
    results = []
    for threads in dict.fromkeys(counts):
        for model in arguments.models:
            rows = measure(str(model), threads, arguments)
            show(model.stem, threads, rows)
            results.append({"model": model.stem, "threads": threads, "rows": rows})
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(results, indent=2), encoding="utf-8")
    if arguments.plot:
        plot(results, arguments.plot)


if __name__ == "__main__":
    main()
