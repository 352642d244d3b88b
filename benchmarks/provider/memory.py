"""Memory of several processes that run one model, by onnxruntime and by narrowpass under it.

    python benchmarks/provider/memory.py FOLDER [--processes 8] [--threads 1]

Each process creates a session of 6 matrices of 4096 x 4096 (403 MB) and runs it on one row; or,
*forked*, the first one does, and the others are its children and run it. When all have run, the
memory of all is counted, shared pages divided among those that share them (Pss), in MB and as a
share of one process alone: first with all that a process has, then without what as many processes
have that only import numpy and onnxruntime. FOLDER takes the model, the cache and compiled modules.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime  # noqa: F401  # what a process has that creates no session

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the folder of `runners`

WIDTH = 4096
IMPORTS = "imports"
"""The form of a process that creates no session."""


def work(form: str, path: str, threads: str, children: str) -> None:
    """Run a session, here and in so many children; say their process ids, and wait for a line."""
    if form != IMPORTS:
        from inference_session import session_of

        session = session_of(form, path, int(threads))
        feeds = {"x": np.ones((1, WIDTH), np.float32)}
        session.run(None, feeds)
    processes = [os.getpid()]
    done, say = os.pipe()
    for _ in range(int(children)):
        child = os.fork()
        if not child:
            session.run(None, feeds)
            os.write(say, b".")
            sys.stdin.readline()  # the pipe is closed when all are measured
            os._exit(0)
        processes.append(child)
    for _ in range(int(children)):
        os.read(done, 1)
    print(*processes, flush=True)
    sys.stdin.readline()


def megabytes(form: str, path: Path, threads: int, count: int, *, forked: bool = False) -> float:
    """Return the memory of so many processes."""
    children, workers = (count - 1, 1) if forked else (0, count)
    command = [sys.executable, __file__, "work", form, str(path), str(threads), str(children)]
    pipe = subprocess.PIPE
    started = [
        subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(workers)
    ]
    answers = [worker.stdout.readline() for worker in started if worker.stdout is not None]
    if not all(answers):
        raise SystemExit("a process failed; its error is above")
    from runners.memory import proportional

    found = proportional(process for answer in answers for process in answer.split()) / 2**20
    for worker in started:
        worker.communicate("\n" * count)
    return found


def main() -> None:
    """Print a line for each form."""
    if sys.argv[1:2] == ["work"]:
        work(*sys.argv[2:])
        return
    from inference_session import FORMS, matmuls

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    os.environ["NARROWPASS_CACHE_DIR"] = str(options.folder / "cache")
    # Without compiled modules, each process would keep what compiling them has left behind.
    os.environ["PYTHONPYCACHEPREFIX"] = str(options.folder / "modules")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    path, count = matmuls(options.folder), options.processes
    megabytes(IMPORTS, path, options.threads, 1)
    imports = [megabytes(IMPORTS, path, options.threads, n) for n in (1, count)]
    print(f"{'imports':20} {imports[0]:8.0f} MB {imports[1]:8.0f} MB", flush=True)
    for form in FORMS:
        megabytes(form, path, options.threads, 1)  # fills the cache
        one = megabytes(form, path, options.threads, 1)
        for forked in (False, True):
            all_ = megabytes(form, path, options.threads, count, forked=forked)
            beyond = (all_ - imports[1]) / (one - imports[0])
            print(
                f"{form + (', forked' if forked else ''):20} {one:8.0f} MB {all_:8.0f} MB"
                f" {all_ / one:6.2f} {beyond:6.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
