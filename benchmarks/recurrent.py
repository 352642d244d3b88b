"""Compares recurrent layers in narrowpass and onnxruntime.

    python benchmarks/recurrent.py [--threads 1 all] [--only LSTM GRU RNN small ...]
        [--forms float32 store-weights int8-sym] [--rounds 7] [--clock wall|cpu] [--json OUT.json]

Each layer is a model of random weights. narrowpass runs it in float32, with weights stored as
float16 (``store-weights``), and with int8 weights whose input rows are quantized at run time
(``int8-sym{mode=dynamic}``); onnxruntime in float32, and by ``quantize_dynamic``, which knows LSTM
alone. Each form has a process of its own, and the processes are asked in turn. Shown are the median
over rounds of each round's median in microseconds; the ratio to the form of narrowpass of the same
type (above 1, narrowpass is faster); the share of the roofline; and the largest
error relative to the largest magnitude, against onnxruntime in float32.

The roofline, a lower bound of the time, is the larger of two: the multiplications over the rate of
a GEMM of 512 rows, and the bytes of R, which each step reads, over the bandwidth of reading an
array of that size, both measured with numpy's BLAS on one thread.

``--clock cpu`` takes the time that a process computes: what to use with one thread where other
programs run beside.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # what `peak` and `bandwidth` measure is one thread

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from runners import CLOCKS, Entrant, cores, in_turns, installed, judge

SECONDS = 0.3
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
PIPELINES = {
    "float32": "fold",
    "store-weights": "fold,store-weights",
    "int8-sym": "fold,int8-sym{mode=dynamic}",
}
REFERENCE = "onnxruntime float32"


@dataclass(frozen=True)
class Layer:
    """Layers of one kind, one behind the other, over rows [steps, batch, inputs]."""

    op_type: str
    inputs: int
    hidden: int
    steps: int
    batch: int = 1
    directions: int = 1
    layers: int = 1
    reset_after: bool = False

    def weights(self) -> Iterator[tuple[int, int, int]]:
        """Yield the rows and columns of W, and the columns of R, of each direction and layer."""
        rows, size = GATES[self.op_type] * self.hidden, self.inputs
        for _ in range(self.layers):
            for _ in range(self.directions):
                yield rows, size, self.hidden
            size = self.directions * self.hidden

    @property
    def multiplications(self) -> int:
        """Multiplications of a run."""
        return self.steps * self.batch * sum(rows * (a + b) for rows, a, b in self.weights())

    def least(self, flops: float, bandwidth: float) -> float:
        """Return the seconds that a run takes at least on one thread."""
        read = 4 * self.steps * sum(rows * b for rows, _, b in self.weights())
        return max(2 * self.multiplications / flops, read / bandwidth)


LAYERS = {
    "BiLSTM 128→256, 2 layers, 64 steps": Layer("LSTM", 128, 256, 64, directions=2, layers=2),
    "LSTM 128→128, 1 step (Silero VAD)": Layer("LSTM", 128, 128, 1),
    "LSTM 512→512, 32 steps": Layer("LSTM", 512, 512, 32),
    "LSTM 256→1024, 16 steps": Layer("LSTM", 256, 1024, 16),
    "LSTM 128→256, 32 steps, batch 8": Layer("LSTM", 128, 256, 32, 8),
    "LSTM 128→256, 32 steps, batch 32": Layer("LSTM", 128, 256, 32, 32),
    "BiLSTM 256→96, 100 steps (OCR)": Layer("LSTM", 256, 96, 100, directions=2, layers=2),
    "GRU 128→256, 64 steps": Layer("GRU", 128, 256, 64),
    "GRU 128→256, 64 steps, reset after": Layer("GRU", 128, 256, 64, reset_after=True),
    "BiGRU 128→256, 64 steps, batch 4": Layer("GRU", 128, 256, 64, 4, 2, reset_after=True),
    "RNN 128→256, 64 steps": Layer("RNN", 128, 256, 64),
    "LSTM 16→16, 10 steps, small": Layer("LSTM", 16, 16, 10),
}


def model(layer: Layer) -> onnx.ModelProto:
    """Build the layers, with what exporters write between them: the directions side by side."""
    rng = np.random.default_rng(0)
    nodes, constants, given, size = [], {}, "x", layer.inputs
    rows, both = GATES[layer.op_type] * layer.hidden, layer.directions * layer.hidden
    constants["flat"] = np.array([0, 0, both])
    attributes: dict[str, Any] = {"linear_before_reset": 1} if layer.reset_after else {}
    for number in range(layer.layers):
        shapes = {"w": (rows, size), "r": (rows, layer.hidden), "b": (2 * rows,)}
        for name, shape in shapes.items():
            array = rng.uniform(-1, 1, (layer.directions, *shape)) / np.sqrt(layer.hidden)
            constants[f"{name}{number}"] = array.astype(np.float32)
        nodes += [
            helper.make_node(
                layer.op_type,
                [given, *(f"{name}{number}" for name in shapes)],
                [f"y{number}"],
                hidden_size=layer.hidden,
                direction="bidirectional" if layer.directions == 2 else "forward",
                **attributes,
            ),
            helper.make_node("Transpose", [f"y{number}"], [f"t{number}"], perm=[0, 2, 1, 3]),
            helper.make_node("Reshape", [f"t{number}", "flat"], [f"o{number}"]),
        ]
        given, size = f"o{number}", both
    shape = [layer.steps, layer.batch]
    graph = helper.make_graph(
        nodes,
        "layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [*shape, layer.inputs])],
        [helper.make_tensor_value_info(given, TensorProto.FLOAT, [*shape, both])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def peak() -> float:
    """Return the most floating-point operations per second of a GEMM of 512 rows on one thread."""
    a, taken = np.ones((512, 512), np.float32), []
    for _ in range(40):
        start = time.perf_counter()
        a @ a
        taken.append(time.perf_counter() - start)
    return 2 * 512**3 / min(taken)


def bandwidth(size: int) -> float:
    """Return the bytes in a second that matmuls with a vector read of an array of `size` bytes."""
    matrix = np.ones((max(1, size // 1024), 256), np.float32)
    vector, taken = np.ones(256, np.float32), []
    for _ in range(60):
        start = time.perf_counter()
        matrix @ vector
        taken.append(time.perf_counter() - start)
    return matrix.nbytes / min(taken)


def entrants(layer: Layer, folder: Path, forms: list[str]) -> list[Entrant]:
    """Write the forms of a layer; return who runs which."""
    import narrowpass

    plain = folder / "model.onnx"
    onnx.save(model(layer), plain)
    found = []
    for form in forms:
        path = folder / f"{form}.narrow"
        narrowpass.build({"main": str(plain)}, pipeline=PIPELINES[form], out=str(path))
        found.append(Entrant(f"narrowpass {form}", "narrowpass", str(path)))
    found.append(Entrant(REFERENCE, "onnxruntime", str(plain)))
    if layer.op_type == "LSTM" and "int8-sym" in forms:
        from onnxruntime.quantization import QuantType, quantize_dynamic

        path = folder / "dynamic.onnx"
        quantize_dynamic(str(plain), str(path), weight_type=QuantType.QInt8)
        found.append(Entrant("onnxruntime int8", "onnxruntime", str(path)))
    return found


def show(name: str, threads: int, layer: Layer, rows: dict[str, dict[str, Any]]) -> None:
    """Print the rows of a layer."""
    least = layer.least(peak(), bandwidth(4 * GATES[layer.op_type] * layer.hidden**2))
    for form, row in rows.items():
        if "failure" in row:
            print(f"| {name} | {threads} | {form} | {row['failure']} | | | |")
            continue
        own = "int8-sym" if form.endswith("int8") else "float32"
        against = rows.get(f"narrowpass {own}", {}).get("latency")
        ratio = "" if against is None else f"{row['latency'] / against:.2f}"
        share = f"{least / row['latency']:.0%}" if "int8" not in form and threads == 1 else ""
        error = row.get("relative", 0.0)
        time_taken = f"{row['latency'] * 1e6:.1f}"
        print(f"| {name} | {threads} | {form} | {time_taken} | {ratio} | {share} | {error:.1e} |")


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", nargs="+", default=["1", "all"])
    parser.add_argument("--only", nargs="+", default=[""])
    parser.add_argument("--forms", nargs="+", choices=PIPELINES, default=list(PIPELINES))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if "onnxruntime" not in installed():
        parser.error("onnxruntime is not installed")
    results = []
    print("| layer | threads | form | µs | ratio | of the roofline | error |")
    print("|---|---|---|---|---|---|---|")
    for name, layer in LAYERS.items():
        if not any(part in name for part in arguments.only):
            continue
        shape = layer.steps, layer.batch, layer.inputs
        feeds = {"x": np.random.default_rng(1).standard_normal(shape).astype(np.float32)}
        for threads in map(cores, arguments.threads):
            with tempfile.TemporaryDirectory() as folder:
                built = entrants(layer, Path(folder), arguments.forms)
                timings = in_turns(
                    built,
                    [feeds],
                    threads,
                    rounds=arguments.rounds,
                    seconds=SECONDS,
                    clock=arguments.clock,
                )
            right = timings[REFERENCE]
            rows = {form: judge(timing, right) for form, timing in timings.items()}
            show(name, threads, layer, rows)
            results.append({"layer": name, "threads": threads, "forms": rows})
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
