"""Times loading, verifying and saving generated models of growing node counts.

    python benchmarks/passes/load_verify_save.py [--nodes 12000 25000 50000] [--runs 3] [--profile]

Prints the best of the runs in seconds, and how much the time per node grew. Loading verifies too.
The CPU time leaves out what a busy machine adds to the rest.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx_ir as ir

from narrowpass_ir.io import load_model, save_model
from narrowpass_ir.verify import verify

WIDTH = 16
LIMIT_SECONDS = 10.0


def generate(count: int) -> ir.Model:
    """Build a valid model of `count` nodes: residual blocks, with a weight for 2 nodes of 6."""
    random = np.random.default_rng(0)
    x = ir.val("x", ir.DataType.FLOAT, ["N", WIDTH])
    initializers: list[ir.Value] = []
    nodes: list[ir.Node] = []

    def weight(*shape: int) -> ir.Value:
        name = f"weight_{len(initializers)}"
        tensor = ir.tensor(random.standard_normal(shape, np.float32), name=name)
        value = ir.val(name, ir.DataType.FLOAT, shape, const_value=tensor)
        initializers.append(value)
        return value

    current = residual = x
    for index in range(count):
        step = index % 6
        if step == 0:
            residual = current
            node = ir.node("MatMul", [current, weight(WIDTH, WIDTH)])
        elif step == 1:
            node = ir.node("Add", [current, weight(WIDTH)])
        elif step == 2:
            node = ir.node("Relu", [current])
        elif step == 3:
            node = ir.node("Softmax", [current], {"axis": -1})
        elif step == 4:
            node = ir.node("Concat", [current], {"axis": 0})
        else:
            node = ir.node("Add", [current, residual])
        node.name = f"node_{index}"
        current = node.outputs[0]
        current.name = f"value_{index}"
        current.type = ir.TensorType(ir.DataType.FLOAT)
        current.shape = ir.Shape(["N", WIDTH])
        nodes.append(node)
    graph = ir.Graph(
        [x],
        [current],
        nodes=nodes,
        initializers=initializers,
        opset_imports={"": 21},
        name="generated",
    )
    return ir.Model(graph, ir_version=10)


def measure(count: int, runs: int, folder: Path) -> dict[str, float]:
    """Return the best wall time in seconds of each step, and the best CPU time of all three."""
    source = folder / "source.onnx"
    ir.save(generate(count), source)
    best: dict[str, float] = {}
    for _ in range(runs):
        busy = time.process_time()
        start = time.perf_counter()
        model = load_model(source)
        loaded = time.perf_counter()
        verify(model)
        verified = time.perf_counter()
        save_model(model, folder / "saved.onnx")
        saved = time.perf_counter()
        times = {
            "load": loaded - start,
            "verify": verified - loaded,
            "save": saved - verified,
            "total": saved - start,
            "CPU": time.process_time() - busy,
        }
        best = {step: min(seconds, best.get(step, seconds)) for step, seconds in times.items()}
    return best


def profile(count: int) -> None:
    """Print where `verify` spends its time on a model of `count` nodes."""
    model = generate(count)
    profiler = cProfile.Profile()
    profiler.runcall(verify, model)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(20)


def main() -> int:
    """Print the table; exit code 1 where the largest model takes longer than the limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[12_000, 25_000, 50_000])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--profile", action="store_true", help="profile verify on the last size")
    arguments = parser.parse_args()
    print("   nodes     load   verify     save    total      CPU   CPU us/node")
    per_node = []
    total = 0.0
    for count in arguments.nodes:
        with tempfile.TemporaryDirectory() as folder:
            best = measure(count, arguments.runs, Path(folder))
        total = best["total"]
        per_node.append(best["CPU"] / count * 1e6)
        steps = " ".join(f"{seconds:8.3f}" for seconds in best.values())
        print(f"{count:8} {steps} {per_node[-1]:13.1f}")
    print(f"CPU time per node, last against first: {per_node[-1] / per_node[0]:.2f} (1: linear)")
    if arguments.profile:
        profile(arguments.nodes[-1])
    return 0 if total <= LIMIT_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
