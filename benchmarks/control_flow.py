"""Measures what If, Loop and Scan cost, and frames of streaming models, against onnxruntime.

Needs onnxruntime; models come from files that other packages ship, such as those of `silero-vad`:

    python benchmarks/control_flow.py
    python benchmarks/control_flow.py site-packages/silero_vad/data/*.onnx

Each row has its runs in turns in one process, on one thread: microseconds of onnxruntime and of
xnn-cpu (medians), the ratio, the greatest difference relative to the largest element, and the nodes
that the reference evaluator runs. Models get 512 samples with the 64 before them at 16 kHz, where
they ask for a rate; state is fed back.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

import narrowpass

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]

_FRAME = 576
"""Samples that Silero VAD takes at 16 kHz."""
_RATE = 16_000

_BODIES = {
    "If": """g (float[N, 16] x, bool c) => (float[N, 16] y) {
        y = If (c) <then_branch = t () => (float[N, 16] a) { a = Relu(x) },
                    else_branch = e () => (float[N, 16] b) { b = Neg(x) }> }""",
    "Loop": """g (float[N, 16] x, int64 n) => (float[N, 16] y, float[T, N, 16] z) {
        y, z = Loop (n, , x) <body = b (int64 i, bool c, float[N, 16] s)
            => (bool d, float[N, 16] t, float[N, 16] r) {
                d = Identity(c) t = Add(s, x) r = Mul(t, x)
            }> }""",
    "Scan": """g (float[N, 16] x, float[T, N, 16] w) => (float[N, 16] y, float[T, N, 16] z) {
        y, z = Scan <num_scan_inputs = 1, body = b (float[N, 16] s, float[N, 16] v)
            => (float[N, 16] t, float[N, 16] r) { t = Add(s, v) r = Mul(t, x) }> (x, w) }""",
}


def main() -> None:
    """Print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    print(f"{'':42} {'onnxruntime':>12} {'xnn-cpu':>9} {'ratio':>6} {'error':>8} {'others':>6}")
    for kind, text in _BODIES.items():
        model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {text}')
        x = np.full((1, 16), 0.5, np.float32)
        for count in (1, 10, 100, 1000) if kind != "If" else (1,):
            feeds = {"x": x}
            if kind == "If":
                feeds["c"] = np.array(True)
            elif kind == "Loop":
                feeds["n"] = np.array(count)
            else:
                feeds["w"] = np.full((count, 1, 16), 0.25, np.float32)
            rounds = max(5, options.rounds // count)
            name = kind if kind == "If" else f"{kind}, {count} iterations"
            _row(name, model.SerializeToString(), feeds, {}, rounds)
    for path in options.models:
        model = onnx.load(path)
        feeds = {value.name: _feed(value) for value in model.graph.input}
        _row(path.name, path.read_bytes(), feeds, _fed_back(model), options.rounds)


def _feed(value: onnx.ValueInfoProto) -> Array:
    kind = value.type.tensor_type
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
    dims = [dim.dim_value or 1 for dim in kind.shape.dim]
    if dtype.kind in "iu" and not dims:
        return np.array(_RATE, dtype)
    if value.name == "input":
        dims[-1] = _FRAME
    noise = np.random.default_rng(0).standard_normal(dims)
    return (0.1 * noise).astype(dtype)


def _fed_back(model: onnx.ModelProto) -> dict[str, str]:
    """Return the outputs that are an input of the next frame: `stateN` is `state`, `hn` is `h`."""
    inputs = {value.name for value in model.graph.input}
    names = {value.name: value.name.rstrip("nN") for value in model.graph.output}
    return {output: name for output, name in names.items() if name in inputs and name != output}


def _row(name: str, model: bytes, feeds: Feeds, back: Mapping[str, str], rounds: int) -> None:
    session_options = onnxruntime.SessionOptions()
    session_options.intra_op_num_threads = session_options.inter_op_num_threads = 1
    session_options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model, session_options, providers=["CPUExecutionProvider"]
    )
    outputs = [value.name for value in session.get_outputs()]
    bundle = narrowpass.build(onnx.load_from_string(model), "fold")
    program = narrowpass.load(bundle, "xnn-cpu", threads=1)
    runs: dict[str, Callable[[Feeds], Mapping[str, Array]]] = {
        "onnxruntime": lambda given: dict(zip(outputs, session.run(None, given), strict=True)),
        "xnn-cpu": program.run,
    }
    state = {key: dict(feeds) for key in runs}
    seconds: dict[str, list[float]] = {key: [] for key in runs}
    error = 0.0
    for _ in range(rounds):
        results = {}
        for key, run in runs.items():
            start = time.perf_counter()
            results[key] = run(state[key])
            seconds[key].append(time.perf_counter() - start)
            state[key].update((given, results[key][built]) for built, given in back.items())
        error = max([error, *map(_difference, *(results[key].values() for key in runs))])
    theirs, ours = (1e6 * statistics.median(seconds[key]) for key in runs)
    others = sum(bool(plan.reason) for plan in program.explain())
    print(f"{name:42} {theirs:12.1f} {ours:9.1f} {theirs / ours:6.2f} {error:8.1e} {others:6}")


def _difference(one: Any, other: Any) -> float:
    largest = float(np.abs(one).max(initial=1e-30))
    return float(np.abs(np.asarray(one, np.float64) - other).max(initial=0.0)) / largest


if __name__ == "__main__":
    main()
