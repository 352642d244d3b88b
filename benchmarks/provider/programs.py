"""Models that packages ship, by onnxruntime alone and through the provider, in turns.

Needs narrowpass-onnxruntime, and those of silero-vad, rapidocr-onnxruntime and magika that are
installed; they are found and not imported. For each model it prints the nodes that the provider
takes, the median milliseconds of a run of both, with the processor's time, and the largest
difference relative to the largest element of an output. Feeds are drawn numbers.

    python benchmarks/provider/programs.py --threads 1
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

import narrowpass_onnxruntime
from narrowpass_onnxruntime.provider.registration import NAME

CPU = "CPUExecutionProvider"
TURNS = 9
SECONDS = 0.2
"""Of each turn."""

Feeds = dict[str, np.ndarray[Any, Any]]


def found() -> Iterator[tuple[str, Path, Feeds]]:
    """Yield the name, the file and feeds of each model whose package is installed."""
    rng = np.random.default_rng(0)

    def image(*shape: int) -> Feeds:
        return {"x": rng.random(shape, np.float32)}

    speech = {
        "input": rng.standard_normal((1, 576)).astype(np.float32) / 10,
        "state": np.zeros((2, 1, 128), np.float32),
        "sr": np.array(16000),
    }
    models = [
        ("silero_vad", "data/silero_vad.onnx", speech),
        ("silero_vad", "data/silero_vad_16k_op15.onnx", speech),
        ("rapidocr_onnxruntime", "models/ch_PP-OCRv4_det_infer.onnx", image(1, 3, 320, 320)),
        ("rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx", image(6, 3, 48, 320)),
        (
            "rapidocr_onnxruntime",
            "models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
            image(6, 3, 48, 192),
        ),
        (
            "magika",
            "models/standard_v3_3/model.onnx",
            {"bytes": rng.integers(0, 256, (1, 2048), np.int32)},
        ),
    ]
    for package, file, feeds in models:
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            yield package, Path(folder, file), feeds


def session(path: Path, threads: int, *providers: str) -> Any:
    """Create a session whose worker threads do not spin while they wait."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    settings = [{"threads": str(threads)} if name == NAME else {} for name in providers]
    return onnxruntime.InferenceSession(
        str(path), options, providers=list(providers), provider_options=settings
    )


def turn(each: Any, feeds: Feeds, runs: int) -> tuple[float, float]:
    """Return the milliseconds of a run, and of the processor's time."""
    start, used = time.perf_counter(), time.process_time()
    for _ in range(runs):
        each.run(None, feeds)
    return (time.perf_counter() - start) / runs * 1e3, (time.process_time() - used) / runs * 1e3


def error(ours: Any, theirs: Any, feeds: Feeds) -> float:
    """Return the largest difference of an output, relative to its largest element."""
    pairs = zip(ours.run(None, feeds), theirs.run(None, feeds), strict=True)
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--threads", type=int, default=1)
    threads = parser.parse_args().threads
    narrowpass_onnxruntime.register()
    print("| model | CPU provider, ms | narrowpass, ms | times faster | processor's time | error |")
    print("|---|---|---|---|---|---|")
    for package, path, feeds in found():
        theirs, ours = session(path, threads, CPU), session(path, threads, NAME, CPU)
        worst = error(ours, theirs, feeds)
        worst = max(worst, error(ours, theirs, feeds))  # a run without Python
        runs = max(3, int(SECONDS * 1e3 / turn(theirs, feeds, 3)[0]))
        turns = [(turn(theirs, feeds, runs), turn(ours, feeds, runs)) for _ in range(TURNS)]
        (cpu, cpu_used), (own, own_used) = (
            [statistics.median(t[side][k] for t in turns) for k in (0, 1)] for side in (0, 1)
        )
        print(
            f"| {package}: {path.stem} | {cpu:.3f} | {own:.3f} | {cpu / own:.2f} "
            f"| {cpu_used / own_used:.2f} | {worst:.1e} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
