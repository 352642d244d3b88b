"""Times a cold process: from its start to the first token behind a prompt, beside llama.cpp.

    python benchmarks/imported/first_token.py MODEL.gguf [--prompt 16] [--threads 1] [--rounds 9]
        [--pipeline TEXT] [--form narrowpass llama.cpp] [--profile]

Each run is a new process that imports the library, loads the model, runs the prompt and takes the
largest logit; forms take turns, and shown is the median of seconds between the start of the process
and its token, and of the processor's time in it. narrowpass loads a bundle that is built from the
file beforehand, with its weights in the cache; llama-cpp-python maps the file. Files are in the
page cache. ``--profile`` shows where the time of narrowpass is spent, in steps of one process.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PIPELINE = "fold,int4{activations=dynamic}"
FORMS = ("narrowpass", "llama.cpp")


def narrowpass_token(bundle: str, ids: list[int], threads: int) -> tuple[int, dict[str, float]]:
    """Return the first token, and the seconds of each step."""
    marks = [("", time.perf_counter())]
    import numpy as np

    import narrowpass

    marks.append(("import", time.perf_counter()))
    program = narrowpass.load(bundle, "xnn-cpu", threads=threads)
    marks.append(("load", time.perf_counter()))
    session = program.session()
    marks.append(("session", time.perf_counter()))
    logits = session.run({"input_ids": np.array([ids])}, "prefill")["logits"]
    marks.append(("prompt", time.perf_counter()))
    pairs = itertools.pairwise(marks)
    return int(logits[0, -1].argmax()), {name: end - start for (_, start), (name, end) in pairs}


def llama_token(model: str, ids: list[int], threads: int) -> tuple[int, dict[str, float]]:
    """Return the first token. Weights are not repacked, which takes a while."""
    import llama_cpp
    import numpy as np

    given = llama_cpp.llama_cpp.llama_model_default_params

    def unpacked() -> Any:
        params = given()
        params.use_extra_bufts = False
        return params

    llama_cpp.llama_cpp.llama_model_default_params = unpacked
    llm = llama_cpp.Llama(
        model, n_ctx=512, n_threads=threads, n_threads_batch=threads, verbose=False
    )
    llm.eval(ids)
    logits = llama_cpp.llama_get_logits_ith(llm.ctx, -1)
    return int(np.ctypeslib.as_array(logits, (llm.n_vocab(),)).argmax()), {}


def main() -> None:
    """Read the command line, measure in turns, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("model", metavar="MODEL.gguf")
    parser.add_argument("--prompt", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--pipeline", default=PIPELINE)
    parser.add_argument("--form", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--worker", choices=FORMS, help=argparse.SUPPRESS)
    o = parser.parse_args()
    ids = [1, *range(100, 100 + o.prompt - 1)]
    if o.worker:
        compute = narrowpass_token if o.worker == "narrowpass" else llama_token
        token, steps = compute(o.model, ids, o.threads)
        print(json.dumps({"token": token, "cpu": time.process_time(), "steps": steps}), flush=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder) / "model.narrow"
        command = [sys.executable, "-m", "narrowpass", "build", o.model, "-o", str(bundle)]
        subprocess.run([*command, "-p", o.pipeline, "--target", "xnn-cpu"], check=True)
        models = {"narrowpass": str(bundle), "llama.cpp": o.model}
        taken: dict[str, list[tuple[float, float]]] = {form: [] for form in o.form}
        stages: dict[str, list[float]] = {}
        tokens = {}
        for number in range(o.rounds + 1):
            for form in o.form:
                command = [sys.executable, __file__, models[form], "--worker", form]
                command += ["--prompt", str(o.prompt), "--threads", str(o.threads)]
                start = time.perf_counter()
                with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                    line = process.stdout.readline() if process.stdout else ""
                    seconds = time.perf_counter() - start
                if not line:
                    raise SystemExit(f"{form} failed; its error is above")
                found = json.loads(line)
                tokens[form] = found["token"]
                if number:  # the first round fills caches
                    taken[form].append((seconds, found["cpu"]))
                    for name, each in found["steps"].items():
                        stages.setdefault(name, []).append(each)
    print(f"{'form':12} {'s':>7} {'processor, s':>13} {'token':>7}")
    for form, each in taken.items():
        wall, cpu = (statistics.median(values) for values in zip(*each, strict=True))
        print(f"{form:12} {wall:7.3f} {cpu:13.3f} {tokens[form]:7}")
    if o.profile:
        for name, values in stages.items():
            print(f"  {name:10} {statistics.median(values):7.3f}")


if __name__ == "__main__":
    main()
