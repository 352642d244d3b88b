"""Times a trained language model against the runtimes that people use for them, in turns.

    python benchmarks/imported/language_models.py MODEL.narrow [--threads 1 2] [--prompt 128 2048]
        [--depth 0 2000 8000] [--tokens 32] [--rounds 3] [--json OUT.json]
        [--llama-bench BIN MODEL.gguf] [--llama-flags="-fa 0"]
        [--onnxruntime-genai PYTHON FOLDER]
        [--openvino-genai PYTHON MODEL.gguf|FOLDER] [--vocabulary 49152]

MODEL.narrow is what ``narrowpass build model.gguf -o model.narrow`` writes. FOLDER is what the
peer's model builder writes of the same weights at the same bits. PYTHON has the peer's package.

A prompt is timed from its ids to the first token, in tokens a second; a token is the median of
those after a prompt of ``--depth`` random ids, in ms, greedy. Each runtime has a process of its own
for each cell and round, and runtimes take turns; a cell is the median over rounds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

OURS = "narrowpass"


def ids_of(count: int, vocabulary: int) -> list[int]:
    """Return random ids of a prompt; the lowest may have a special meaning."""
    found: list[int] = np.random.default_rng(count).integers(99, vocabulary, count).tolist()
    return found


def by_narrowpass(model: str, ids: list[int], tokens: int, threads: int) -> list[float]:
    """Return the times at which tokens are there, from the start of the prompt."""
    import narrowpass
    from narrowpass_generate import Sampling, stream

    program = narrowpass.load(model, "xnn-cpu", threads=threads)
    next(stream(program, ids, Sampling(), tokens=1))  # memory and threads are there
    pieces = stream(program, ids, Sampling(), tokens=tokens)
    return _times(lambda: next(pieces), tokens)


def by_onnxruntime_genai(model: str, ids: list[int], tokens: int, threads: int) -> list[float]:
    """Return the times at which tokens are there, from the start of the prompt."""
    import onnxruntime_genai as genai

    config = genai.Config(model)
    session = {"intra_op_num_threads": threads}
    config.overlay(json.dumps({"model": {"decoder": {"session_options": session}}}))
    loaded = genai.Model(config)

    def run(count: int) -> list[float]:
        params = genai.GeneratorParams(loaded)
        params.set_search_options(
            max_length=len(ids) + count, min_length=len(ids) + count, do_sample=False
        )
        generator = genai.Generator(loaded, params)
        fed = False

        def token() -> None:
            nonlocal fed
            if not fed:
                generator.append_tokens(np.array(ids, np.int32))
            fed = True
            generator.generate_next_token()

        return _times(token, count)

    run(1)
    return run(tokens)


def by_openvino_genai(model: str, ids: list[int], tokens: int, threads: int) -> list[float]:
    """Return the times at which tokens are there, from the start of the prompt."""
    import openvino
    import openvino_genai as genai

    pipe = genai.LLMPipeline(model, "CPU", INFERENCE_NUM_THREADS=threads)

    def run(ids: list[int], count: int) -> list[float]:
        fed = genai.TokenizedInputs(
            openvino.Tensor(np.array([ids])), openvino.Tensor(np.ones((1, len(ids)), np.int64))
        )
        config = genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = count, True, False
        metrics = pipe.generate(fed, config).perf_metrics
        first = metrics.get_ttft().mean / 1e3
        raw = metrics.raw_metrics.m_new_token_times
        return [first + (stamp - raw[0]) / 1e3 for stamp in raw]

    run(ids[::-1], 1)  # another prompt: caches of prefixes are shared
    return run(ids, tokens)


WORKERS = {
    OURS: by_narrowpass,
    "onnxruntime-genai": by_onnxruntime_genai,
    "openvino-genai": by_openvino_genai,
}


def _times(token: Any, count: int) -> list[float]:
    start, found = time.perf_counter(), []
    for _ in range(count):
        token()
        found.append(time.perf_counter() - start)
    return found


def work(form: str, model: str, length: int, options: argparse.Namespace) -> None:
    """Run a prompt and tokens after it; print the seconds of the prompt and of a token."""
    ids = ids_of(length, options.vocabulary)
    (threads,) = options.threads
    taken = WORKERS[form](model, ids, options.tokens, threads)
    steps = [after - before for before, after in itertools.pairwise(taken)]
    print(json.dumps({"prompt": taken[0], "token": statistics.median(steps) if steps else None}))


def ask(form: str, length: int, threads: int, options: argparse.Namespace) -> dict[str, Any]:
    """Run one form in a process of its own; return what `work` prints."""
    if form == "llama.cpp":
        return by_llama_bench(length, threads, options)
    python, model = options.peers[form]
    own = ["--worker", form, str(length), "--threads", str(threads)]
    own += ["--tokens", str(options.tokens), "--vocabulary", str(options.vocabulary)]
    command = [python, __file__, model, *own]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"failure": (done.stderr.strip().splitlines() or [f"{done.returncode}"])[-1][:120]}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def by_llama_bench(length: int, threads: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return the seconds of a prompt, and of a token after it."""
    binary, model = options.llama_bench
    flags = options.llama_flags.split()
    common = [binary, "-m", model, "-t", str(threads), "-r", "1", "-o", "json", *flags]
    found: dict[str, Any] = {}
    for kind, more in (
        ("prompt", ["-p", str(length), "-n", "0"]),
        ("token", ["-p", "0", "-n", str(options.tokens), "-d", str(length)]),
    ):
        done = subprocess.run([*common, *more], capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [f"{done.returncode}"])[-1]
            return {"failure": last[:120]}
        seconds = json.loads(done.stdout)[0]["avg_ns"] / 1e9
        found[kind] = seconds / (options.tokens if kind == "token" else 1)
    return found


def main() -> None:
    """Read the command line, measure in turns, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--prompt", type=int, nargs="*", default=[128, 2048])
    parser.add_argument("--depth", type=int, nargs="*", default=[1, 2000, 8000])
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vocabulary", type=int, default=49152)
    parser.add_argument("--llama-bench", nargs=2, metavar=("BIN", "MODEL.gguf"))
    parser.add_argument("--llama-flags", default="", help="more arguments of llama-bench")
    parser.add_argument("--onnxruntime-genai", nargs=2, metavar=("PYTHON", "FOLDER"))
    parser.add_argument("--openvino-genai", nargs=2, metavar=("PYTHON", "MODEL"))
    parser.add_argument("--json", type=Path, metavar="OUT.json")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker[0], options.model, int(options.worker[1]), options)
        return
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    options.peers = {OURS: (sys.executable, options.model)}
    for form in ("onnxruntime-genai", "openvino-genai"):
        if found := getattr(options, form.replace("-", "_")):
            options.peers[form] = found
    forms = [*options.peers, *(["llama.cpp"] if options.llama_bench else [])]
    rows: list[dict[str, Any]] = []
    print(" threads   rows form                prompt/s  ratio       ms  ratio")
    for threads in options.threads:
        for length in sorted({*options.prompt, *options.depth}):
            taken: dict[str, list[dict[str, Any]]] = {form: [] for form in forms}
            for _ in range(options.rounds):
                for form in forms:
                    if not any("failure" in found for found in taken[form]):
                        taken[form].append(ask(form, length, threads, options))
            rows += report(taken, threads, length)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def report(
    taken: dict[str, list[dict[str, Any]]], threads: int, length: int
) -> list[dict[str, Any]]:
    """Print the medians of each form, and their ratios to ours; return them."""
    rows: list[dict[str, Any]] = []
    for form, results in taken.items():
        failure = next((found["failure"] for found in results if "failure" in found), "")
        if failure:
            print(f"{threads:7} {length:6} {form:18} {failure}", flush=True)
            continue
        prompt, token = (
            statistics.median(found[kind] for found in results) for kind in ("prompt", "token")
        )
        rows.append({"threads": threads, "rows": length, "form": form})
        rows[-1] |= {"prompt": prompt, "token": token}
        own = rows[0]
        print(
            f"{threads:7} {length:6} {form:18} {length / prompt:9.0f} "
            f"{prompt / own['prompt']:6.2f} {token * 1e3:8.2f} {token / own['token']:6.2f}",
            flush=True,
        )
    return rows


if __name__ == "__main__":
    main()
