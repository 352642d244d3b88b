"""Times what a run costs beside what it computes, here and in onnxruntime, in turns.

Models whose operators take less than a microsecond, or little more: one operator, more inputs, more
outputs, a branch, one row through trees, one step of an LSTM::

    python benchmarks/fixed_cost.py [--rounds 9]

One thread. Each runtime has a process of its own. Needs ``onnxruntime``.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console
from rich.table import Table
from runners.judging import beside_onnxruntime
from trees import FEATURES, ensemble

Array = np.ndarray
HIDDEN = 128
BRANCHES = """<ir_version: 8, opset_import: ["": 18]>
g (float[N, 16] x, bool c) => (float[N, 16] y) {
    y = If (c) <then_branch = t () => (float[N, 16] a) { a = Relu(x) },
                else_branch = e () => (float[N, 16] b) { b = Neg(x) }> }"""


def relus(inputs: int, outputs: int) -> onnx.ModelProto:
    """Build a model of so many Relus of 4 elements."""
    nodes = [helper.make_node("Relu", [f"x{i % inputs}"], [f"y{i}"]) for i in range(outputs)]
    infos = [
        [helper.make_tensor_value_info(f"{name}{i}", TensorProto.FLOAT, ["n", 4]) for i in range(n)]
        for name, n in (("x", inputs), ("y", outputs))
    ]
    graph = helper.make_graph(nodes, "g", *infos)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def lstm() -> onnx.ModelProto:
    """Build one LSTM that is fed its states."""
    rng = np.random.default_rng(0)
    sizes = {"w": (1, 4 * HIDDEN, HIDDEN), "r": (1, 4 * HIDDEN, HIDDEN), "b": (1, 8 * HIDDEN)}
    tensors = [
        numpy_helper.from_array(rng.standard_normal(s).astype(np.float32) / HIDDEN**0.5, n)
        for n, s in sizes.items()
    ]
    node = helper.make_node(
        "LSTM", ["x", "w", "r", "b", "", "h", "c"], ["", "hn", "cn"], hidden_size=HIDDEN
    )
    shape = [1, 1, HIDDEN]
    infos = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in names]
        for names in (("x", "h", "c"), ("hn", "cn"))
    ]
    graph = helper.make_graph([node], "g", *infos, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def cases() -> Iterator[tuple[str, onnx.ModelProto, dict[str, Array]]]:
    """Yield models with feeds, by what tables call them."""
    four = np.float32([[-1, 0, 1, 2]])
    for inputs, outputs in ((1, 1), (3, 3), (1, 10)):
        feeds = {f"x{i}": four for i in range(inputs)}
        yield f"Relu, {inputs} inputs, {outputs} outputs", relus(inputs, outputs), feeds
    wide = np.full((1, 16), 0.5, np.float32)
    yield "If", onnx.parser.parse_model(BRANCHES), {"x": wide, "c": np.array(True)}
    row = np.random.default_rng(1).standard_normal((1, FEATURES)).astype(np.float32)
    yield "100 boosted trees, 1 row", ensemble(100, 8, 3), {"x": row}
    state = np.full((1, 1, HIDDEN), 0.1, np.float32)
    yield f"LSTM of {HIDDEN} units, 1 step", lstm(), dict.fromkeys(("x", "h", "c"), state)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table of microseconds and ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args(arguments)
    table = Table("model", "narrowpass, us", "onnxruntime, us", "ratio", "error")
    with tempfile.TemporaryDirectory() as folder:
        for name, model, feeds in cases():
            path = str(Path(folder) / "model.onnx")
            onnx.save(model, path)
            table.add_row(name, *beside_onnxruntime(path, feeds, 1, given.rounds))
    Console().print(table)


if __name__ == "__main__":
    main()
