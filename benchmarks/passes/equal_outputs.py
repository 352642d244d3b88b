"""Builds models with a pipeline and compares the results with the originals under onnxruntime.

For each model: `narrowpass build`, once as a bundle and once as a plain ONNX file, then original
and results run by onnxruntime on the same random feeds. Prints a table; ends with 1 when an
output differs by more than the tolerance::

    python benchmarks/passes/equal_outputs.py --light model.onnx ...

Needs ``onnxruntime``. ``--light`` adds the nine well-known models that the onnx package ships.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from rich.console import Console
from rich.table import Table

import narrowpass
from narrowpass_analysis.metrics import relative
from narrowpass_testing import random_feeds

Array = np.ndarray[Any, Any]


def light_models() -> list[Path]:
    """Return the models of ``onnx/backend/test/data/light``."""
    return sorted((Path(onnx.__file__).parent / "backend/test/data/light").glob("*.onnx"))


def feeds_for(path: Path, seed: int) -> dict[str, Array]:
    """Return random feeds; token ids, masks and segment ids get values as from a tokenizer."""
    model = narrowpass.load_model(path)
    feeds = dict(random_feeds(model, seed, sizes={"batch": 2, "sequence": 24}))
    for name, array in feeds.items():
        if "mask" in name:
            feeds[name] = np.ones_like(array)
        elif "ids" in name:
            rng = np.random.default_rng(seed)
            top = 1 if "type" in name else 30000
            feeds[name] = rng.integers(0, top, array.shape, endpoint=True).astype(array.dtype)
    return feeds


def run(path: Path, feeds: dict[str, Array]) -> dict[str, Array]:
    """Run a model by onnxruntime without its graph optimizations."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def main() -> None:
    """Read the command line, compare, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--light", action="store_true", help="add the models that onnx ships")
    parser.add_argument("-p", "--pipeline", default="fold")
    parser.add_argument("--tolerance", type=float, default=1e-5, help="of max|a-b| / max|b|")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()

    table = Table(title=f"{arguments.pipeline}: outputs against the original under onnxruntime")
    for column in ("model", "nodes before", "after", "bytes before", "after", "build s", "rel"):
        table.add_column(column, justify="left" if column == "model" else "right")
    worst_of_all = 0.0
    for path in [*arguments.models, *(light_models() if arguments.light else [])]:
        with tempfile.TemporaryDirectory() as scratch:
            plain, folder = Path(scratch) / "model.onnx", Path(scratch) / "model.narrow"
            start = time.perf_counter()
            narrowpass.build(path, arguments.pipeline, folder)
            seconds = time.perf_counter() - start
            narrowpass.build(path, arguments.pipeline, plain)
            worst = 0.0
            for seed in range(arguments.seeds):
                feeds = feeds_for(path, seed)
                expected = run(path, feeds)
                for result in (plain, folder / "main.onnx"):
                    for name, array in run(result, feeds).items():
                        worst = max(worst, relative(array, expected[name]))
            nodes = [len(onnx.load(file).graph.node) for file in (path, plain)]
            sizes = [path.stat().st_size, plain.stat().st_size]
        worst_of_all = max(worst_of_all, worst)
        cells = [*map(str, nodes), *(f"{size:,}" for size in sizes)]
        table.add_row(path.name, *cells, f"{seconds:.2f}", f"{worst:.1e}")
    Console().print(table)
    if worst_of_all > arguments.tolerance:
        raise SystemExit(f"an output differs by {worst_of_all:.1e} > {arguments.tolerance:.1e}")


if __name__ == "__main__":
    main()
