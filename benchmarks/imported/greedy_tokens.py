"""Compares greedy tokens of a GGUF file with those of transformers and llama.cpp.

    python benchmarks/imported/greedy_tokens.py MODEL.gguf [--tokens 256]
        [--peers transformers llama.cpp]

Ten prompts, one thread; each runtime has its own process. Transformers computes the dequantized
weights in float32: it is given the prompt and the tokens of the others, and says at how many places
its own largest logit is another one, and by how much at most. Rows of llama.cpp are rounded to int8
where weights have few bits, so its logits differ from float32's by tenths.

Needs ``llama-cpp-python`` for llama.cpp, ``accelerate``, ``torch`` and ``transformers`` for these.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a small village,",
    "def fibonacci(n):",
    "The three primary colours are",
    "Write a haiku about the sea.",
    "In 1969, the first humans",
    "Water boils at",
    "List five fruits:",
    "Explain gravity to a child.",
    "The quick brown fox",
)


def by_narrowpass(model: Path, tokens: int) -> list[dict[str, Any]]:
    """Return the ids of each prompt, and the ids that a session chooses."""
    import narrowpass
    from narrowpass_generate import Tokenizer

    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder, "model.narrow")
        narrowpass.build(model, "fold", bundle)
        tokenizer = Tokenizer.load(bundle)
        rows = []
        with narrowpass.load(bundle, "xnn-cpu", threads=1) as program:
            session = program.session()
            if session.reason:
                print(f"caches are feeds: {session.reason}", file=sys.stderr)
            for prompt in PROMPTS:
                session.reset()
                ids = [int(token) for token in tokenizer.encode(prompt)]
                logits = session.run({"input_ids": np.array([ids])}, "prefill")["logits"]
                chosen: list[int] = []
                while len(chosen) < tokens:
                    chosen.append(int(logits[0, -1].argmax()))
                    logits = session.run({"input_ids": np.array([chosen[-1:]])}, "decode")["logits"]
                rows.append({"prompt": prompt, "ids": ids, "tokens": chosen})
    return rows


def by_llama_cpp(model: Path, tokens: int, prompts: list[list[int]]) -> list[dict[str, Any]]:
    """Return what llama.cpp chooses, from weights that are not repacked."""
    from llama_cpp import Llama, llama_cpp

    given = llama_cpp.llama_model_default_params

    def unpacked() -> Any:
        params = given()
        params.use_extra_bufts = False
        return params

    llama_cpp.llama_model_default_params = unpacked
    size = max(map(len, prompts)) + tokens
    program = Llama(str(model), n_ctx=size, n_threads=1, verbose=False, logits_all=True)
    rows = []
    for prompt, ids in zip(PROMPTS, prompts, strict=True):
        program.reset()
        program.eval(ids)
        chosen: list[int] = []
        while len(chosen) < tokens:
            chosen.append(int(np.argmax(program.scores[program.n_tokens - 1])))
            if len(chosen) < tokens:
                program.eval(chosen[-1:])
        rows.append({"prompt": prompt, "ids": ids, "tokens": chosen})
    return rows


def judged(model: Path, rows: list[dict[str, Any]]) -> list[tuple[int, int, float]]:
    """Return, by prompt, where transformers differs: places, the first one, the largest gap."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    found = AutoModelForCausalLM.from_pretrained(
        model.parent, gguf_file=model.name, dtype=torch.float32
    ).eval()
    judgements = []
    for row in rows:
        ids, chosen = row["ids"], np.array(row["tokens"])
        with torch.no_grad():
            logits = found(torch.tensor([ids + row["tokens"]])).logits[0].numpy()
        logits = logits[len(ids) - 1 : -1]
        gaps = logits.max(-1) - logits[np.arange(chosen.size), chosen]
        places = np.flatnonzero(logits.argmax(-1) != chosen)
        first = int(places[0]) if places.size else -1
        judgements.append((places.size, first, float(gaps.max())))
    return judgements


def _worker(name: str, options: argparse.Namespace, given: Any) -> Any:
    if name == "narrowpass":
        return by_narrowpass(options.model, options.tokens)
    if name == "llama.cpp":
        return by_llama_cpp(options.model, options.tokens, [row["ids"] for row in given])
    return {key: judged(options.model, rows) for key, rows in given.items()}


def _run(name: str, options: argparse.Namespace, given: Any) -> Any:
    command = [sys.executable, __file__, str(options.model), "--tokens", str(options.tokens)]
    with tempfile.NamedTemporaryFile("r", suffix=".json") as out:
        done = subprocess.run(
            [*command, "--worker", name, out.name],
            input=json.dumps(given),
            text=True,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        if done.returncode:
            raise SystemExit(f"{name} ended with code {done.returncode}")
        return json.load(out)


def main() -> None:
    """Compare, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path, metavar="MODEL.gguf")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--peers", nargs="*", default=["transformers", "llama.cpp"])
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        name, out = options.worker
        Path(out).write_text(json.dumps(_worker(name, options, json.load(sys.stdin))))
        return
    rows = {"narrowpass": _run("narrowpass", options, None)}
    if "llama.cpp" in options.peers:
        rows["llama.cpp"] = _run("llama.cpp", options, rows["narrowpass"])
    judgements = _run("transformers", options, rows) if "transformers" in options.peers else {}
    table = Table("prompt", *(f"{name}: not float32's token" for name in judgements))
    if "llama.cpp" in rows:
        table.add_column("llama.cpp: first other token than narrowpass")
    for number, prompt in enumerate(PROMPTS):
        cells = []
        for results in judgements.values():
            count, first, gap = results[number]
            cells.append(f"{count}, first at {first}, by {gap:.4f} at most" if count else "none")
        if "llama.cpp" in rows:
            ours, theirs = (rows[name][number]["tokens"] for name in ("narrowpass", "llama.cpp"))
            others = [i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b]
            cells.append(str(others[0]) if others else "none")
        table.add_row(prompt, *cells)
    Console().print(table)


if __name__ == "__main__":
    main()
