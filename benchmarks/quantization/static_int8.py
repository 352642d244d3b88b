"""Compares the time of static int8: ours, and onnxruntime's ``quantize_static``.

    python benchmarks/quantization/static_int8.py MODEL.onnx [--samples 16] [--sequence 32]
        [--rounds 3]
        [--data DATA] [--held DATA] [--json OUT.json]

Each build has a fresh process in each round, and the processes take turns; calibration is never
cached. Ours is ``fold,int8-sym{mode=static}`` as it is, without ``smooth``, and with ``minmax``
alone (no smoothing, no bias correction); onnxruntime's is QDQ with signed bytes and a scale for
each channel of the weights, after ``quant_pre_process``. Shown are medians over the rounds: wall
and processor time with the imports of the tool, wall time also as a ratio to onnxruntime's; and
how near the outputs are to those of float32 on samples that were not calibrated on: SQNR over all
of them, and the least cosine, both on onnxruntime. Where other programs run, processor time is
what to look at.

The first dimension of unknown size is 1, others are ``--sequence``. Without ``--data`` inputs of
integers are tokens of 1000 to 29000, masks of ones, or zeros for ``token_type_ids``; floats are
normal numbers. Needs onnxruntime (dependency group ``peers``).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

Feeds = dict[str, np.ndarray[Any, Any]]
OURS = {
    "narrowpass": "fold,int8-sym{mode=static}",
    "narrowpass, smooth=false": "fold,int8-sym{mode=static,smooth=false}",
    "narrowpass, minmax alone": (
        "fold,int8-sym{mode=static,calibrator=minmax,smooth=false,bias-correction=false}"
    ),
}
THEIRS = "onnxruntime quantize_static"


def samples(path: Path, count: int, sequence: int, first: int) -> Iterator[Feeds]:
    """Build feeds for a model, from seeds that begin with `first`."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for seed in range(first, first + count):
        rng = np.random.default_rng(seed)
        feeds: Feeds = {}
        for value in session.get_inputs():
            shape = [
                dim if isinstance(dim, int) else (sequence if axis else 1)
                for axis, dim in enumerate(value.shape)
            ]
            if "float" in value.type:
                feeds[value.name] = rng.standard_normal(shape).astype(np.float32)
            elif "mask" in value.name:
                feeds[value.name] = np.ones(shape, np.int64)
            elif "type" in value.name:
                feeds[value.name] = np.zeros(shape, np.int64)
            else:
                feeds[value.name] = rng.integers(1000, 29000, shape)
        yield feeds


def read(folder: Path) -> Iterator[Feeds]:
    """Read samples, one from each file."""
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as archive:
            yield {name: archive[name] for name in archive.files}


def build_ours(text: str, model: Path, data: Path, out: Path) -> None:
    """Quantize as the command line does."""
    import narrowpass

    narrowpass.build({"main": str(model)}, pipeline=text, calibration=str(data), out=str(out))


def build_theirs(model: Path, data: Path, out: Path) -> None:
    """Quantize with onnxruntime's tool."""
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # it has no types
        def __init__(self) -> None:
            self._samples = read(data)

        def get_next(self) -> Feeds | None:
            return next(self._samples, None)

    with tempfile.TemporaryDirectory() as folder:
        ready = f"{folder}/ready.onnx"
        quant_pre_process(str(model), ready)
        quantize_static(
            ready,
            str(out),
            Reader(),
            quant_format=QuantFormat.QDQ,
            activation_type=QuantType.QInt8,
            weight_type=QuantType.QInt8,
            per_channel=True,
        )


def work(kind: str, model: Path, data: Path, out: Path, pipe: Connection) -> None:
    """Build once; send wall and processor time."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["NARROWPASS_CACHE_DIR"] = cache
        wall, processor = time.perf_counter(), time.process_time()
        if kind in OURS:
            build_ours(OURS[kind], model, data, out)
        else:
            build_theirs(model, data, out)
        pipe.send((time.perf_counter() - wall, time.process_time() - processor))


def timed(kind: str, model: Path, data: Path, out: Path) -> tuple[float, float]:
    """Build in a process of its own."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(kind, model, data, out, theirs))
    process.start()
    theirs.close()
    found: tuple[float, float] = ours.recv()
    process.join()
    return found


def quality(model: Path, out: Path, held: Path) -> tuple[float, float]:
    """Return the SQNR over all outputs and samples, and the least cosine."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.qdqisint8allowed", "1")
    right, got = (
        onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        for path in (model, out)
    )
    power = noise = 0.0
    cosine = 1.0
    for feeds in read(held):
        for wanted, given in zip(right.run(None, feeds), got.run(None, feeds), strict=True):
            a, b = (np.asarray(each, np.float64).ravel() for each in (wanted, given))
            power, noise = power + float(a @ a), noise + float((a - b) @ (a - b))
            lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
            cosine = min(cosine, float(a @ b) / lengths if lengths else 1.0)
    return 10 * float(np.log10(power / noise)) if noise else float("inf"), cosine


def main() -> None:
    """Read the command line, build, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--sequence", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--data", type=Path, help="a folder of .npz files to calibrate on")
    parser.add_argument("--held", type=Path, help="a folder of .npz files to compare on")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if importlib.util.find_spec("onnxruntime") is None:
        parser.error("onnxruntime is not installed")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data, held = arguments.data or folder / "data", arguments.held or folder / "held"
        for place, first in ((data, 0), (held, 10_000)):
            if not place.exists():
                place.mkdir()
                built = samples(arguments.model, arguments.samples, arguments.sequence, first)
                for number, feeds in enumerate(built):
                    np.savez(place / f"{number:04}.npz", **feeds)  # type: ignore[arg-type]
        kinds = [*OURS, THEIRS]
        times: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
        outs = {kind: folder / f"{number}.onnx" for number, kind in enumerate(kinds)}
        for _ in range(arguments.rounds):
            for kind in kinds:
                times[kind].append(timed(kind, arguments.model, data, outs[kind]))
        rows = {}
        for kind in kinds:
            wall, processor = (statistics.median(each) for each in zip(*times[kind], strict=True))
            sqnr, cosine = quality(arguments.model, outs[kind], held)
            rows[kind] = {"wall": wall, "processor": processor, "sqnr": sqnr, "cosine": cosine}
    print(f"{'':28} {'wall':>8} {'ratio':>6} {'processor':>10} {'SQNR':>9} {'cosine':>9}")
    for kind, row in rows.items():
        ratio = row["wall"] / rows[THEIRS]["wall"]
        print(
            f"{kind:28} {row['wall']:6.1f} s {ratio:6.2f} {row['processor']:8.1f} s "
            f"{row['sqnr']:6.1f} dB {row['cosine']:9.6f}"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
