"""Compares decoders with caches in narrowpass and other runtimes: one token, and the prompt.

    python benchmarks/decoders.py FOLDER [--size tiny 100m 135m 1b] [--threads 1 all] [--past 128]
        [--prompt 128] [--form "narrowpass fp32" ...] [--phase decode prefill] [--rounds 7]
        [--clock wall|cpu] [--json OUT.json]

Builds the models in FOLDER/SIZE where they are missing (see ``decoder.py``), and the forms of each
tool: narrowpass's bundles in float32, in bfloat16, with weights stored as float16, with int8
weights, with quantized rows too, and with these but tables (of embeddings, above all) in float32,
as ExecuTorch has it, and in 4 bits with float and with quantized rows; onnxruntime in float32, by
``quantize_dynamic``, and with ``MatMulNBits`` of 8 bits in blocks of 128, and of 4 in blocks of 32;
OpenVINO in float32, by its defaults, and with NNCF's weights of 8 and 4 bits; ExecuTorch in float32
and with quantized rows, for inputs of these sizes alone.
Each form has a process of its own, and the processes are asked in turn. Shown are the median over
rounds of each round's median, the ratio to narrowpass's form of the same kind (above 1, narrowpass
is faster), the cosine and the largest error over the largest magnitude of the logits against
onnxruntime in float32, the worst over four inputs; and, for one token, the bytes of weights that it
reads, in GB/s, and their share of what the same number of threads reads of a large array.

``--clock cpu`` takes the time that a process computes: what to use with one thread where other
programs run beside. The size 1b needs 12 GB of disk for each form and as much memory.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # the threads of `bandwidth` are its own

import argparse
import json
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import decoder
import numpy as np
from runners import CLOCKS, Entrant, cores, in_turns, installed, judge
from variants.decoders import FORMS, Source, prepared

SECONDS = 0.4
SAMPLES = 4
"""So many feeds accuracy is judged with; the first of them are what is timed."""
REFERENCE = "onnxruntime fp32"


def weights_of(size: str) -> int:
    """Return how many weights one token is multiplied with: all matrices, the table once."""
    shape = decoder.SIZES[size]
    inner = shape.groups * shape.head
    layer = shape.width * (2 * shape.width + 2 * inner + 3 * shape.hidden)
    return shape.layers * layer + shape.vocabulary * shape.width


def bandwidth(threads: int, clock: str) -> float:
    """Return the bytes of a large array that threads read in a second, at best.

    Read by matmuls with a vector that stays in cache, which take several rows at once: that is
    faster than one stream of memory. Each thread has a part of its own.
    """
    array = np.ones((1 << 17, 1024), np.float32)
    vector = np.ones(1024, np.float32)
    parts = np.array_split(array, threads)
    taken = []
    for _ in range(12):
        start = CLOCKS[clock]()
        workers = [threading.Thread(target=np.dot, args=(part, vector)) for part in parts]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        taken.append(CLOCKS[clock]() - start)
    return array.nbytes / min(taken) * (1 if clock == "wall" else threads)


def measure(
    size: str, phase: str, threads: int, arguments: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    """Time all forms of one phase, in turns; return a row for each."""
    folder = arguments.folder / size
    prefill, decode = decoder.build(folder, size, tied=True)
    model = decode if phase == "decode" else prefill
    past = arguments.past if phase == "decode" else None
    feeds = [decoder.feeds(size, arguments.prompt, past, seed) for seed in range(SAMPLES)]
    source = Source(model, size, feeds[0])
    there, rows = [], {}
    for form in FORMS:
        if form.name not in arguments.form:
            continue
        if form.runtime not in installed():
            rows[form.name] = {"failure": f"{form.runtime} is not installed"}
        elif failure := prepared(form, source):
            rows[form.name] = {"failure": failure}
        else:
            there.append(Entrant(form.name, form.runtime, str(form.path(source))))
    timings = in_turns(there, feeds, threads, arguments.rounds, SECONDS, arguments.clock)
    rows |= {
        name: judge(timing, timings.get(REFERENCE), outputs=1) for name, timing in timings.items()
    }
    for form in FORMS:
        if form.name in rows:
            rows[form.name]["precision"] = form.precision
            rows[form.name]["bytes"] = form.stored(source)
    return rows


def show(
    size: str, phase: str, threads: int, rows: dict[str, dict[str, Any]], speed: float
) -> None:
    """Print the rows of one phase, and add what follows from others to them."""
    for form in FORMS:
        row = rows.get(form.name)
        if row is None:
            continue
        head = f"{size:5} {phase:8} {threads:7} {form.name:24}"
        if "failure" in row:
            print(f"{head} {row['failure']}", flush=True)
            continue
        rival = rows.get(form.rival, {})
        ratio = row["latency"] / rival["latency"] if "latency" in rival else None
        row["ratio"] = ratio
        line = f"{head} {row['latency'] * 1e3:9.3f} {_shown(ratio, '6.2f')}"
        line += f" {_shown(row.get('cosine'), '9.6f')} {_shown(row.get('relative'), '9.1e')}"
        if phase == "decode":
            row["read"] = weights_of(size) * form.width / row["latency"]
            row["share"] = row["read"] / speed
            line += f" {row['read'] / 1e9:6.1f} {row['share'] * 100:5.0f}%"
        print(line, flush=True)


def _shown(value: float | None, form: str) -> str:
    return f"{'-':>{form.partition('.')[0]}}" if value is None else format(value, form)


def main() -> None:
    """Read the command line, measure and print."""
    names = [form.name for form in FORMS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", nargs="+", choices=decoder.SIZES, default=["100m"])
    parser.add_argument("--threads", nargs="+", default=["1", "all"], metavar="N")
    parser.add_argument("--phase", nargs="+", choices=("decode", "prefill"))
    parser.add_argument("--form", nargs="+", choices=names, default=names)
    parser.add_argument("--past", type=int, default=128)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--json", metavar="OUT.json", type=Path)
    arguments = parser.parse_args()
    print(
        f"{'size':5} {'phase':8} {'threads':>7} {'form':24} {'ms':>9} {'ratio':>6} {'cosine':>9}"
        f" {'relative':>9} {'GB/s':>6} {'share':>6}"
    )
    results = []
    for threads in dict.fromkeys(map(cores, arguments.threads)):
        for size in arguments.size:
            for phase in arguments.phase or ("decode", "prefill"):
                speeds = [bandwidth(threads, arguments.clock)]
                rows = measure(size, phase, threads, arguments)
                speeds.append(bandwidth(threads, arguments.clock))
                speed = statistics.fmean(speeds)
                show(size, phase, threads, rows, speed)
                print(f"{size:5} {phase:8} {threads:7} memory {speed / 1e9:35.1f} GB/s")
                results.append(
                    {
                        "size": size,
                        "phase": phase,
                        "threads": threads,
                        "bandwidth": speed,
                        "rows": rows,
                        "time": time.time(),
                    }
                )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
