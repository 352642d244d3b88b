"""Compares two installed versions of narrowpass on models, in turns: run, compile and import times.

Each round runs both versions, each in a process of its own, so that a drift of the machine meets
both::

    python benchmarks/versions.py OLD/bin/python NEW/bin/python MODEL.onnx... [--rounds 5]

Ratios are old over new: above 1, the new version is faster. The medians of the rounds' fastest
runs are compared. One thread, no weights cache.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
from pathlib import Path

from rich.console import Console
from rich.table import Table

_RUN = """
import json, sys, time
start = time.perf_counter()
import numpy as np
import narrowpass
imported = time.perf_counter() - start
from narrowpass.driver import open_bundle
from narrowpass_testing import random_feeds
path, seconds = sys.argv[1], float(sys.argv[2])
start = time.perf_counter()
bundle = open_bundle(path, "xnn-cpu")
built = time.perf_counter() - start
model = next(iter(bundle.methods.values()))
feeds = random_feeds(model, 0)
start = time.perf_counter()
program = narrowpass.load(bundle, "xnn-cpu", threads=1, cache=False)
compiled = time.perf_counter() - start
for _ in range(3):
    program.run(feeds)
times = []
end = time.perf_counter() + seconds
while time.perf_counter() < end or len(times) < 5:
    start = time.perf_counter()
    program.run(feeds)
    times.append(time.perf_counter() - start)
times.sort()
run = times[len(times) // 10]
print(json.dumps({"run": run, "compile": compiled, "build": built, "import": imported}))
"""

_KINDS = ("run", "compile", "build", "import")


def _measured(python: str, model: Path, seconds: float) -> dict[str, float]:
    command = [python, "-c", _RUN, str(model), str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{python}: {model.name}: {done.stderr.strip().splitlines()[-1]}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("old", help="the Python of the old version's environment")
    parser.add_argument("new", help="the Python of the new version's environment")
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="of runs in each round")
    given = parser.parse_args()
    table = Table("model", "run, ms", *(f"{kind}, old / new" for kind in _KINDS))
    ratios: dict[str, list[float]] = {kind: [] for kind in _KINDS}
    for model in given.models:
        rounds: list[list[dict[str, float]]] = [[], []]
        for number in range(given.rounds):
            order = (0, 1) if number % 2 else (1, 0)
            for side in order:
                python = (given.old, given.new)[side]
                rounds[side].append(_measured(python, model, given.seconds))
        medians = [
            {kind: statistics.median(each[kind] for each in side) for kind in _KINDS}
            for side in rounds
        ]
        found = {kind: medians[0][kind] / medians[1][kind] for kind in _KINDS}
        for kind in _KINDS:
            ratios[kind].append(found[kind])
        cells = [f"{found[kind]:.2f}" for kind in _KINDS]
        table.add_row(model.stem, f"{1e3 * medians[1]['run']:.3f}", *cells)
    geometric = [f"{statistics.geometric_mean(ratios[kind]):.3f}" for kind in _KINDS]
    table.add_row("geometric mean", "", *geometric)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
