"""Times tokens of a growing context, each with a row more of KV cache, and prompts.

    python benchmarks/generation.py FOLDER [--size 135m] [--threads 1] [--depth 0 128 1024]
        [--prompt 128] [--tokens 64] [--rounds 5] [--pipeline TEXT] [--sampling greedy]
        [--cache float32|float16|bfloat16|int8] [--form session generate feeds ...]
        [--llama-bench BIN MODEL.gguf] [--json OUT.json]

Forms: a session of narrowpass, which appends to caches in place; ``narrowpass_generate.stream``,
which has a session and chooses tokens by ``--sampling``: ``greedy``, or ``top-p`` (temperature 0.8,
top_p 0.9); narrowpass with caches as feeds; onnxruntime with ``MatMulNBits`` of 4 bits, of
``accuracy_level`` 4 and 0, and caches as feeds; OpenVINO with NNCF's 4 bits, with caches as states
and as feeds; llama.cpp by its own ``llama-bench``, whose path and model are given: a GGUF file of
the same sizes, as ``decoder_gguf.py`` writes. Layers have 4 bits in blocks of 32, embedding and
head 8 bits; onnxruntime's embedding is float32. Each form has a process of its own for each round,
and forms take turns. A cell is the median over rounds of the median token or prompt in ms; of
llama.cpp's tokens the mean. `python` is the share of a token of the first two forms that is not
spent in kernels. `GB/s` is what a token of narrowpass reads of weights, 4.5 bits in the layers and
8 in the table; below is what as many threads read of a large array, before and after.

``--cache`` is the type of the session's caches. Depths beyond the decoder's 2,048 positions need
larger rotary tables, and so a decoder of their own; caches are random then, not those of a prompt.

The decoders are built in FOLDER/SIZE where they are missing (see ``decoder.py``); the forms of
onnxruntime and OpenVINO by ``decoders.py`` with ``--rounds 1``. With GCC 12 llama.cpp's code for
AMX must be compiled with ``-fno-tree-dse -fno-dse``: otherwise the compiler drops the shapes of
tiles, whose reading the intrinsic does not state, and the first prompt is an illegal instruction.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import decoder
from decoders import bandwidth, weights_of
from generators import by_llama_cpp, by_narrowpass, by_onnxruntime, by_openvino
from generators.common import Prompt, Token

LLAMA = "llama.cpp"
PIPELINE = "fold,int4{block=32,activations=dynamic}"

TOKENS: dict[str, Callable[[argparse.Namespace, int, list[float]], Token]] = {
    "session": by_narrowpass.by_session,
    "generate": by_narrowpass.by_generate,
    "feeds": by_narrowpass.by_feeds,
    **{
        form: lambda options, depth, _, form=form: by_onnxruntime.token_of(options, depth, form)
        for form in by_onnxruntime.SUFFIXES
    },
    **{
        form: lambda options, depth, _, form=form: by_openvino.token_of(options, depth, form)
        for form in ("openvino", "openvino-feeds")
    },
}
PROMPTS: dict[str, Callable[[argparse.Namespace], Prompt]] = {
    "session": by_narrowpass.prompt_of_session,
    "feeds": by_narrowpass.prompt_of_feeds,
    **{
        form: functools.partial(by_onnxruntime.prompt_of, form=form)
        for form in by_onnxruntime.SUFFIXES
    },
    "openvino": by_openvino.prompt_of,
}
FORMS = (*TOKENS, LLAMA)
RUNS = 7
"""Of a prompt, in each round."""


def time_tokens(form: str, depth: int, options: argparse.Namespace) -> dict[str, Any]:
    """Generate tokens; return the median second of one, and of its kernels."""
    kernels: list[float] = []
    token = TOKENS[form](options, depth, kernels)
    last, rows, seconds = 1, depth, []
    for _ in range(4):
        last, rows = token(last, rows), rows + 1
    kernels.clear()
    for _ in range(options.tokens):
        start = time.perf_counter()
        last, rows = token(last, rows), rows + 1
        seconds.append(time.perf_counter() - start)
    inside = statistics.median(kernels) if kernels else None
    return {"seconds": statistics.median(seconds), "kernels": inside}


def time_prompt(form: str, length: int, options: argparse.Namespace) -> dict[str, Any]:
    """Compute a prompt some times; return the median second."""
    prompt, feeds = PROMPTS[form](options), decoder.feeds(options.size, length, None, 0)
    prompt(feeds)
    return {"seconds": statistics.median(prompt(feeds) for _ in range(RUNS))}


def ask(form: str, phase: str, rows: int, options: argparse.Namespace) -> dict[str, Any]:
    """Time one form of ``token`` or ``prompt`` in a process of its own; return what it found."""
    if form == LLAMA:
        try:
            if phase == "token":
                return {"seconds": by_llama_cpp.token_seconds(options, rows)}
            return {"seconds": by_llama_cpp.prompt_seconds(options, rows, RUNS)}
        except by_llama_cpp.LlamaError as error:
            return {"failure": str(error)}
    if phase == "prompt" and form not in PROMPTS:
        return {"failure": "its prompt is that of another form"}
    command = [sys.executable, __file__, *sys.argv[1:], "--worker", form, phase, str(rows)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"failure": (done.stderr.strip().splitlines() or ["it failed"])[-1][:120]}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def bytes_of(size: str) -> float:
    """Return the bytes that a token reads of 4-bit weights and the table of int8, with scales."""
    shape = decoder.SIZES[size]
    table = shape.vocabulary * shape.width
    return (weights_of(size) - table) * 4.5 / 8 + table + 4 * shape.vocabulary


def measure(phase: str, rows: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Time all forms in turns, and print a row for each; return those that did not fail."""
    taken: dict[str, list[dict[str, Any]]] = {form: [] for form in options.form}
    for _ in range(options.rounds):
        for form, results in taken.items():
            if not any("failure" in result for result in results):
                results.append(ask(form, phase, rows, options))
    own, found = None, []
    for form, results in taken.items():
        head = f"{phase:6} {rows:6} {form:15}"
        failure = next((r["failure"] for r in results if "failure" in r), "")
        if failure:
            print(f"{head} {failure}", flush=True)
            continue
        seconds = statistics.median(r["seconds"] for r in results)
        own = seconds if form == "session" else own
        inside = [r["kernels"] / r["seconds"] for r in results if r.get("kernels")]
        share = f"{(1 - statistics.median(inside)) * 100:5.1f} %" if inside else "-"
        ratio = f"{seconds / own:13.2f}" if own else f"{'-':>13}"
        own_token = phase == "token" and form in ("session", "generate", "feeds")
        read = f"{bytes_of(options.size) / seconds / 1e9:6.1f}" if own_token else "     -"
        print(f"{head} {seconds * 1e3:8.2f} {ratio} {share:>7} {read}", flush=True)
        found.append({"phase": phase, "rows": rows, "form": form, "seconds": seconds})
    return found


def main() -> None:
    """Read the command line, measure in turns, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", choices=decoder.SIZES, default="135m")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--depth", type=int, nargs="*", default=[0, 128, 1024])
    parser.add_argument("--prompt", type=int, nargs="*", default=[])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pipeline", default=PIPELINE)
    parser.add_argument("--form", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--cache", metavar="DTYPE", help="type of the session's caches")
    parser.add_argument("--sampling", choices=by_narrowpass.SAMPLINGS, default="greedy")
    parser.add_argument("--llama-bench", nargs=2, metavar=("BIN", "MODEL.gguf"))
    parser.add_argument("--json", type=Path, metavar="OUT.json")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        form, phase, rows = options.worker
        timed = time_tokens if phase == "token" else time_prompt
        print(json.dumps(timed(form, int(rows), options)))
        return
    by_narrowpass.bundle_of(options)
    speeds = [bandwidth(options.threads, "wall")]
    head = f"{'phase':6} {'rows':>6} {'form':15} {'ms':>8} {'over session':>13} {'python':>7}"
    print(f"{head} {'GB/s':>6}")
    rows = [row for depth in options.depth for row in measure("token", depth, options)]
    rows += [row for length in options.prompt for row in measure("prompt", length, options)]
    speeds.append(bandwidth(options.threads, "wall"))
    print(f"memory: {speeds[0] / 1e9:.1f} and {speeds[1] / 1e9:.1f} GB/s")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
