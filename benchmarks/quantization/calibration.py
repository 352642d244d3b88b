"""Compares the time and peak memory of calibrating a model, by ours and onnxruntime's calibrators.

    python benchmarks/quantization/calibration.py MODEL.onnx [--samples 48] [--data DATA]
        [--rounds 3]
        [--calibrators NAME ...] [--fused] [--json OUT.json]

Each calibrator has a fresh process in each round, and the processes take turns; all use all
processors. ``float`` is the model itself, run twice on each sample by the native backend: what two
rounds over the data cost at least. Shown are medians over the rounds: wall and processor time of
the calibration alone (for ours with compiling, for onnxruntime with creating the session), each
also as a ratio to that of ``float``; and the largest resident set of the whole process, also as a
ratio to ``ours:minmax``. Where other programs run, processor time is what to look at.

The model is folded first. Ours observe what is computed, but for what goes into a Relu or Clip
alone, as that is never quantized; with ``--fused`` that too, as onnxruntime's always do.
Without ``--data`` samples are images of smooth noise, or normal numbers for inputs that are none.
onnxruntime's calibrators take part where it is installed (dependency group ``peers``); those with
histograms keep all values of all samples in memory: leave them out where that does not fit.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

import narrowpass
from narrowpass import Bundle, CompileOptions, Samples

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the folder of `runners`

from runners import memory
from runners.apart import run_apart
from runners.loaders import reader

OURS = ("minmax", "moving-average", "percentile", "l2", "entropy")
THEIRS = ("MinMax", "Percentile", "Entropy")
KINDS = (
    "float",
    *(f"ours:{name}" for name in OURS),
    *(f"onnxruntime:{name}" for name in THEIRS),
)
ACTIVATIONS = {"Relu", "Clip"}
SEQUENCE = 128
Feeds = dict[str, np.ndarray[Any, Any]]


def built(model: ir.Model, count: int) -> Iterator[Feeds]:
    """Build samples: the first dimension of unknown size is 1, others are `SEQUENCE`."""
    for seed in range(count):
        rng = np.random.default_rng(seed)
        feeds: Feeds = {}
        for value in model.graph.inputs:
            if value.name in model.graph.initializers:
                continue
            shape = [
                dim if isinstance(dim, int) else (SEQUENCE if axis else 1)
                for axis, dim in enumerate(value.shape or ())
            ]
            floats = value.dtype is not None and value.dtype.is_floating_point()
            if len(shape) == 4 and floats:
                feeds[value.name or ""] = smooth(rng, shape)
            elif floats:
                feeds[value.name or ""] = rng.standard_normal(shape, np.float32)
            else:
                feeds[value.name or ""] = rng.integers(0, 2, shape)
        yield feeds


def smooth(rng: np.random.Generator, shape: list[int]) -> np.ndarray[Any, Any]:
    """Build images with as much power in each octave, as photographs have."""
    total = np.zeros(shape, np.float32)
    size = 2
    while size < max(shape[2:]):
        coarse = rng.standard_normal((*shape[:2], size, size), np.float32)
        rows, columns = (np.arange(n) * size // n for n in shape[2:])
        total += coarse[:, :, rows][:, :, :, columns]
        size *= 2
    return np.asarray(total / total.std(), np.float32)


def observed(model: ir.Model, *, fused: bool) -> list[str]:
    """Return the names of the inputs and values that are quantized: floats."""
    names = []
    for value in [*model.graph.inputs, *(v for node in model.graph for v in node.outputs)]:
        users = {use.node.op_type for use in value.uses()}
        within = len(value.uses()) == 1 and users <= ACTIVATIONS
        if value.dtype == ir.DataType.FLOAT and value.name and (fused or not within):
            names.append(value.name)
    return names


def run_float(model: ir.Model, samples: Samples) -> None:
    """Run a model twice on each sample."""
    from narrowpass_xnn_cpu.backend import XnnCpuBackend

    bundle, options = Bundle({"main": model}), CompileOptions(cache=False)
    with XnnCpuBackend().compile(bundle, options) as program:
        program.run(next(iter(samples)))
        with measured():
            for _ in range(2):
                for feeds in samples:
                    program.run(feeds)


def run_ours(model: ir.Model, samples: Samples, name: str, *, fused: bool) -> None:
    """Calibrate with one of ours."""
    from narrowpass_int8_sym.calibration import calibrate
    from narrowpass_xnn_cpu.backend import XnnCpuBackend

    names, backend = observed(model, fused=fused), XnnCpuBackend()
    backend.supports(model.graph[0])  # imports what compiling needs
    with measured():
        calibrate(model, names, samples, backend, name, symmetric=False)


def run_theirs(model: ir.Model, samples: Samples, name: str) -> None:
    """Calibrate with one of onnxruntime's."""
    import onnxruntime
    from onnxruntime.quantization import CalibrationMethod, calibrate

    onnxruntime.set_default_logger_severity(3)
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/model.onnx"
        narrowpass.save_model(model, path)
        with measured():
            calibrator = calibrate.create_calibrator(
                path,
                augmented_model_path=f"{folder}/augmented.onnx",
                calibrate_method=CalibrationMethod[name],
            )
            calibrator.collect_data(reader(samples))
            calibrator.compute_data()


class measured:  # noqa: N801  # used as a function
    """Measures the time of a block; the last one of a process is its result."""

    seconds = 0.0
    processor = 0.0

    def __enter__(self) -> None:
        self._start = time.perf_counter(), time.process_time()

    def __exit__(self, *_: object) -> None:
        measured.seconds = time.perf_counter() - self._start[0]
        measured.processor = time.process_time() - self._start[1]


def work(kind: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Do one measurement, in a process of its own."""
    model = narrowpass.build(arguments.model, "fold").methods["main"]
    if arguments.data:
        taken = list(Samples.parse(arguments.data))[: arguments.samples]
    else:
        taken = list(built(model, arguments.samples))
    samples = Samples("the benchmark", lambda: taken)
    who, _, name = kind.partition(":")
    if who == "float":
        run_float(model, samples)
    elif who == "ours":
        run_ours(model, samples, name, fused=arguments.fused)
    else:
        run_theirs(model, samples, name)
    found = {"seconds": measured.seconds, "processor": measured.processor}
    return {**found, "peak": float(memory.peak())}


def show(kind: str, rows: dict[str, dict[str, float]]) -> None:
    """Print a row; ratios are to rows that were measured."""
    row, base = rows[kind], rows.get("float")
    least = rows.get("ours:minmax")
    ratios = [row[key] / base[key] if base else float("nan") for key in ("seconds", "processor")]
    grown = row["peak"] / least["peak"] if least else float("nan")
    print(
        f"{kind:24} {row['seconds']:8.2f} {ratios[0]:6.2f} {row['processor']:8.2f} "
        f"{ratios[1]:6.2f} {row['peak'] / 1e6:9.0f} {grown:6.2f}"
    )


def main() -> None:
    """Read the command line, measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("model", metavar="MODEL.onnx")
    parser.add_argument("--samples", type=int, default=48)
    parser.add_argument("--data", metavar="DATA", help="as build --calibration takes it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--calibrators", nargs="+", choices=KINDS[1:], metavar="NAME")
    parser.add_argument("--fused", action="store_true")
    parser.add_argument("--json", metavar="OUT.json")
    arguments = parser.parse_args()
    kinds = arguments.calibrators or KINDS[1:]
    if importlib.util.find_spec("onnxruntime") is None:
        kinds = [kind for kind in kinds if not kind.startswith("onnxruntime")]
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in ("float", *kinds)}
    for _ in range(arguments.rounds):
        for kind, results in found.items():
            results.append(run_apart(work, (kind, arguments)))
    rows = {
        kind: {key: statistics.median(result[key] for result in results) for key in results[0]}
        for kind, results in found.items()
    }
    print(
        f"{'':24} {'seconds':>8} {'ratio':>6} {'cpu s':>8} {'ratio':>6} {'peak MB':>9} {'ratio':>6}"
    )
    for kind in rows:
        show(kind, rows)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(found, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
