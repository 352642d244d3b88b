"""Memory of several processes that run one model, by onnxruntime and by narrowpass under it.

    python benchmarks/provider/memory.py FOLDER [--processes 8] [--threads 1]

Each process creates a session of 6 matrices of 4096 x 4096 (403 MB) and runs it on one row. When
all have run, the memory of all is counted, shared pages divided among those that share them (Pss),
in MB and as a share of one process alone. FOLDER takes the model and the cache.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from inference_session import FORMS, WIDTH, matmuls, session_of


def work(form: str, path: str, threads: str) -> None:
    """Run a session; say so, and print the memory when asked by a line."""
    session = session_of(form, path, int(threads))
    session.run(None, {"h0": np.ones((1, WIDTH), np.float32)})
    print("ready", flush=True)
    sys.stdin.readline()
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    print(next(int(line.split()[1]) for line in lines if line.startswith("Pss:")), flush=True)
    sys.stdin.readline()


def megabytes(form: str, path: Path, count: int, threads: int) -> float:
    """Return the memory of so many processes."""
    command = [sys.executable, __file__, "work", form, str(path), str(threads)]
    pipe = subprocess.PIPE
    workers = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(count)]
    answers = []
    for question in ("", "memory\n"):
        for worker in workers:
            if worker.stdin is not None and question:
                worker.stdin.write(question)
                worker.stdin.flush()
        answers = [worker.stdout.readline() for worker in workers if worker.stdout is not None]
        if not all(answers):
            raise SystemExit("a process failed; its error is above")
    for worker in workers:
        worker.communicate("\n")
    return sum(map(int, answers)) / 1024


def main() -> None:
    """Print a line for each form."""
    if sys.argv[1:2] == ["work"]:
        work(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    os.environ["NARROWPASS_CACHE_DIR"] = str(options.folder / "cache")
    path = matmuls(options.folder)
    for form in FORMS:
        megabytes(form, path, 1, options.threads)  # fills the cache
        one, several = (megabytes(form, path, n, options.threads) for n in (1, options.processes))
        print(f"{form:12} {one:8.0f} MB {several:8.0f} MB {several / one:6.2f}", flush=True)


if __name__ == "__main__":
    main()
