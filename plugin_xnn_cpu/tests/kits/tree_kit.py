"""Random ensembles of decision trees, and models of one node of ai.onnx.ml."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from contrib_kit import onnxruntime_results
from onnx import helper
from xnn_kit import Array, close, compile_model

ML = "ai.onnx.ml"
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")


def tree_nodes(
    rng: np.random.Generator,
    trees: int,
    depth: int,
    features: int,
    modes: Sequence[str] = MODES,
    *,
    tracks: bool = True,
) -> dict[str, list[Any]]:
    """Draw trees of random forms as the attributes of TreeEnsembleRegressor name them.

    Thresholds are small integers: features of these values come out equal, too.
    """
    drawn: dict[str, list[Any]] = {
        f"nodes_{name}": []
        for name in (
            "treeids", "nodeids", "featureids", "values", "modes", "truenodeids",
            "falsenodeids", "missing_value_tracks_true",
        )
    }  # fmt: skip

    def add(tree: int, levels: int) -> int:
        number = len(drawn["nodes_treeids"])
        for values in drawn.values():
            values.append(0)
        drawn["nodes_values"][number] = 0.0
        drawn["nodes_treeids"][number] = tree
        inner = levels > 0 and (levels == depth or rng.random() < 0.8)
        drawn["nodes_modes"][number] = str(rng.choice(modes)) if inner else "LEAF"
        drawn["nodes_nodeids"][number] = number
        if inner:
            drawn["nodes_featureids"][number] = int(rng.integers(features))
            drawn["nodes_values"][number] = float(rng.integers(-2, 3))
            drawn["nodes_missing_value_tracks_true"][number] = int(tracks and rng.random() < 0.5)
            drawn["nodes_truenodeids"][number] = add(tree, levels - 1)
            drawn["nodes_falsenodeids"][number] = add(tree, levels - 1)
        return number

    for tree in range(trees):
        add(tree, depth)
    return drawn


def leaf_weights(
    rng: np.random.Generator,
    nodes: Mapping[str, Sequence[Any]],
    targets: int,
    prefix: str = "target",
    *,
    all_targets: bool = True,
) -> dict[str, list[Any]]:
    """Draw weights of the leaves: for all targets, or for some."""
    drawn: dict[str, list[Any]] = {
        f"{prefix}_{name}": [] for name in ("treeids", "nodeids", "ids", "weights")
    }
    leaves = [i for i, mode in enumerate(nodes["nodes_modes"]) if mode == "LEAF"]
    for leaf in leaves:
        for target in range(targets):
            if all_targets or rng.random() < 0.5:
                drawn[f"{prefix}_treeids"].append(nodes["nodes_treeids"][leaf])
                drawn[f"{prefix}_nodeids"].append(nodes["nodes_nodeids"][leaf])
                drawn[f"{prefix}_ids"].append(target)
                drawn[f"{prefix}_weights"].append(float(np.float32(rng.standard_normal())))
    return drawn


def ml_model(
    op_type: str,
    x: Array,
    outputs: Mapping[str, tuple[int, Sequence[int | str | None]]],
    version: int = 3,
    more: Mapping[str, Array] | None = None,
    **attributes: Any,
) -> onnx.ModelProto:
    """Build a model of one node that reads `x`, of any number of rows, and what `more` has."""
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    shape = ["rows", *x.shape[1:]] if x.ndim > 1 else list(x.shape)
    given = [helper.make_tensor_value_info("x", kind, shape)]
    for name, array in (more or {}).items():
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        given.append(helper.make_tensor_value_info(name, kind, array.shape))
    names = [value.name for value in given]
    node = helper.make_node(op_type, names, list(outputs), name="node", domain=ML, **attributes)
    results = [helper.make_tensor_value_info(n, *declared) for n, declared in outputs.items()]
    graph = helper.make_graph([node], "g", given, results)
    imports = [helper.make_opsetid("", 18), helper.make_opsetid(ML, version)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def agree(
    model: onnx.ModelProto, feeds: Mapping[str, Array], tolerance: float = 1e-6
) -> list[Array]:
    """Assert that the native backend agrees with onnxruntime, and that it runs all nodes.

    The tolerance is relative to the largest element of an output: leaf weights add in float32.
    """
    expected = onnxruntime_results(model, feeds)
    with compile_model(model) as program:
        domains = [plan for plan in program.explain() if plan.op_type.startswith(ML)]
        assert not [plan for plan in domains if plan.reason], domains
        for _ in range(2):
            got = program.run(dict(feeds))
            for info, value in zip(model.graph.output, expected, strict=True):
                if value.dtype.kind == "f":
                    close(got[info.name], value, tolerance)
                else:
                    np.testing.assert_array_equal(got[info.name], value)
    return expected
