"""Compares int8 models in narrowpass with int8 in other runtimes: latency, accuracy, bytes.

    python benchmarks/int8_runtimes.py FOLDER [--threads 1] [--model resnet50 ...] [--rounds 15]
        [--variant "narrowpass static" ...] [--sequence 128] [--clock wall|cpu] [--json OUT.json]

FOLDER is one that ``int8_models.py`` has filled. Each form of a model has a process of its own, and
the processes are asked in turn: many short rounds, so that what else the machine does falls on all
of them alike. Shown are the median over rounds of each round's median, half the distance between
the quartiles of the rounds in percent, how many times the latencies of narrowpass's float32, static
and dynamic forms it is (above 1, narrowpass is faster), the cosine of the outputs and their signal
to noise in dB against those of the float32 model on onnxruntime, the worst over some samples that
were not calibrated with, and the bytes of the weights file over those of narrowpass in float32.
``--threads all`` takes every core. ``--clock cpu`` takes the time that a process computes, which is
what to use with one thread where other programs run beside. Needs the dependency group ``int8``;
what is not there, or fails, has a row that says so.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import zoo
from quantizers import MODELS, VARIANTS, Source, Variant, bytes_of_weights, prepare
from runners import CLOCKS, Entrant, Timing, cores, in_turns, installed

from narrowpass import metrics

SECONDS = 0.15
SEED = 1_000_000
SAMPLES = 4
REFERENCE = "onnxruntime fp32"
OURS = ("narrowpass fp32", "narrowpass static", "narrowpass dynamic")
Row = dict[str, Any]


def absent(variant: Variant, source: Source, runtimes: Sequence[str]) -> str:
    """Tell why a form of a model cannot take part; nothing if it can."""
    if variant.runtime not in runtimes:
        return f"{variant.runtime} is not installed"
    if not variant.path(source).exists():
        return f"no {variant.path(source).name}: int8_models.py says why"
    return ""


def judge(timing: Timing, right: Timing | None) -> Row:
    """Give the figures of one form; of accuracy those of the worst output and sample."""
    if timing.failure:
        return {"failure": timing.failure}
    row: Row = {
        "latency": timing.latency,
        "spread": timing.spread,
        "load": timing.load,
        "memory": timing.memory,
        "rounds": timing.rounds,
    }
    if right is None or right.failure:
        return row
    differences = [
        metrics.difference(ours, theirs)
        for mine, wanted in zip(timing.outputs, right.outputs, strict=True)
        for ours, theirs in zip(mine, wanted, strict=True)
    ]
    row["cosine"] = min(found.cosine for found in differences)
    row["sqnr"] = min(found.sqnr for found in differences)
    return row


def measure(
    source: Source, variants: Sequence[Variant], threads: int, arguments: argparse.Namespace
) -> Row:
    """Time all forms of one model, in turns; give a row for each."""
    runtimes = installed()
    reasons = {variant.name: absent(variant, source, runtimes) for variant in variants}
    there = [variant for variant in variants if not reasons[variant.name]]
    entrants = [Entrant(v.name, v.runtime, str(v.path(source))) for v in there]
    feeds = [zoo.feeds(source.name, SEED + n, 1, source.sequence) for n in range(SAMPLES)]
    timings = in_turns(entrants, feeds, threads, arguments.rounds, SECONDS, arguments.clock)
    right = timings.get(REFERENCE)
    rows: Row = {name: {"failure": reason} for name, reason in reasons.items()}
    rows |= {name: judge(timing, right) for name, timing in timings.items()}
    for variant in there:
        rows[variant.name]["bytes"] = bytes_of_weights(variant.path(source))
    return rows


def ratio(row: Row, base: Row | None, key: str) -> str:
    """Give one figure of a row over the same of another, where both have it."""
    if base is None or key not in row or key not in base:
        return f"{'-':>8}"
    return f"{row[key] / base[key]:8.3f}"


def _shown(row: dict[str, Any], key: str, form: str) -> str:
    """Write a number, or a dash where there is nothing to compare with."""
    return format(row[key], form) if key in row else f"{'-':>{form.partition('.')[0]}}"


def show(model: str, threads: int, rows: Mapping[str, Row]) -> None:
    """Print one model's rows."""
    for name, row in rows.items():
        head = f"{model:13} {threads:7} {name:20}"
        if "failure" in row:
            print(f"{head} {row['failure']}", flush=True)
            continue
        ratios = " ".join(ratio(row, rows.get(ours), "latency") for ours in OURS)
        print(
            f"{head} {row['latency'] * 1e3:8.3f} {row['spread'] * 100:5.1f}% {ratios}"
            f" {_shown(row, 'cosine', '9.6f')} {_shown(row, 'sqnr', '6.1f')}"
            f" {ratio(row, rows.get(OURS[0]), 'bytes')}",
            flush=True,
        )


def main() -> None:
    """Read the command line, measure and print."""
    names = [variant.name for variant in VARIANTS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--threads", nargs="+", default=["1"], metavar="N")
    parser.add_argument("--model", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--variant", nargs="+", choices=names, default=names)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--json", metavar="OUT.json", type=Path)
    arguments = parser.parse_args()
    print(
        f"{'model':13} {'threads':>7} {'variant':20} {'ms':>8} {'+-':>6} {'/fp32':>8}"
        f" {'/static':>8} {'/dynamic':>8} {'cosine':>9} {'SQNR':>6} {'bytes':>8}"
    )
    results = []
    for threads in dict.fromkeys(map(cores, arguments.threads)):
        for model in arguments.model:
            source = prepare(model, arguments.folder, arguments.sequence, 0)
            variants = [v for v in VARIANTS if v.name in arguments.variant and v.takes(source)]
            rows = measure(source, variants, threads, arguments)
            show(model, threads, rows)
            results.append({"model": model, "threads": threads, "rows": rows})
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
