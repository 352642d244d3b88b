"""Whether models have the same bits across threads, batch, padding and instruction sets, and cost.

Each model is built in several types. ``narrowpass compare --across`` says which bits differ, and
``narrowpass bench`` times it with ``deterministic=true`` and without, in turns, each in a process
of its own; the least latency of all rounds counts::

    python benchmarks/quantization/same_bits.py MODEL.onnx ... [--forms float32,int8] [--rounds 5]
        [--calibration FOLDER]

With samples for `calibration` there is one more type, int8 with activations of fixed scales.
Prints a table in Markdown. An axis that a model does not have is "-". Instruction sets are
compared with the highest that the processor has: "same from avx2 on", or the largest difference of
those that differ, relative to the largest result.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

FORMS = {
    "float32": "fold",
    "bfloat16": "fold,fp16{dtype=bfloat16}",
    "int8": "fold,int8-sym{mode=dynamic}",
    "int8 weights": "fold,int8-sym{mode=weight-only}",
    "4 bits": "fold,int4",
    "4 bits by int8": "fold,int4{activations=dynamic}",
}
"""Pipelines by name."""

STATIC, FIXED = "static int8", "fold,int8-sym"
"""The name and the pipeline of the one that needs samples."""

EXACT = "xnn-cpu{deterministic=true}"
AXES = ("threads", "batch", "padding", "isa")


def command(*arguments: str) -> dict[str, Any]:
    """Return the document that a command prints, with 1 as the exit code where bits differ."""
    done = subprocess.run(
        [sys.executable, "-m", "narrowpass", *arguments, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 1) or not done.stdout:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def cells(document: dict[str, Any]) -> list[str]:
    """Say what differs along each axis."""
    found = []
    for axis in AXES:
        cases = [case for case in document["cases"] if case["axis"] == axis]
        apart = {case["case"]: case["relative"] for case in cases if not case["same"]}
        if not cases:
            found.append("-")
        elif not apart:
            found.append("same")
        else:
            found.append(", ".join(f"{name}: {size:.1g}" for name, size in apart.items()))
    return found


def latency(bundle: Path, backend: str, shapes: list[str]) -> float:
    """Return the least latency of a process, in seconds."""
    arguments = [f"--shape={shape}" for shape in shapes]
    document = command(
        *("bench", str(bundle), "--backend", backend, "--threads", "1", "--runs", "50"), *arguments
    )
    least: float = document["latency"]["min"]
    return least


def main() -> None:
    """Compare each model in each form."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--forms", help=f"by default all of {', '.join(FORMS)}")
    parser.add_argument("--calibration", help="samples, as narrowpass build has them")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shape", action="append", default=[], help="as narrowpass bench has it")
    given = parser.parse_args()
    pipelines = {**FORMS, **({STATIC: FIXED} if given.calibration else {})}
    forms = given.forms.split(",") if given.forms else list(pipelines)
    for form in forms:
        if form == STATIC and not given.calibration:
            parser.error(f"{STATIC} needs samples: --calibration FOLDER")
        if form not in pipelines:
            parser.error(f"unknown type {form!r}; there are {', '.join(pipelines)}")
    print("| model | type | " + " | ".join(AXES) + " | time, deterministic |")
    print("|---|---|" + "---|" * (len(AXES) + 1))
    with tempfile.TemporaryDirectory() as folder:
        for model in given.models:
            for form in forms:
                bundle = Path(folder) / "m.narrow"
                build = ["build", str(model), "-o", str(bundle), "-p", pipelines[form]]
                if form == STATIC:
                    build += ["--calibration", given.calibration]
                command(*build)
                shapes = [f"--shape={shape}" for shape in given.shape]
                document = command(
                    *("compare", str(bundle), "--backend", EXACT, "--across", ",".join(AXES)),
                    *shapes,
                )
                rounds = [
                    (latency(bundle, EXACT, given.shape), latency(bundle, "xnn-cpu", given.shape))
                    for _ in range(given.rounds)
                ]
                exact, default = (min(times) for times in zip(*rounds, strict=True))
                row = [model.stem, form, *cells(document), f"{exact / default:.2f}"]
                print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
