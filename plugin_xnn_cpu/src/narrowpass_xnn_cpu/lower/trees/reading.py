"""Reading of decision trees from the attributes of ai.onnx.ml operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from narrowpass.errors import AttributesError
from narrowpass_xnn_cpu.lower.op import Op
from narrowpass_xnn_cpu.lower.trees.ensemble import (
    EQUAL,
    MEMBER,
    MODES,
    NAMES,
    UNORDERED,
    Array,
    Links,
)

Weights = tuple[Array, Array, Array]
"""Leaf and target of each weight, and the weights."""


def floats(op: Op, name: str) -> Array:
    """Return a list of floats: the attribute ``name``, or the tensor ``name_as_tensor``."""
    tensor = op.get(f"{name}_as_tensor", None)
    if tensor is not None:
        return np.asarray(tensor.numpy()).reshape(-1)
    return np.asarray(op.get(name, ()), np.float32)


def _integers(op: Op, name: str) -> Array:
    return np.asarray(op.get(name, ()), np.int64)


def read_regressor(op: Op) -> tuple[Links, Weights]:
    """Read TreeEnsembleRegressor, whose nodes are identified by tree and node number.

    Raises:
        AttributesError: lists differ in length, or refer to nodes that do not exist.
    """
    trees, numbers = _integers(op, "nodes_treeids"), _integers(op, "nodes_nodeids")
    count = trees.size
    names = op.get("nodes_modes", ())
    unknown = set(names) - set(NAMES)
    if unknown:
        raise AttributesError(f"a node's mode is {min(unknown)}")
    modes = np.array([NAMES[name] for name in names], np.int64)
    thresholds, features = floats(op, "nodes_values"), _integers(op, "nodes_featureids")
    true, false = _integers(op, "nodes_truenodeids"), _integers(op, "nodes_falsenodeids")
    for what in (numbers, modes, thresholds, features, true, false):
        if what.size != count:
            raise AttributesError(f"{count} nodes have lists of {what.size}")
    find = _finder(trees, numbers)
    leaves = modes == -1
    itself = np.arange(count)
    yes, no = itself.copy(), itself.copy()
    yes[~leaves] = find(trees[~leaves], true[~leaves])
    no[~leaves] = find(trees[~leaves], false[~leaves])
    outcomes = _with_nan_tracking(np.array((*MODES, 0))[modes], op, count)
    links = Links(features, thresholds, outcomes, yes, no, _roots(trees, yes, no, leaves))
    owners = find(_integers(op, "target_treeids"), _integers(op, "target_nodeids"))
    targets, weights = _integers(op, "target_ids"), floats(op, "target_weights")
    if not owners.size == targets.size == weights.size:
        raise AttributesError("the lists of weights are not of one length")
    return links, (owners, targets, weights)


def _finder(trees: Array, numbers: Array) -> Callable[[Array, Array], Array]:
    """Return a function from trees and node numbers to indices of nodes."""
    if trees.size and (min(trees.min(), numbers.min()) < 0):
        raise AttributesError("a node has a negative number")
    if trees.size and max(trees.max(), numbers.max()) >= 1 << 31:
        raise AttributesError("a node's number has more than 31 bits")
    keys = trees << 32 | numbers
    order = np.argsort(keys, kind="stable")
    listed = keys[order]
    if (listed[1:] == listed[:-1]).any():
        raise AttributesError("two nodes of a tree have one number")

    def find(of: Array, wanted: Array) -> Array:
        if of.shape != wanted.shape:
            raise AttributesError("the lists of weights are not of one length")
        keys = of << 32 | wanted
        at = np.searchsorted(listed, keys)
        known = at < listed.size
        known[known] = listed[at[known]] == keys[known]
        if not known.all():
            raise AttributesError("a node is referred to that does not exist")
        found: Array = order[at]
        return found

    return find


def _roots(trees: Array, yes: Array, no: Array, leaves: Array) -> Array:
    """Return the root of each tree, in the order of the trees."""
    follows = np.zeros(trees.size, bool)
    follows[yes[~leaves]] = True
    follows[no[~leaves]] = True
    roots = np.flatnonzero(~follows)
    _, first = np.unique(trees, return_index=True)
    if not np.array_equal(np.sort(trees[roots]), np.sort(trees[first])):
        raise AttributesError("a tree has not one root")
    if (yes[~leaves] == np.flatnonzero(~leaves)).any() or (
        no[~leaves] == np.flatnonzero(~leaves)
    ).any():
        raise AttributesError("a branch of a node leads to the node itself")
    where = {int(trees[root]): int(root) for root in roots}
    return np.array([where[int(trees[at])] for at in np.sort(first)], np.int64)


def _with_nan_tracking(outcomes: Array, op: Op, count: int) -> Array:
    """Let NaN take the true branch at nodes with ``missing_value_tracks_true``."""
    tracks = _integers(op, "nodes_missing_value_tracks_true")
    if not tracks.size:
        return outcomes
    if tracks.size != count:
        raise AttributesError(f"{count} nodes have a list of {tracks.size}")
    found: Array = outcomes | np.where(tracks != 0, UNORDERED, 0)
    return found


def read_ensemble(op: Op) -> tuple[Links, Weights]:
    """Read TreeEnsemble, whose nodes and leaves are identified by index in two lists.

    Raises:
        AttributesError: lists differ in length, or refer to nodes that do not exist.
    """
    features = _integers(op, "nodes_featureids")
    count = features.size
    modes = np.asarray(_tensor(op, "nodes_modes"), np.int64)
    thresholds = _tensor(op, "nodes_splits")
    targets, weights = _integers(op, "leaf_targetids"), _tensor(op, "leaf_weights")
    if targets.size != weights.size:
        raise AttributesError("the lists of leaves are not of one length")
    sides = []
    for side in ("true", "false"):
        places, kinds = _integers(op, f"nodes_{side}nodeids"), _integers(op, f"nodes_{side}leafs")
        if not places.size == kinds.size == modes.size == thresholds.size == count:
            raise AttributesError(f"{count} nodes have lists of other lengths")
        most = np.where(kinds != 0, targets.size, count)
        if ((places < 0) | (places >= most)).any():
            raise AttributesError("a node is referred to that does not exist")
        sides.append(np.where(kinds != 0, count + places, places))
    if modes.size and (modes.min() < 0 or modes.max() > MEMBER):
        raise AttributesError("a node's mode is not from 0 to 6")
    leaves = np.arange(count, count + targets.size)
    outcomes = _with_nan_tracking(np.array((*MODES, EQUAL))[modes], op, count)
    padding = np.zeros(targets.size, np.int64)
    links = Links(
        np.concatenate([features, padding]),
        np.concatenate([thresholds, padding.astype(thresholds.dtype)]),
        np.concatenate([outcomes, padding]),
        np.concatenate([sides[0], leaves]),
        np.concatenate([sides[1], leaves]),
        _integers(op, "tree_roots"),
    )
    members = np.flatnonzero(modes == MEMBER)
    if members.size:
        links = _expand_membership(links, members, _sets(op, members.size))
    return links, (leaves, targets, weights)


def _tensor(op: Op, name: str) -> Array:
    tensor = op.get(name, None)
    if tensor is None:
        raise AttributesError(f"its attribute {name} is left out")
    return np.asarray(tensor.numpy()).reshape(-1)


def _sets(op: Op, count: int) -> list[Array]:
    """Return the membership sets in the order of their nodes; NaN terminates each."""
    values = _tensor(op, "membership_values")
    sets = np.split(values, np.flatnonzero(np.isnan(values)) + 1)
    found = [each[~np.isnan(each)] for each in sets if each.size]
    if len(found) != count:
        raise AttributesError(f"{count} nodes test membership, but there are {len(found)} sets")
    return found


def _expand_membership(links: Links, nodes: Array, sets: list[Array]) -> Links:
    """Replace each membership test by a chain of nodes that compare by ==."""
    total = links.yes.size
    columns: dict[str, list[Any]] = {
        "features": [], "thresholds": [], "outcomes": [], "yes": [], "no": []
    }  # fmt: skip
    thresholds, no, outcomes = links.thresholds.copy(), links.no.copy(), links.outcomes.copy()
    for node, members in zip(nodes.tolist(), sets, strict=True):
        if not members.size:
            raise AttributesError("a set of members is empty")
        thresholds[node] = members[0]
        last = int(links.no[node])
        if members.size == 1:
            continue
        # Only the last comparison decides the branch of NaN.
        tracks = int(outcomes[node]) & UNORDERED
        outcomes[node] = EQUAL
        no[node] = total + len(columns["yes"])
        for index, member in enumerate(members[1:].tolist(), 2):
            ends = index == members.size
            columns["features"].append(int(links.features[node]))
            columns["thresholds"].append(member)
            columns["outcomes"].append(EQUAL | tracks if ends else EQUAL)
            columns["yes"].append(int(links.yes[node]))
            columns["no"].append(last if ends else total + len(columns["no"]) + 1)
    return Links(
        np.concatenate([links.features, np.array(columns["features"], np.int64)]),
        np.concatenate([thresholds, np.array(columns["thresholds"], thresholds.dtype)]),
        np.concatenate([outcomes, np.array(columns["outcomes"], np.int64)]),
        np.concatenate([links.yes, np.array(columns["yes"], np.int64)]),
        np.concatenate([no, np.array(columns["no"], np.int64)]),
        links.roots,
    )
