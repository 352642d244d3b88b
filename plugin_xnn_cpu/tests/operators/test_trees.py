"""Ensembles of decision trees, against onnxruntime's kernels and onnx's evaluator."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from tree_kit import MODES, agree, leaf_weights, ml_model, tree_nodes
from xnn_kit import compile_model

from narrowpass.errors import BackendError

pytest.importorskip("onnxruntime")

SCORES = {"y": (TensorProto.FLOAT, [None, None])}
BOTH = {"label": (TensorProto.INT64, [None]), "y": (TensorProto.FLOAT, [None, None])}


def rows_of(rng, rows, features, dtype=np.float32, *, missing=False):
    x = rng.integers(-3, 4, (rows, features)).astype(dtype)
    if missing:
        x[rng.random(x.shape) < 0.2] = np.nan
    return x


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float", "double"])
@pytest.mark.parametrize("rows", [1, 5, 8, 9, 200])
def test_regressors_of_random_trees(rows, dtype):
    for seed in range(12):
        rng = np.random.default_rng([seed, rows])
        targets = int(rng.integers(1, 4))
        nodes = tree_nodes(rng, int(rng.integers(1, 20)), int(rng.integers(0, 7)), 6)
        # onnxruntime leaves out the base of a target that no leaf has a weight for.
        every = targets == 1 or seed % 3 > 0
        base = {"base_values": rng.standard_normal(targets).tolist()} if every else {}
        model = ml_model(
            "TreeEnsembleRegressor",
            rows_of(rng, rows, 6, dtype),
            SCORES,
            n_targets=targets,
            aggregate_function=("SUM", "AVERAGE", "MIN", "MAX")[seed % 4],
            **base,
            **nodes,
            **leaf_weights(rng, nodes, targets, all_targets=every),
        )
        agree(model, {"x": rows_of(rng, rows, 6, dtype, missing=seed % 2 == 0)})


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_of_comparison(mode):
    """With equal, infinite and missing features, tracked to the true branch or not."""
    x = np.array([[-np.inf], [-1], [0], [1], [np.inf], [np.nan]], np.float32)
    rng = np.random.default_rng(0)
    for tracks in (False, True):
        nodes = tree_nodes(rng, 3, 3, 1, [mode], tracks=tracks)
        model = ml_model(
            "TreeEnsembleRegressor", x, SCORES, n_targets=1, **nodes, **leaf_weights(rng, nodes, 1)
        )
        agree(model, {"x": x})


def test_scores_do_not_depend_on_other_rows_or_on_threads():
    rng = np.random.default_rng(1)
    nodes = tree_nodes(rng, 50, 8, 10)
    x = rows_of(rng, 300, 10)
    model = ml_model(
        "TreeEnsembleRegressor", x, SCORES, n_targets=1, **nodes, **leaf_weights(rng, nodes, 1)
    )
    with compile_model(model, threads=1) as alone, compile_model(model, threads=3) as several:
        whole = alone.run({"x": x})["y"]
        np.testing.assert_array_equal(several.run({"x": x})["y"], whole)
        for row in range(0, 300, 37):
            np.testing.assert_array_equal(alone.run({"x": x[row : row + 1]})["y"][0], whole[row])


def test_doubles_in_tensors():
    rng = np.random.default_rng(2)
    nodes = tree_nodes(rng, 10, 5, 4)
    weights = leaf_weights(rng, nodes, 1)
    values = np.array(nodes.pop("nodes_values"), np.float64) + 1e-12
    exact = np.array(weights.pop("target_weights"), np.float64) + 1e-12
    x = rows_of(rng, 20, 4, np.float64)
    model = ml_model(
        "TreeEnsembleRegressor",
        x,
        SCORES,
        nodes_values_as_tensor=numpy_helper.from_array(values),
        n_targets=1,
        target_weights_as_tensor=numpy_helper.from_array(exact),
        **nodes,
        **weights,
    )
    agree(model, {"x": x})


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.int32])
def test_classifiers_of_several_classes(transform, dtype):
    for seed, labels in itertools.product(range(4), ([0, 1, 2], [7, -3, 5, 2])):
        rng = np.random.default_rng(seed)
        nodes = tree_nodes(rng, 9, 5, 6)
        weights = leaf_weights(rng, nodes, len(labels), "class")
        base = {} if seed % 2 else {"base_values": rng.standard_normal(len(labels)).tolist()}
        x = rows_of(rng, 30, 6, dtype)
        named = {"classlabels_int64s": labels, "post_transform": transform}
        model = ml_model("TreeEnsembleClassifier", x, BOTH, **base, **named, **nodes, **weights)
        agree(model, {"x": x})


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("base", [[], [0.1]])
def test_classifiers_of_two_classes_with_one_score(transform, shares, base):
    rng = np.random.default_rng(3)
    nodes = tree_nodes(rng, 5, 4, 6)
    weights = leaf_weights(rng, nodes, 1, "class")
    if shares:
        weights["class_weights"] = [abs(weight) / 5 for weight in weights["class_weights"]]
    named = {"classlabels_int64s": [4, 9], "post_transform": transform}
    if base:
        named["base_values"] = base
    x = rows_of(rng, 40, 6)
    model = ml_model("TreeEnsembleClassifier", x, BOTH, **named, **nodes, **weights)
    label, _ = agree(model, {"x": x})
    assert set(label) == {4, 9}


def test_labels_that_are_strings():
    rng = np.random.default_rng(4)
    nodes = tree_nodes(rng, 9, 5, 6)
    weights = leaf_weights(rng, nodes, 3, "class")
    named = {"classlabels_strings": ["no", "maybe", "yes"]}
    outputs = {"label": (TensorProto.STRING, [None]), "y": (TensorProto.FLOAT, [None, None])}
    x = rows_of(rng, 30, 6)
    model = ml_model("TreeEnsembleClassifier", x, outputs, **named, **nodes, **weights)
    label, _ = agree(model, {"x": x})
    assert len(set(label)) > 1


def ensemble_of_version_5(rng, features, *, dtype, members):
    """Return random trees as TreeEnsemble lists them: nodes and leaves apart, members in sets."""
    nodes = tree_nodes(rng, 6, 4, features, MODES, tracks=True)
    inner = [i for i, mode in enumerate(nodes["nodes_modes"]) if mode != "LEAF"]
    leaves = [i for i, mode in enumerate(nodes["nodes_modes"]) if mode == "LEAF"]
    place = {node: at for at, node in enumerate(inner)} | {n: at for at, n in enumerate(leaves)}
    true, false = ([nodes[f"nodes_{side}nodeids"][i] for i in inner] for side in ("true", "false"))
    modes = np.array([MODES.index(nodes["nodes_modes"][i]) for i in inner], np.uint8)
    sets = []
    if members:
        chosen = rng.random(len(inner)) < 0.5
        modes[chosen] = 6
        for _ in range(int(chosen.sum())):
            some = rng.choice(np.arange(-3, 4), int(rng.integers(1, 5)), replace=False)
            sets += [*some.tolist(), np.nan]
    roots = [nodes["nodes_treeids"].index(tree) for tree in range(6)]
    tensor = {
        "nodes_splits": np.array([nodes["nodes_values"][i] for i in inner], dtype),
        "nodes_modes": modes,
        "leaf_weights": rng.standard_normal(len(leaves)).astype(dtype),
    }
    if sets:
        tensor["membership_values"] = np.array(sets, dtype)
    return {
        "tree_roots": [place[root] for root in roots],
        "nodes_featureids": [nodes["nodes_featureids"][i] for i in inner],
        "nodes_truenodeids": [place[i] for i in true],
        "nodes_falsenodeids": [place[i] for i in false],
        "nodes_trueleafs": [int(i in leaves) for i in true],
        "nodes_falseleafs": [int(i in leaves) for i in false],
        "nodes_missing_value_tracks_true": [
            nodes["nodes_missing_value_tracks_true"][i] for i in inner
        ],
        "leaf_targetids": rng.integers(0, 2, len(leaves)).tolist(),
        **{name: numpy_helper.from_array(array, name) for name, array in tensor.items()},
    }


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float", "double"])
@pytest.mark.parametrize("members", [False, True])
@pytest.mark.parametrize("aggregate", range(4))
def test_tree_ensembles_of_version_5(dtype, members, aggregate):
    for seed in range(4):
        rng = np.random.default_rng([seed, aggregate])
        attributes = ensemble_of_version_5(rng, 5, dtype=dtype, members=members)
        x = rows_of(rng, 40, 5, dtype, missing=not members)
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        model = ml_model(
            "TreeEnsemble",
            x,
            {"y": (kind, [None, None])},
            version=5,
            n_targets=2,
            aggregate_function=aggregate,
            post_transform=0,
            **attributes,
        )
        agree(model, {"x": x})


def changed(nodes, weights, **lists):
    rng = np.random.default_rng(5)
    x = rows_of(rng, 3, 2)
    return ml_model("TreeEnsembleRegressor", x, SCORES, **{**nodes, **weights, **lists})


BROKEN = {
    "a circle": {"nodes_truenodeids": [0, 0, 0]},
    "a node that is not there": {"nodes_truenodeids": [8, 0, 0]},
    "a leaf that is not there": {"target_nodeids": [1, 9]},
    "a target that is not there": {"target_ids": [0, 3]},
    "a short list": {"nodes_featureids": [0, 0]},
    "an unknown mode": {"nodes_modes": ["BRANCH_LIKE", "LEAF", "LEAF"]},
    "a negative feature": {"nodes_featureids": [-1, 0, 0]},
    "infinite weights": {"target_weights": [float("inf"), 1.0]},
}


@pytest.mark.parametrize("lists", BROKEN.values(), ids=BROKEN)
def test_attributes_that_are_no_trees_have_no_kernel(lists):
    nodes = {
        "nodes_treeids": [0, 0, 0],
        "nodes_nodeids": [0, 1, 2],
        "nodes_featureids": [0, 0, 0],
        "nodes_values": [0.5, 0.0, 0.0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0],
    }
    weights = {"target_treeids": [0, 0], "target_nodeids": [1, 2], "target_ids": [0, 0]}
    model = changed(nodes, {**weights, "target_weights": [1.0, 2.0]}, **lists)
    try:
        with compile_model(model) as program:
            reasons = [plan.reason for plan in program.explain()]
    except BackendError:
        return  # the evaluator does not take it either
    assert reasons[0].startswith("its attributes are not valid"), reasons


def test_too_few_columns_are_an_error():
    rng = np.random.default_rng(6)
    nodes = tree_nodes(rng, 3, 3, 4)
    x = rows_of(rng, 3, 4)
    model = ml_model(
        "TreeEnsembleRegressor", x, SCORES, n_targets=1, **nodes, **leaf_weights(rng, nodes, 1)
    )
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "columns"
    with compile_model(model) as program:
        highest = max(nodes["nodes_featureids"]) + 1
        with pytest.raises(BackendError, match=f"compare {highest} features"):
            program.run({"x": x[:, :1]})


def test_models_without_rows():
    rng = np.random.default_rng(7)
    nodes = tree_nodes(rng, 3, 3, 4)
    x = rows_of(rng, 0, 4)
    model = ml_model(
        "TreeEnsembleRegressor", x, SCORES, n_targets=1, **nodes, **leaf_weights(rng, nodes, 1)
    )
    with compile_model(model) as program:
        assert program.run({"x": x})["y"].shape == (0, 1)
