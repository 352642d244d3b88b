"""Times the pass `fold` on generated models of growing node counts.

    python benchmarks/passes/fold_many_nodes.py [--nodes 12500 25000 50000]

Three kinds: `shapes` is a chain of integer arithmetic on constants that folds to one tensor;
`weights` is as many additions of constants, each with another result; `nothing` is a chain of
floating-point operators on an input, on which there is nothing to do. Prints CPU seconds, which a
busy machine changes less than the time on the clock, and how much the time per node grew.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

from narrowpass import Context, Pipeline, load_plugins

LIMIT_SECONDS = 15.0


def shapes(count: int) -> onnx.ModelProto:
    """Build a chain of Gather, Unsqueeze, Add, Concat and Mod on constants."""
    nodes, last = [], "start"
    for i in range(0, count, 5):
        nodes += [
            helper.make_node("Gather", [last, "zero"], [f"g{i}"]),
            helper.make_node("Unsqueeze", [f"g{i}", "axis"], [f"u{i}"]),
            helper.make_node("Add", [f"u{i}", f"u{i}"], [f"a{i}"]),
            helper.make_node("Concat", [f"a{i}", f"u{i}"], [f"c{i}"], axis=0),
            helper.make_node("Mod", [f"c{i}", "prime"], [f"m{i}"]),
        ]
        last = f"m{i}"
    nodes.append(helper.make_node("Neg", [last], ["y"]))
    constants = {
        "start": np.array([2, 3]),
        "zero": np.array(0),
        "axis": np.array([0]),
        "prime": np.array(1000003),
    }
    return _model(
        nodes, [], [helper.make_tensor_value_info("y", TensorProto.INT64, [2])], constants
    )


def weights(count: int) -> onnx.ModelProto:
    """Build additions of constants; every fiftieth result is an output."""
    constants = {f"c{i}": np.full(4, i, np.float32) for i in range(count)}
    nodes = [
        helper.make_node("Add", [f"c{i}", f"c{i * 7 % max(1, i)}"], [f"v{i}"]) for i in range(count)
    ]
    outputs = [
        helper.make_tensor_value_info(f"v{i}", TensorProto.FLOAT, [4]) for i in range(0, count, 50)
    ]
    return _model(nodes, [], outputs, constants)


def nothing(count: int) -> onnx.ModelProto:
    """Build a chain of Relu, Add and Mul on an input."""
    nodes, last = [], "x"
    for i in range(count):
        op = ("Relu", "Add", "Mul")[i % 3]
        nodes.append(helper.make_node(op, [last, "w"][: 1 if op == "Relu" else 2], [f"v{i}"]))
        last = f"v{i}"
    dims = ["batch", 4]
    return _model(
        nodes,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, dims)],
        {"w": np.full(4, 1.01, np.float32)},
    )


def _model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    constants: Mapping[str, np.ndarray],
) -> onnx.ModelProto:
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "many", inputs, outputs, tensors)
    imports = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


KINDS: tuple[Callable[[int], onnx.ModelProto], ...] = (shapes, weights, nothing)


def main() -> None:
    """Read the command line, fold, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--nodes", nargs="+", type=int, default=[12500, 25000, 50000])
    arguments = parser.parse_args()
    pipeline = Pipeline.parse("fold", load_plugins().registry)
    for kind in KINDS:
        each: list[float] = []
        for count in arguments.nodes:
            model = ir.from_proto(kind(count))
            start = time.process_time()
            result = pipeline.run(model, Context(), in_place=True)
            seconds = time.process_time() - start
            each.append(seconds / count)
            left = len(result.model.graph)
            print(
                f"{kind.__name__:8} {count:6} nodes -> {left:6}: {seconds:6.2f} s CPU", flush=True
            )
        print(f"{kind.__name__:8} time per node, last to first: {each[-1] / each[0]:.2f}")
    print(f"goal: {LIMIT_SECONDS} s for 50,000 nodes, in proportion to the nodes")


if __name__ == "__main__":
    main()
