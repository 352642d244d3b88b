"""Compare passes of onnx-ir with ours that do the same.

``python benchmarks/libraries/ir_passes.py MODEL ...``, with ``pip install onnxscript`` for the
folding of constants. Prints for each model, and each pair of passes, the nodes, initializers and
known shapes that are left, and the median time of five runs, each on a model that is loaded anew;
checks between passes are not timed.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir
from onnx_ir.passes import common

import narrowpass
from narrowpass import Context, Pipeline, load_plugins
from narrowpass_ir.sizes import count_nodes

Run = Callable[[ir.Model], ir.Model]


def ours(name: str) -> Run:
    """Return a function that runs one of our passes, without the checks between passes."""
    pipeline = Pipeline.parse(name, load_plugins().registry)
    return lambda model: pipeline.run(model, Context(), verify=False, in_place=True).model


def theirs() -> dict[str, Run]:
    """Return passes of others by the name of ours."""
    passes: dict[str, ir.passes.PassBase] = {
        "cse": common.CommonSubexpressionEliminationPass(),
        "eliminate-identity": common.IdentityEliminationPass(),
        "dead-code": common.RemoveUnusedNodesPass(),
        "dedup-weights": common.DeduplicateHashedInitializersPass(size_limit=1 << 40),
        "infer-shapes": common.ShapeInferencePass(),
    }
    found: dict[str, Run] = {
        name: lambda model, each=each: each(model).model for name, each in passes.items()
    }
    if importlib.util.find_spec("onnxscript"):
        from onnxscript import optimizer

        found["fold"] = lambda model: optimizer.optimize(model) or model
    return found


def measure(run: Run, path: Path) -> str:
    """Return the cells of a pass on a model: nodes, initializers, shapes known, milliseconds."""
    times = []
    for _ in range(5):
        model = narrowpass.load_model(path)
        started = time.perf_counter()
        model = run(model)
        times.append(time.perf_counter() - started)
    values = [value for node in model.graph for value in node.outputs if value.name]
    known = sum(value.shape is not None for value in values)
    weights = sum(len(graph.initializers) for graph in model.graphs())
    cells = count_nodes(model), weights, known, f"{1000 * statistics.median(times):.0f}"
    return " | ".join(map(str, cells))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL")
    logging.disable(logging.WARNING)
    for path in parser.parse_args().models:
        print(f"\n{path.name}: {measure(lambda model: model, path)}\n")
        print("| pass | by | nodes | initializers | shapes | ms |\n|---|---|---|---|---|---|")
        for name, other in theirs().items():
            for who, run in (("ours", ours(name)), ("theirs", other)):
                print(f"| `{name}` | {who} | {measure(run, path)} |", flush=True)


if __name__ == "__main__":
    main()
