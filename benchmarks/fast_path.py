"""Compares narrowpass with its peers in float32, bfloat16 and int8: latency, accuracy, bytes.

    python benchmarks/fast_path.py FOLDER [--threads 1 all] [--model resnet50 ...]
        [--precision float32 bfloat16 int8] [--variant "narrowpass static" ...] [--rounds 9]
        [--clock wall|cpu] [--busy 0] [--samples 16] [--sequence 128]
        [--plot OUT.svg] [--json OUT.json]

What FOLDER lacks is built first, as by ``build_variants.py``. Each form of a model then has a
process of its own, and the processes are asked in turn: many short rounds, so that what else the
machine does falls on all of them alike. Shown are the median over rounds of each round's median,
half the distance between the quartiles of the rounds in percent, how many times the latency of the
best form of narrowpass in the same precision it is (above 1, narrowpass is faster), the cosine of
the outputs and their signal to noise in dB against those of the float32 model on onnxruntime, the
worst over some samples that were not calibrated with, and the bytes of the weights file over those
of narrowpass in float32. The line after each precision is the best peer over narrowpass.

The models are those of ``variants.MODELS``, and a decoder of 100 M parameters (see
``decoders.py``); ``--model llama-token llama-prompt`` is one of the sizes of Llama 3.2 1B, which
needs up to 12 GB of disk for each form and 20 GB of memory for the forms of one precision.
``--threads all`` takes every core. ``--clock cpu`` takes the time that a process computes, which is
what to use with one thread where other programs run beside. ``--busy 1`` lets one other process
compute all the time, to see what load does to latencies. Needs the dependency group ``int8``, and
matplotlib for ``--plot``; what is not installed, or fails, has a row that says so.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import decoders
from build_variants import built
from runners import CLOCKS, Entrant, cores, in_turns, installed, judge
from variants import MODELS, PRECISIONS, VARIANTS, Source, Variant, bytes_of_weights, prepare
from variants.decoders import FORMS

SECONDS = 0.15
SEED = 1_000_000
SAMPLES = 4
REFERENCE = "onnxruntime fp32"
OURS = "narrowpass"
PHASES = {
    "decoder-token": ("100m", "decode"),
    "decoder-prompt": ("100m", "prefill"),
    "llama-token": ("1b", "decode"),
    "llama-prompt": ("1b", "prefill"),
}
"""The size of a decoder with caches, and one token after others or all of a prompt."""
LARGE = ("llama-token", "llama-prompt")
"""What must be asked for."""
Row = dict[str, Any]


def measure_decoder(name: str, threads: int, arguments: argparse.Namespace) -> Row:
    """Time all forms of a decoder, in turns; return a row for each."""
    forms = [
        form.name
        for form in FORMS
        if form.name == REFERENCE or form.precision in arguments.precision
    ]
    sizes = {"past": arguments.sequence, "prompt": arguments.sequence}
    size, phase = PHASES[name]
    with busy(arguments.busy):
        asked = argparse.Namespace(**{**vars(arguments), "form": forms, **sizes})
        return decoders.measure(size, phase, threads, asked)


def absent(variant: Variant, source: Source, runtimes: Sequence[str]) -> str:
    """Build a form of a model if it is not there; return why it cannot take part, if so."""
    if variant.runtime not in runtimes:
        return f"{variant.runtime} is not installed"
    if variant.path(source).exists():
        return ""
    said = built(variant, source)
    return "" if variant.path(source).exists() else said.strip()


def measure(model: str, threads: int, arguments: argparse.Namespace) -> Row:
    """Time all forms of one model, in turns; return a row for each."""
    source = prepare(model, arguments.folder, arguments.sequence, arguments.samples)
    variants = [
        variant
        for variant in VARIANTS
        if variant.takes(source)
        # What outputs are compared with takes part whatever is asked for.
        and (
            variant.name == REFERENCE
            or (variant.name in arguments.variant and variant.precision in arguments.precision)
        )
    ]
    runtimes = installed()
    reasons = {variant.name: absent(variant, source, runtimes) for variant in variants}
    there = [variant for variant in variants if not reasons[variant.name]]
    entrants = [Entrant(v.name, v.runtime, str(v.path(source))) for v in there]
    feeds = [source.feeds(SEED + n) for n in range(SAMPLES)]
    with busy(arguments.busy):
        timings = in_turns(entrants, feeds, threads, arguments.rounds, SECONDS, arguments.clock)
    right = timings.get(REFERENCE)
    rows: Row = {}
    for variant in variants:
        reason = reasons[variant.name]
        row = {"failure": reason} if reason else judge(timings[variant.name], right)
        if not reason:
            row["bytes"] = bytes_of_weights(variant.path(source))
        rows[variant.name] = row | {"precision": variant.precision}
    return rows


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Let so many processes compute meanwhile."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_compute, daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def _compute() -> None:
    number = 1
    while True:
        number = number * 3 % 1_000_003


def best(rows: Mapping[str, Row], precision: str, *, ours: bool) -> float | None:
    """Return the least latency of our forms, or of those of all others; None without figures."""
    latencies = [
        row["latency"]
        for name, row in rows.items()
        if row["precision"] == precision and name.startswith(OURS) == ours and "latency" in row
    ]
    return min(latencies, default=None)


def show(model: str, threads: int, rows: Mapping[str, Row]) -> None:
    """Print one model's rows."""
    plain = rows.get(f"{OURS} fp32", {}).get("bytes")
    for precision in dict.fromkeys(row["precision"] for row in rows.values()):
        mine = best(rows, precision, ours=True)
        for name, row in rows.items():
            if row["precision"] != precision:
                continue
            head = f"{model:13} {threads:7} {name:20}"
            if "failure" in row:
                print(f"{head} {row['failure']}", flush=True)
                continue
            print(
                f"{head} {row['latency'] * 1e3:8.3f} {row['spread'] * 100:5.1f}%"
                f" {_over(row['latency'], mine)} {_shown(row, 'cosine', '9.6f')}"
                f" {_shown(row, 'sqnr', '6.1f')} {_over(row['bytes'], plain)}",
                flush=True,
            )
        peer = best(rows, precision, ours=False)
        if peer is not None and mine is not None:
            print(f"{model:13} {threads:7} {f'{precision}: best peer':38} {_over(peer, mine)}")


def _over(value: float, base: float | None) -> str:
    """Write a ratio, or a dash where there is nothing to compare with."""
    return f"{'-':>8}" if base is None else f"{value / base:8.3f}"


def _shown(row: Row, key: str, form: str) -> str:
    return format(row[key], form) if key in row else f"{'-':>{form.partition('.')[0]}}"


def plot(results: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Draw the latencies of peers as multiples of ours, a panel for each precision."""
    import matplotlib.pyplot as plt

    labels = [f"{result['model']}, {result['threads']} thr." for result in results]
    shown = [p for p in PRECISIONS if any(best(r["rows"], p, ours=True) for r in results)]
    size = 6 * len(shown), 1.5 + 0.6 * len(labels)
    figure, panels = plt.subplots(1, len(shown), figsize=size, squeeze=False, sharey=True)
    for axes, precision in zip(panels[0], shown, strict=True):
        names = list(
            dict.fromkeys(
                name
                for result in results
                for name, row in result["rows"].items()
                if row["precision"] == precision and not name.startswith(OURS)
            )
        )
        height = 0.8 / max(1, len(names))
        for number, name in enumerate(names):
            ratios = []
            for result in results:
                mine = best(result["rows"], precision, ours=True)
                latency = result["rows"].get(name, {}).get("latency")
                ratios.append(latency / mine if latency and mine else 0.0)
            places = [index + number * height for index in range(len(labels))]
            axes.barh(places, ratios, height, label=name)
        axes.axvline(1.0, color="black")
        axes.set_title(precision)
        axes.set_yticks([index + 0.4 - height / 2 for index in range(len(labels))], labels)
        axes.set_xlabel("latency over narrowpass's")
        axes.legend(fontsize="small")
    panels[0][0].invert_yaxis()
    figure.tight_layout()
    figure.savefig(file)


def main() -> None:
    """Read the command line, measure and print."""
    names = [variant.name for variant in VARIANTS]
    models = (*MODELS, *PHASES)
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--threads", nargs="+", default=["1", "all"], metavar="N")
    usual = [model for model in models if model not in LARGE]
    parser.add_argument("--model", nargs="+", choices=models, default=usual)
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--variant", nargs="+", choices=names, default=names)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--busy", type=int, default=0, metavar="PROCESSES")
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--plot", metavar="OUT.svg", type=Path)
    parser.add_argument("--json", metavar="OUT.json", type=Path)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    print(
        f"{'model':13} {'threads':>7} {'variant':20} {'ms':>8} {'+-':>6} {'/ours':>8}"
        f" {'cosine':>9} {'SQNR':>6} {'bytes':>8}"
    )
    results = []
    counts = dict.fromkeys(map(cores, arguments.threads))
    for model in arguments.model:
        for threads in counts:
            if model in PHASES:
                rows = measure_decoder(model, threads, arguments)
            else:
                rows = measure(model, threads, arguments)
            show(model, threads, rows)
            results.append({"model": model, "threads": threads, "rows": rows})
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2), encoding="utf-8")
    if arguments.plot:
        plot(results, arguments.plot)


if __name__ == "__main__":
    main()
