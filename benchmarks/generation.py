"""Times tokens of a growing context: each run has a row more of KV cache than the one before.

    python benchmarks/generation.py FOLDER [--size 135m] [--threads 1] [--depth 0 128 1024]
        [--tokens 64] [--rounds 5] [--pipeline TEXT] [--sampling greedy]
        [--cache float32|float16|bfloat16|int8]
        [--form session generate feeds onnxruntime llama.cpp]
        [--llama-bench BIN MODEL.gguf] [--json OUT.json]

Forms: a session of narrowpass, which appends to caches in place; ``narrowpass_generate.stream``,
which has a session and chooses tokens by ``--sampling``: ``greedy``, or ``top-p`` (temperature 0.8,
top_p 0.9); narrowpass with caches as feeds; onnxruntime with ``MatMulNBits`` of 4 bits
(``accuracy_level`` 4) and caches as feeds; llama.cpp by its own ``llama-bench``, whose path and
model are given: a GGUF file of the same sizes. Each form has a process of its own for each round,
and forms take turns. A cell is the median over rounds of the median token in ms. `python` is the
share of a token of the first two forms that is not spent in kernels.

``--cache`` is the type of the session's caches. Depths beyond the decoder's 2,048 positions need
larger rotary tables, and so a decoder of their own; caches are random then, not those of a prompt.

The decoders are built in FOLDER/SIZE where they are missing (see ``decoder.py``).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import decoder
import numpy as np

FORMS = ("session", "generate", "feeds", "onnxruntime", "llama.cpp")
PIPELINE = "fold,int4{block=32,activations=dynamic}"
SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "top-p": {"temperature": 0.8, "top_p": 0.9},
}

Token = Callable[[int, int], int]
"""Computes the token after another one, from it and the rows before."""


def folder_of(options: argparse.Namespace) -> tuple[Path, int | None]:
    """Return the folder of the decoder, and its positions where it needs more than usual."""
    needed = max(options.depth) + options.tokens + 4
    if needed <= decoder.SIZES[options.size].positions:
        return options.folder / options.size, None
    positions = 1 << (needed - 1).bit_length()
    return options.folder / f"{options.size}-{positions}", positions


def bundle_of(options: argparse.Namespace) -> Path:
    """Return the bundle of both phases, built where it is missing."""
    import narrowpass

    (folder, positions), pipeline = folder_of(options), options.pipeline
    name = "".join(c if c.isalnum() else "-" for c in pipeline)
    path = folder / f"both-{name}.narrow"
    if not path.exists():
        prefill, decode = decoder.build(folder, options.size, tied=True, positions=positions)
        methods = {"prefill": str(prefill), "decode": str(decode)}
        narrowpass.build(methods, pipeline, out=path, target="xnn-cpu")
    return path


def feeds_of(token: int, rows: int) -> dict[str, np.ndarray[Any, Any]]:
    """Return the feeds of one token, without caches."""
    return {
        "ids": np.array([[token]]),
        "positions": np.array([rows]),
        "mask": np.zeros((1, rows + 1), np.float32),
    }


def by_session(options: argparse.Namespace, depth: int, kernels: list[float]) -> Token:
    """Return the next token of a session; the seconds of kernels are appended to `kernels`."""
    import narrowpass

    bundle = bundle_of(options)
    program = narrowpass.load(bundle, "xnn-cpu", threads=options.threads)
    session = program.session(options.cache)
    if depth > decoder.SIZES[options.size].positions:
        session.restore(random_caches(options.size, depth))
    elif depth:
        session.run(decoder.feeds(options.size, depth, None, 0), "prefill")
    time_kernels(kernels)

    def token(last: int, rows: int) -> int:
        outputs = session.run(feeds_of(last, rows), "decode")
        return int(outputs["logits"].argmax())

    return token


def time_kernels(kernels: list[float]) -> None:
    """Append the seconds of each run of kernels to a list."""
    from narrowpass_xnn_cpu.native.runtime import tape

    run = tape.Tape.run

    def timed(self: Any, *args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        result = run(self, *args, **kwargs)
        kernels.append(time.perf_counter() - start)
        return result

    # The tape has no hook: its method is replaced in this process, which does nothing else.
    tape.Tape.run = timed  # type: ignore[method-assign]


def by_generate(options: argparse.Namespace, depth: int, kernels: list[float]) -> Token:
    """Return the next token of narrowpass-generate; the last token and the rows are its own."""
    import narrowpass
    from narrowpass_generate import Sampling, stream

    bundle = bundle_of(options)
    program = narrowpass.load(bundle, "xnn-cpu", threads=options.threads)
    prompt = decoder.feeds(options.size, max(depth, 1), None, 0)["ids"]
    sampling = Sampling(**SAMPLINGS[options.sampling], seed=0)
    pieces = stream(program, prompt, sampling, tokens=decoder.SIZES[options.size].positions)
    next(pieces)  # the prompt's
    time_kernels(kernels)
    return lambda last, rows: next(pieces).token


def by_feeds(options: argparse.Namespace, depth: int, _: list[float]) -> Token:
    """Return the next token of a program whose caches are feeds."""
    import narrowpass

    bundle = bundle_of(options)
    program = narrowpass.load(bundle, "xnn-cpu", threads=options.threads)
    caches = _empty(program.inputs("decode"))
    if depth > decoder.SIZES[options.size].positions:
        caches = random_caches(options.size, depth)
    elif depth:
        given = program.run(decoder.feeds(options.size, depth, None, 0), "prefill")
        caches = _next(given)

    def token(last: int, rows: int) -> int:
        outputs = program.run({**feeds_of(last, rows), **caches}, "decode")
        caches.update(_next(outputs))
        return int(outputs["logits"].argmax())

    return token


def random_caches(size: str, depth: int) -> dict[str, np.ndarray[Any, Any]]:
    """Return caches of so many rows, by the names of their inputs."""
    found = decoder.feeds(size, 1, depth)
    return {name: value for name, value in found.items() if name.startswith("past.")}


def _empty(inputs: Any) -> dict[str, np.ndarray[Any, Any]]:
    shapes = {spec.name: spec.shape for spec in inputs if spec.name.startswith("past.")}
    return {name: np.zeros((1, s[1], 0, s[3]), np.float32) for name, s in shapes.items()}


def _next(outputs: dict[str, Any]) -> dict[str, Any]:
    return {f"past.{n.removesuffix('.out')}": v for n, v in outputs.items() if n != "logits"}


def by_onnxruntime(options: argparse.Namespace, depth: int, _: list[float]) -> Token:
    """Return the next token of onnxruntime."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = options.threads
    folder, _ = folder_of(options)
    sessions = [
        onnxruntime.InferenceSession(str(folder / f"{phase}-4bits-dynamic.onnx"), settings)
        for phase in ("prefill", "decode")
    ]
    names = [value.name for value in sessions[1].get_outputs()]
    pasts = [value for value in sessions[1].get_inputs() if value.name.startswith("past.")]
    caches = {v.name: np.zeros((1, v.shape[1], 0, v.shape[3]), np.float32) for v in pasts}
    if depth > decoder.SIZES[options.size].positions:
        caches = random_caches(options.size, depth)
    elif depth:
        given = sessions[0].run(names, decoder.feeds(options.size, depth, None, 0))
        caches = _next(dict(zip(names, given, strict=True)))

    def token(last: int, rows: int) -> int:
        given = sessions[1].run(names, {**feeds_of(last, rows), **caches})
        outputs = dict(zip(names, given, strict=True))
        caches.update(_next(outputs))
        return int(outputs["logits"].argmax())

    return token


WORKERS = {
    "session": by_session,
    "generate": by_generate,
    "feeds": by_feeds,
    "onnxruntime": by_onnxruntime,
}


def work(form: str, depth: int, options: argparse.Namespace) -> None:
    """Generate tokens, and print the median second of one, and of its kernels."""
    kernels: list[float] = []
    token = WORKERS[form](options, depth, kernels)
    last, rows, seconds = 1, depth, []
    for _ in range(4):
        last, rows = token(last, rows), rows + 1
    kernels.clear()
    for _ in range(options.tokens):
        start = time.perf_counter()
        last, rows = token(last, rows), rows + 1
        seconds.append(time.perf_counter() - start)
    inside = statistics.median(kernels) if kernels else None
    print(json.dumps({"token": statistics.median(seconds), "kernels": inside}))


def ask(form: str, depth: int, options: argparse.Namespace) -> dict[str, Any]:
    """Run one form in a process of its own; return what `work` prints."""
    if form == "llama.cpp":
        if options.llama_bench is None:
            return {"failure": "pass --llama-bench BIN MODEL.gguf"}
        binary, model = options.llama_bench
        command = [binary, "-m", model, "-t", str(options.threads), "-p", "0", "-o", "json"]
        command += ["-n", str(options.tokens), "-r", "1", "-d", str(depth)]
    else:
        command = [sys.executable, __file__, *sys.argv[1:], "--worker", form, str(depth)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"failure": (done.stderr.strip().splitlines() or ["it failed"])[-1][:120]}
    if form == "llama.cpp":
        return {"token": json.loads(done.stdout)[0]["avg_ns"] / 1e9 / options.tokens}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main() -> None:
    """Read the command line, measure in turns, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", choices=decoder.SIZES, default="135m")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--depth", type=int, nargs="+", default=[0, 128, 1024])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pipeline", default=PIPELINE)
    parser.add_argument("--form", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--cache", metavar="DTYPE", help="type of the session's caches")
    parser.add_argument("--sampling", choices=SAMPLINGS, default="greedy")
    parser.add_argument("--llama-bench", nargs=2, metavar=("BIN", "MODEL.gguf"))
    parser.add_argument("--json", type=Path, metavar="OUT.json")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker[0], int(options.worker[1]), options)
        return
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    bundle_of(options)
    rows = []
    print(f"{'depth':>6} {'form':12} {'ms':>8} {'over session':>13} {'python':>7}")
    for depth in options.depth:
        taken: dict[str, list[dict[str, Any]]] = {form: [] for form in options.form}
        for _ in range(options.rounds):
            for form in options.form:
                taken[form].append(ask(form, depth, options))
        own = None
        for form, results in taken.items():
            failure = next((r["failure"] for r in results if "failure" in r), "")
            if failure:
                print(f"{depth:6} {form:12} {failure}")
                continue
            token = statistics.median(r["token"] for r in results)
            own = token if form == "session" else own
            inside = [r["kernels"] / r["token"] for r in results if r.get("kernels")]
            share = f"{(1 - statistics.median(inside)) * 100:5.1f} %" if inside else "-"
            ratio = f"{token / own:13.2f}" if own else f"{'-':>13}"
            print(f"{depth:6} {form:12} {token * 1e3:8.2f} {ratio} {share:>7}", flush=True)
            rows.append({"depth": depth, "form": form, "seconds": token})
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
