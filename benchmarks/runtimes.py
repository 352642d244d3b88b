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
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from runners import RUNTIMES, Entrant, Feeds, cores, in_turns, installed

SECONDS = 0.4


def lowered(path: str) -> Path:
    """Return the path of a model for ExecuTorch: NAME.pte for NAME-torchscript.onnx."""
    return Path(path).with_name(Path(path).stem.rsplit("-", 1)[0] + ".pte")


def random_feeds(path: str, sequence: int) -> Feeds:
    """Build random feeds; the first dynamic dimension is 1, others are `sequence`."""
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
    feeds = random_feeds(path, arguments.sequence)
    entrants = [
        Entrant(runtime, runtime, str(lowered(path)) if runtime == "executorch" else path)
        for runtime in arguments.runtimes
        if runtime != "executorch" or lowered(path).exists()  # only what torch has can be had
    ]
    timings = in_turns(entrants, [feeds], threads, arguments.rounds, SECONDS)
    for runtime, timing in timings.items():
        if timing.failure:
            sys.exit(f"{runtime} on {path}: {timing.failure}")
    rows: dict[str, dict[str, Any]] = {}
    for runtime, timing in timings.items():
        rows[runtime] = row = {
            "load": timing.load,
            "rounds": timing.rounds,
            "memory": timing.memory,
            "latency": timing.latency,
        }
        if "narrowpass" in timings:
            row["ratio"] = timing.latency / timings["narrowpass"].latency
        if "onnxruntime" in timings:
            pairs = zip(timing.outputs[0], timings["onnxruntime"].outputs[0], strict=True)
            row["relative"] = max(
                float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30)) for a, b in pairs
            )
    return rows


def show(model: str, threads: int, rows: dict[str, dict[str, Any]]) -> None:
    """Print one model's rows."""
    for runtime, row in rows.items():
        ratio, relative = row.get("ratio", 0.0), row.get("relative", 0.0)
        print(
            f"{model:28} {threads:7} {runtime:12} {row['latency'] * 1e3:9.3f} {ratio:6.2f}"
            f" {row['load'] * 1e3:9.1f} {row['memory'] / 1e6:9.1f} {relative:9.1e}",
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
    there = installed()
    usual = [name for name in there if name != "openvino-default"]
    arguments.runtimes = arguments.runtimes or usual
    missing = [name for name in arguments.runtimes if name not in there]
    if missing:
        sys.exit(
            f"{missing[0]} is not installed: pip install --group peers (or --group executorch)"
        )
    counts = [cores(text) for text in arguments.threads]
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
