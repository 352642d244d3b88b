"""Compares single int8 operators in narrowpass with those of other runtimes, in GOP/s.

    python benchmarks/int8_operators.py [--threads 1] [--only "dw 3x3" ...] [--model resnet50 ...]
        [--entrant "narrowpass s8s8" ...] [--rounds 7] [--clock wall|cpu] [--json OUT.json]

The operators are convolutions of ResNet-50 and MobileNetV2 and matmuls of MiniLM and BERT, each an
ONNX model of its own, built here: u8s8 and s8s8 have integer inputs and outputs, DequantizeLinear
before the operator and QuantizeLinear after it; ``dynamic`` has float32 ones, and is the result of
``int8-sym{mode=dynamic}`` on the operator for narrowpass, and what ``quantize_dynamic``
writes for onnxruntime. A model computes its operator several times, with other weights each time,
until a run is long enough for the call not to count. The runtimes have a process for each form and
are asked in turn; shown are billions of additions and multiplications per second from the median
over rounds, and how many steps narrowpass's s8s8 is from onnxruntime's at most. Inputs and outputs
are NCHW, so that where a runtime computes in another layout the change counts. ``--clock cpu`` is
as in ``fast_path.py``. Needs the dependency group ``peers``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from runners import CLOCKS, Array, Failure, Worker, cores, installed
from zoo.operators import OPERATORS, Convolution, Operator, inputs, single

SECONDS = 0.05
PAUSE = 0.02
WORK = 40_000_000
MOST_COPIES = 16
ENTRANTS = (
    "narrowpass fp32",
    "narrowpass s8s8",
    "narrowpass dynamic",
    "onnxruntime fp32",
    "onnxruntime u8s8",
    "onnxruntime s8s8",
    "onnxruntime dynamic",
    "openvino fp32",
    "openvino u8s8",
    "openvino s8s8",
)
OURS, THEIRS = "narrowpass s8s8", "onnxruntime s8s8"


@dataclass(frozen=True)
class Row:
    """What was measured of one operator: GOP/s, outputs and failures, by the entrants' names."""

    speeds: Mapping[str, float]
    outputs: Mapping[str, Sequence[Array]]
    failures: Mapping[str, str]

    @property
    def steps(self) -> int | None:
        """Return how far ours is from onnxruntime's at most, if both are there."""
        if OURS not in self.outputs or THEIRS not in self.outputs:
            return None
        pairs = zip(self.outputs[OURS], self.outputs[THEIRS], strict=True)
        return max(int(np.abs(a.astype(np.int32) - b).max()) for a, b in pairs)


def write(operator: Operator, entrant: str, copies: int, folder: Path) -> Path | None:
    """Write the model of an operator for an entrant; None where there is no such form."""
    runtime, form = entrant.split()
    path = folder / f"{entrant}.onnx"
    if form != "dynamic":
        onnx.save(single(operator, form, copies), path)
        return path
    if runtime == "narrowpass":
        import narrowpass

        float32 = single(operator, "fp32", copies)
        narrowpass.build(float32, "int8-sym{mode=dynamic}", out=path, target="xnn-cpu")
        return path
    if isinstance(operator, Convolution):
        return None
    onnx.save(single(operator, form, copies), path)
    return path


def measure(operator: Operator, workers: Mapping[str, Worker], rounds: int, clock: str) -> Row:
    """Time one operator in all entrants, in turns."""
    copies = min(MOST_COPIES, -(-WORK // operator.macs))
    times: dict[str, list[float]] = {}
    outputs, failures = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for name, worker in workers.items():
            path = write(operator, name, copies, Path(folder))
            if path is None:
                continue
            feeds = inputs(operator, name.split()[1])
            try:
                _, (outputs[name],) = worker.load(str(path), [feeds])
            except Failure as failure:
                failures[name] = str(failure)
            else:
                times[name] = []
        for _ in range(rounds):
            for name, measured in times.items():
                time.sleep(PAUSE)
                measured.append(workers[name].time(SECONDS, clock)[0])
    work = 2e-9 * copies * operator.macs
    speeds = {name: work / statistics.median(measured) for name, measured in times.items()}
    return Row(speeds, outputs, failures)


def show(operator: Operator, row: Row, entrants: Sequence[str]) -> None:
    """Print one operator's row, and below it what failed."""
    cells = [f"{row.speeds[name]:8.1f}" if name in row.speeds else f"{'-':>8}" for name in entrants]
    steps = "-" if row.steps is None else str(row.steps)
    print(f"{operator.model:13}{operator.label:31}{' '.join(cells)} {steps:>5}", flush=True)
    for name, failure in row.failures.items():
        print(f"    {name}: {failure}", flush=True)


def main() -> None:
    """Read the command line, measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--threads", default="1", metavar="N")
    parser.add_argument("--model", nargs="+")
    parser.add_argument("--only", nargs="+", metavar="PART OF A ROW'S NAME")
    parser.add_argument("--entrant", nargs="+", choices=ENTRANTS)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--json", metavar="OUT.json", type=Path)
    arguments = parser.parse_args()
    there = installed()
    entrants = arguments.entrant or [name for name in ENTRANTS if name.split()[0] in there]
    threads = cores(arguments.threads)
    short = {"narrowpass": "np", "onnxruntime": "ort", "openvino": "ov"}
    heads = " ".join(
        f"{short[runtime]} {form[:4]:>4}".rjust(8)
        for runtime, form in (name.split() for name in entrants)
    )
    print(f"{'model':13}{f'operator, {threads} threads':31}{heads} {'steps':>5}", flush=True)
    results: list[dict[str, Any]] = []
    with ExitStack() as stack:
        workers = {name: stack.enter_context(Worker(name.split()[0], threads)) for name in entrants}
        for operator in OPERATORS:
            if arguments.model and operator.model not in arguments.model:
                continue
            if arguments.only and not any(part in operator.label for part in arguments.only):
                continue
            row = measure(operator, workers, arguments.rounds, arguments.clock)
            show(operator, row, entrants)
            results.append(
                {
                    "model": operator.model,
                    "operator": operator.label,
                    "threads": threads,
                    "gops": dict(row.speeds),
                    "failures": dict(row.failures),
                    "steps": row.steps,
                }
            )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
