"""Times tokens of several users of one decoder: sessions of one process that run at once.

    python benchmarks/several_users.py FOLDER [--size 135m] [--threads 1] [--users 1 2 4 8]
        [--depth 128] [--tokens 32] [--rounds 3] [--pipeline TEXT]
        [--form together turns processes llama.cpp] [--gguf MODEL.gguf] [--json OUT.json]

Forms: ``Program.run_sessions``; the sessions of one process one after the other; a process with one
session and one thread for each user; llama.cpp through ``llama_cpp`` of llama-cpp-python, with a
batch of one token for each sequence of one context, and a GGUF file of the same sizes. All forms
are bound to as many processors as ``--threads`` says, and take turns. Each user has a prompt of
``--depth`` tokens.

A cell is the median over rounds of the tokens of all users in a second. ``MB`` is the memory of all
processes after that, shared pages divided among those that share them (Pss). `python` is the share
of a step that is not spent in kernels.

The decoders are built in FOLDER/SIZE where they are missing (see ``generation.py``).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import decoder
from generation import PIPELINE
from generators.by_narrowpass import bundle_of, time_kernels
from generators.common import feeds_of
from runners.memory import proportional

FORMS = ("together", "turns", "processes", "llama.cpp")

Step = Callable[[], None]
"""Computes a token of each user."""


def both_phases(options: argparse.Namespace) -> argparse.Namespace:
    """Return what the bundle of both phases is built from, as ``generation.py`` names it."""
    return argparse.Namespace(**{**vars(options), "depth": [options.depth], "prompt": []})


def by_narrowpass(options: argparse.Namespace, users: int, *, together: bool) -> Step:
    """Return a step of sessions of one program."""
    import narrowpass

    threads = 1 if options.worker == "processes" else options.threads
    program = narrowpass.load(bundle_of(both_phases(options)), "xnn-cpu", threads=threads)
    sessions = [program.session() for _ in range(users)]
    for seed, session in enumerate(sessions):
        session.run(decoder.feeds(options.size, options.depth, None, seed), "prefill")
    last = [1] * users

    def step() -> None:
        pairs = list(zip(sessions, last, strict=True))
        feeds = [feeds_of(token, session.length) for session, token in pairs]
        if together:
            found = program.run_sessions(sessions, feeds, "decode")
        else:
            found = [s.run(f, "decode") for s, f in zip(sessions, feeds, strict=True)]
        last[:] = [int(outputs["logits"].argmax()) for outputs in found]

    return step


def by_llama(options: argparse.Namespace, users: int) -> Step:
    """Return a step of sequences of one context of llama.cpp."""
    import llama_cpp
    import numpy as np

    log = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(log, None)
    settings = llama_cpp.llama_model_default_params()
    settings.use_extra_bufts = False  # no repacked weights, as in the page
    model = llama_cpp.llama_model_load_from_file(str(options.gguf).encode(), settings)
    rows = options.depth + options.tokens + 16
    context = llama_cpp.llama_context_default_params()
    context.n_ctx, context.n_seq_max = users * rows, users
    context.n_batch = context.n_ubatch = max(options.depth, users)
    context.n_threads = context.n_threads_batch = options.threads
    found = llama_cpp.llama_init_from_model(model, context)
    if not model or not found:
        raise SystemExit(f"llama.cpp cannot load {options.gguf}")
    vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    batch = llama_cpp.llama_batch_init(max(options.depth, users), 0, 1)

    def run(tokens: Sequence[tuple[int, int, int, bool]]) -> None:
        """Run tokens: each with its position, its sequence, and whether its logits are wanted."""
        batch.n_tokens = len(tokens)
        for place, (token, position, sequence, wanted) in enumerate(tokens):
            batch.token[place], batch.pos[place] = token, position
            batch.n_seq_id[place], batch.seq_id[place][0] = 1, sequence
            batch.logits[place] = wanted
        if llama_cpp.llama_decode(found, batch):
            raise SystemExit("llama.cpp cannot run a batch")

    for sequence in range(users):
        ids = decoder.feeds(options.size, options.depth, None, sequence)["ids"][0].tolist()
        run([(token, i, sequence, i == len(ids) - 1) for i, token in enumerate(ids)])
    last, length = [1] * users, [options.depth]

    def step(log: Any = log) -> None:  # which is called as long as there are steps
        run([(token, length[0], sequence, True) for sequence, token in enumerate(last)])
        length[0] += 1
        for sequence in range(users):
            logits = llama_cpp.llama_get_logits_ith(found, sequence)
            last[sequence] = int(np.ctypeslib.as_array(logits, (vocabulary,)).argmax())

    return step


def work(options: argparse.Namespace) -> None:
    """Print a line when prompts have run; then, asked by lines, run steps, and print the memory."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    form, users = options.worker, options.users[0]
    if form == "llama.cpp":
        step = by_llama(options, users)
    else:
        step = by_narrowpass(options, users, together=form == "together")
    kernels: list[float] = []
    if form != "llama.cpp":
        time_kernels(kernels)
    for _ in range(4):
        step()
    print("ready", flush=True)
    sys.stdin.readline()
    kernels.clear()
    start = time.perf_counter()
    for _ in range(options.tokens):
        step()
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "kernels": sum(kernels)}), flush=True)
    sys.stdin.readline()
    print(proportional(), flush=True)
    sys.stdin.readline()


def ask(form: str, users: int, options: argparse.Namespace) -> dict[str, float]:
    """Run one form in processes of its own."""
    count, each = (users, 1) if form == "processes" else (1, users)
    command = [sys.executable, __file__, *sys.argv[1:], "--worker", form, "--users", str(each)]
    pipe = subprocess.PIPE
    workers = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(count)]
    answers = _answers(workers)  # that they are ready
    for question in ("seconds", "memory"):
        for worker in workers:
            if worker.stdin is not None:
                worker.stdin.write(f"{question}\n")
                worker.stdin.flush()
        answers += _answers(workers)
    for worker in workers:
        worker.communicate("\n")
    times = [json.loads(answer) for answer in answers[count : 2 * count]]
    seconds = max(each["seconds"] for each in times)
    return {
        "tokens": users * options.tokens / seconds,
        "python": 1 - times[0]["kernels"] / times[0]["seconds"],
        "megabytes": sum(map(int, answers[2 * count :])) / 2**20,
    }


def _answers(workers: Sequence[subprocess.Popen[str]]) -> list[str]:
    found = []
    for worker in workers:
        line = "" if worker.stdout is None else worker.stdout.readline().strip()
        if not line:
            raise SystemExit("a worker failed")
        found.append(line)
    return found


def main() -> None:
    """Read the command line, measure in turns, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", choices=decoder.SIZES, default="135m")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--users", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--depth", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pipeline", default=PIPELINE)
    parser.add_argument("--form", nargs="+", choices=FORMS, default=list(FORMS[:3]))
    parser.add_argument("--gguf", type=Path, metavar="MODEL.gguf")
    parser.add_argument("--json", type=Path, metavar="OUT.json")
    parser.add_argument("--worker", choices=FORMS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if "llama.cpp" in options.form and options.gguf is None:
        parser.error("llama.cpp needs --gguf MODEL.gguf")
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    if options.worker:
        work(options)
        return
    bundle_of(both_phases(options))
    rows = []
    print(f"{'users':>5} {'form':12} {'tokens/s':>9} {'MB':>7} {'python':>7}")
    for users in options.users:
        found: dict[str, list[dict[str, float]]] = {form: [] for form in options.form}
        for _ in range(options.rounds):
            for form in options.form:
                found[form].append(ask(form, users, options))
        for form, results in found.items():
            cell = {key: statistics.median(each[key] for each in results) for key in results[0]}
            share = "-" if form == "llama.cpp" else f"{cell['python'] * 100:5.1f} %"
            line = f"{users:5} {form:12} {cell['tokens']:9.1f} {cell['megabytes']:7.0f} {share:>7}"
            print(line, flush=True)
            rows.append({"users": users, "form": form, **cell})
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
