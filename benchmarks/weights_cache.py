"""Load times and memory with the weights cache: packed once, shared, mapped from its file.

    python benchmarks/weights_cache.py FOLDER [--part matmuls|methods|large|halves ...]
        [--runs 5] [--json OUT.json]

Each figure is taken in a process of its own, after imports and a tiny program, so that only what
the model costs is counted; times are medians of `--runs` processes. Memory is the resident set
(proportional set where processes run together) above that before the model was opened. FOLDER
takes the models, which are built once: 0.4 GB, 0.4 GB, and for `large` and `halves` 5 to 17 GB.

matmuls  24 matrices of 2048 x 2048 (403 MB): packing from scratch, writing the file, the first
          load after it, later ones; the memory of one process and of two at once.
methods   prefill and decode of a decoder of 100 M parameters over one set of weights: memory after
          both have run, and the time of a token; against onnxruntime (two sessions, also with a
          container for packed weights) and OpenVINO, where they are installed.
large     the shape of Llama 3.2 1B: from the file to the first token, against onnxruntime.
halves    the same through store-weights: bytes of the bundle, time and memory of the build.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import decoder
import numpy as np
from runners.apart import run_apart
from runners.memory import by_kind
from zoo.matmuls import matmuls_model, write_matmuls

THREADS = len(os.sched_getaffinity(0))
TIMES = ("open", "load", "first run")
Feeds = dict[str, np.ndarray[Any, Any]]


def above(before: dict[str, int]) -> dict[str, int]:
    """Return by how much memory has grown."""
    return {key: value - before[key] for key, value in by_kind().items()}


def in_process(task: Callable[..., Any], *arguments: Any) -> Any:
    """Run a function in a process of its own, and return its result."""
    return run_apart(task, arguments)


def warm_up() -> None:
    """Import all that a load needs, with a tiny model."""
    import onnx_ir as ir

    import narrowpass

    bundle = narrowpass.build(ir.from_proto(matmuls_model(1, 4)), "", target="xnn-cpu")
    with narrowpass.load(bundle, "xnn-cpu", threads=THREADS) as program:
        program.run({"x": np.ones((1, 4), np.float32)})


# Matmuls


def matmuls_bundle(folder: Path) -> Path:
    """Build the bundle of 24 matmuls, if it is not there."""
    import narrowpass

    path = folder / "matmuls.narrow"
    if path.exists():
        return path
    source = write_matmuls(folder / "matmuls.onnx", 24, 2048)
    narrowpass.build(source, out=path, target="xnn-cpu")
    return path


def load_matmuls(path: str, cache: bool, folder: str, meet: Any = None) -> dict[str, Any]:
    """Load and run the matmuls; with `meet`, measure memory while another process has it too."""
    import narrowpass
    from narrowpass.bundle import Bundle

    warm_up()
    before = by_kind()
    start = time.perf_counter()
    bundle = Bundle.load(path)
    opened = time.perf_counter()
    program = narrowpass.load(bundle, "xnn-cpu", threads=THREADS, cache=cache, cache_dir=folder)
    loaded = time.perf_counter()
    x = np.ones((1, 2048), np.float32)
    result = next(iter(program.run({"x": x}).values()))
    first = time.perf_counter()
    if meet is not None:
        meet.wait()
        found = above(before)
        meet.wait()
    else:
        found = above(before)
    return {
        "open": opened - start,
        "load": loaded - opened,
        "first run": first - loaded,
        "memory": found,
        "packs": program.stats()["weights"]["packs"],
        "result": float(result.sum()),
    }


def matmuls(folder: Path, runs: int) -> dict[str, Any]:
    """Time the loads of 24 matmuls."""
    path = str(matmuls_bundle(folder))
    cache = folder / "cache-matmuls"
    size = 24 * 4 * (2048 * 2048 + 2048)
    rows: dict[str, list[dict[str, Any]]] = {}

    def take(name: str, *, cached: bool = True) -> None:
        rows.setdefault(name, []).append(in_process(load_matmuls, path, cached, str(cache)))

    for _ in range(runs):
        for file in cache.glob("*") if cache.exists() else ():
            file.unlink()
        take("packed from scratch", cached=False)
        take("packed and written")
        take("first load after it")
        take("later loads")
    table = {}
    print(f"matmuls: {size / 1e6:.0f} MB of weights, {THREADS} threads")
    print("                          open      load  first run  resident/weights  packed")
    for name, found in rows.items():
        times = {key: statistics.median(row[key] for row in found) for key in TIMES}
        share = statistics.median(row["memory"]["Rss"] for row in found) / size
        texts = "".join(f"{seconds * 1e3:7.1f} ms" for seconds in times.values())
        print(f"  {name:20}{texts}  {share:16.2f}  {found[0]['packs']:6}")
        table[name] = {**times, "resident": share}
    results = {row["result"] for found in rows.values() for row in found}
    print(f"  results are {'the same' if len(results) == 1 else results}")
    meet = multiprocessing.get_context("spawn").Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        pair = [(load_matmuls, path, True, str(cache), meet)] * 2
        found = list(pool.map(lambda task: in_process(*task), pair))
    shares = [each["memory"]["Pss"] / size for each in found]
    print(f"  two processes: {shares[0]:.2f} and {shares[1]:.2f} of the weights each (Pss)")
    return {**table, "two processes": shares}


# Methods


def run_methods(runtime: str, folder: str, cache: str) -> dict[str, Any]:
    """Load prefill and decode in one runtime, run both, and time a decode."""
    paths = {name: str(Path(folder) / f"{name}.onnx") for name in ("prefill", "decode")}
    feeds = {"prefill": decoder.feeds("100m", 64), "decode": decoder.feeds("100m", 1, 64)}
    grown = {}
    if runtime.startswith("narrowpass"):
        import narrowpass

        warm_up()
        before = by_kind()
        names = ("prefill",) if runtime.endswith("prefill") else ("prefill", "decode")
        target = Path(folder) / f"{'-'.join(names)}.narrow"
        cached: Any = "memory" if "memory" in runtime else True
        program = narrowpass.load(target, "xnn-cpu", threads=THREADS, cache_dir=cache, cache=cached)
        runs = {name: _method(program, name) for name in names}
    elif runtime.startswith("onnxruntime"):
        import onnxruntime  # noqa: F401  # loaded before memory is measured

        before = by_kind()
        runs = {name: _session(path, plain="plain" in runtime) for name, path in paths.items()}
    else:
        import openvino

        before = by_kind()
        core = openvino.Core()
        runs = {}
        for name, path in paths.items():
            settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": THREADS}
            request = core.compile_model(path, "CPU", settings).create_infer_request()
            runs[name] = request.infer
    for name, run in runs.items():
        run(feeds[name])
        grown[name] = above(before)["Rss"]
    times = []
    last = runs["decode"] if "decode" in runs else runs["prefill"]
    for _ in range(20):
        start = time.perf_counter()
        last(feeds["decode" if "decode" in runs else "prefill"])
        times.append(time.perf_counter() - start)
    return {"memory": grown, "token": statistics.median(times)}


def _method(program: Any, name: str) -> Callable[[Feeds], Any]:
    return lambda feeds: program.run(feeds, name)


def _session(path: str, *, plain: bool) -> Callable[[Feeds], Any]:
    """Open a session; `plain` leaves weights as they are, which saves memory and costs time."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.log_severity_level = 3
    if plain:
        options.add_session_config_entry("session.disable_prepacking", "1")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda feeds: session.run(None, feeds)


def methods(folder: Path, runs: int) -> dict[str, Any]:
    """Compare the memory of prefill and decode over the same weights."""
    import narrowpass

    models = folder / "decoder-100m"
    paths = decoder.build(models, "100m", tied=True)
    both = dict(zip(("prefill", "decode"), map(str, paths), strict=True))
    for names in (("prefill",), ("prefill", "decode")):
        target = models / f"{'-'.join(names)}.narrow"
        if not target.exists():
            narrowpass.build({name: both[name] for name in names}, out=target, target="xnn-cpu")
    size = (models / decoder.WEIGHTS).stat().st_size
    bundle = sum(file.stat().st_size for file in (models / "prefill-decode.narrow").iterdir())
    print(f"methods: {size / 1e6:.0f} MB of weights; the bundle of both has {bundle / 1e6:.0f} MB")
    kinds = ["narrowpass, prefill", "narrowpass", "narrowpass, memory"]
    kinds += (
        ["onnxruntime", "onnxruntime, plain"] if importlib.util.find_spec("onnxruntime") else []
    )
    kinds += ["openvino"] if importlib.util.find_spec("openvino") else []
    table: dict[str, Any] = {}
    in_process(run_methods, kinds[1], str(models), str(folder / "cache-methods"))  # writes the file
    for kind in kinds:
        found = [
            in_process(run_methods, kind, str(models), str(folder / "cache-methods"))
            for _ in range(runs)
        ]
        grown = {
            name: statistics.median(row["memory"][name] for row in found)
            for name in found[0]["memory"]
        }
        token = statistics.median(row["token"] for row in found)
        texts = ", ".join(f"{value / 1e6:.0f} MB after {name}" for name, value in grown.items())
        share = list(grown.values())[-1] / size
        print(f"  {kind:22} {texts} ({share:.2f} of the weights); a token {token * 1e3:.1f} ms")
        table[kind] = {"memory": grown, "share": share, "token": token}
    return table


# Large


def first_token(runtime: str, path: str, cache: str) -> dict[str, Any]:
    """Open a model and decode a token after four; return the times and the memory."""
    feeds = decoder.feeds("1b", 4)
    if runtime == "narrowpass":
        import narrowpass

        warm_up()
        before, start = by_kind(), time.perf_counter()
        program = narrowpass.load(path, "xnn-cpu", threads=THREADS, cache_dir=cache)
        loaded = time.perf_counter()
        program.run(feeds)
    else:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = THREADS
        before, start = by_kind(), time.perf_counter()
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        loaded = time.perf_counter()
        session.run(None, feeds)
    end = time.perf_counter()
    return {"load": loaded - start, "total": end - start, "memory": above(before)["Rss"]}


def large(folder: Path, runs: int) -> dict[str, Any]:
    """Compare the time to the first token of a model of 4.94 GB."""
    import narrowpass

    models = folder / "decoder-1b"
    source, _ = decoder.build(models, "1b", tied=True)
    target = models / "prefill.narrow"
    cache = str(folder / "cache-large")
    if not target.exists():
        narrowpass.build(source, out=target, target="xnn-cpu")
    size = (models / decoder.WEIGHTS).stat().st_size
    print(f"large: {size / 1e9:.2f} GB of weights, {THREADS} threads")
    rows: dict[str, Any] = {}
    rows["packed and written"] = [in_process(first_token, "narrowpass", str(target), cache)]
    rows["first load after it"] = [in_process(first_token, "narrowpass", str(target), cache)]
    for _ in range(runs):
        warm = in_process(first_token, "narrowpass", str(target), cache)
        rows.setdefault("later loads", []).append(warm)
        if importlib.util.find_spec("onnxruntime"):
            other = in_process(first_token, "onnxruntime", str(source), cache)
            rows.setdefault("onnxruntime", []).append(other)
    table = {}
    for name, found in rows.items():
        load, total = (statistics.median(row[key] for row in found) for key in ("load", "total"))
        share = statistics.median(row["memory"] for row in found) / size
        print(
            f"  {name:20} load {load:7.3f} s, to the first token {total:7.3f} s, "
            f"resident {share:.2f} of the weights"
        )
        table[name] = {"load": load, "total": total, "resident": share}
    return table


# Halves


def build_halves(source: str, target: str) -> dict[str, Any]:
    """Build with store-weights, watching memory."""
    import narrowpass

    warm_up()
    peak, stop = [0], threading.Event()

    def watch() -> None:
        while not stop.wait(0.02):
            lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
            peak[0] = max(
                peak[0], *(1024 * int(x.split()[1]) for x in lines if x.startswith("VmRSS"))
            )

    thread = threading.Thread(target=watch)
    thread.start()
    start = time.perf_counter()
    narrowpass.build(source, "fold,store-weights", out=target, target="xnn-cpu")
    seconds = time.perf_counter() - start
    stop.set()
    thread.join()
    return {"seconds": seconds, "peak": peak[0]}


def halves(folder: Path, _: int) -> dict[str, Any]:
    """Build models at half their size."""
    table = {}
    for name, tied in (("tied", True), ("untied", False)):
        models = folder / ("decoder-1b" if tied else "decoder-1b-untied")
        source, _decode = decoder.build(models, "1b", tied=tied)
        target = models / "half.narrow"
        found = in_process(build_halves, str(source), str(target))
        size = (models / decoder.WEIGHTS).stat().st_size
        bundle = sum(file.stat().st_size for file in target.iterdir())
        print(
            f"halves, {name}: {size / 1e9:.2f} GB to {bundle / 1e9:.2f} GB ({bundle / size:.3f}), "
            f"in {found['seconds']:.1f} s, at most {found['peak'] / 1e6:.0f} MB of memory"
        )
        table[name] = {**found, "share": bundle / size}
    return table


PARTS = {"matmuls": matmuls, "methods": methods, "large": large, "halves": halves}


def main() -> None:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--part", nargs="+", choices=PARTS, default=["matmuls", "methods"])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    found = {part: PARTS[part](arguments.folder, arguments.runs) for part in arguments.part}
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
