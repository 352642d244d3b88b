"""Times ensembles of decision trees here and in onnxruntime, in turns.

Trees are drawn, as deep and as unbalanced as those of a random forest (a node splits its share of
1,000 rows until less than 4 are left) or as those of gradient boosting (depth 3)::

    python benchmarks/trees.py [--threads 1|all] [--rounds 5]

Needs ``onnxruntime``.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper
from rich.console import Console
from rich.table import Table
from runners.judging import beside_onnxruntime
from runners.turns import cores

FEATURES = 20
FORMS = {"forest, 100 trees": (100, 1000, 64), "boosting, 100 trees": (100, 8, 3)}
"""Trees, rows that a tree is grown on, levels."""
ROWS = (1, 256, 4096)


def ensemble(trees: int, rows: int, levels: int, seed: int = 0) -> onnx.ModelProto:
    """Build a regressor of drawn trees."""
    rng = np.random.default_rng(seed)
    nodes: list[tuple[int, int, int, float, str, int, int]] = []
    for tree in range(trees):
        first = len(nodes)
        waiting = [(rows, levels)]
        nodes.append((tree, 0, 0, 0.0, "LEAF", 0, 0))
        at = 0
        while at < len(waiting):
            share, left = waiting[at]
            if share >= 4 and left:
                part = int(share * rng.uniform(0.2, 0.8))
                number = len(waiting)
                waiting += [(part, left - 1), (share - part, left - 1)]
                nodes += [(tree, number + i, 0, 0.0, "LEAF", 0, 0) for i in range(2)]
                split = int(rng.integers(FEATURES)), float(rng.standard_normal())
                nodes[first + at] = (tree, at, *split, "BRANCH_LEQ", number, number + 1)
            at += 1
    columns = list(zip(*nodes, strict=True))
    names = "treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids"
    leaves = [node for node in nodes if node[4] == "LEAF"]
    node = helper.make_node(
        "TreeEnsembleRegressor",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        n_targets=1,
        target_treeids=[leaf[0] for leaf in leaves],
        target_nodeids=[leaf[1] for leaf in leaves],
        target_ids=[0] * len(leaves),
        target_weights=rng.standard_normal(len(leaves)).tolist(),
        **{f"nodes_{name}": column for name, column in zip(names, columns, strict=True)},
    )
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", FEATURES])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 1])],
    )
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table of microseconds and ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", default="1")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args(arguments)
    table = Table("trees", "rows", "narrowpass, us", "onnxruntime, us", "ratio", "error")
    with tempfile.TemporaryDirectory() as folder:
        for name, form in FORMS.items():
            path = str(Path(folder) / "trees.onnx")
            onnx.save(ensemble(*form), path)
            for rows in ROWS:
                x = np.random.default_rng(1).standard_normal((rows, FEATURES)).astype(np.float32)
                threads = cores(given.threads)
                cells = beside_onnxruntime(path, {"x": x}, threads, given.rounds)
                table.add_row(name, str(rows), *cells)
    Console().print(table)


if __name__ == "__main__":
    main()
