"""Encoding of decision trees as arrays, after checks of all indices and for cycles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from narrowpass.errors import AttributesError

Array = np.ndarray[Any, Any]

LESS, EQUAL, GREATER, UNORDERED = 1, 2, 4, 8
"""Outcomes of a comparison: ``NP_TREE_LESS``, ``NP_TREE_EQUAL`` and so on."""
AT_MOST = LESS | EQUAL

MODES = (AT_MOST, LESS, GREATER | EQUAL, GREATER, EQUAL, LESS | GREATER | UNORDERED)
"""Outcomes that take the true branch, by mode of TreeEnsemble: <=, <, >=, >, ==, !=."""
MEMBER = 6
"""The mode of a node that tests membership in a set."""

NAMES = {
    "BRANCH_LEQ": 0,
    "BRANCH_LT": 1,
    "BRANCH_GTE": 2,
    "BRANCH_GT": 3,
    "BRANCH_EQ": 4,
    "BRANCH_NEQ": 5,
    "LEAF": -1,
}
AGGREGATES = ("SUM", "AVERAGE", "MIN", "MAX")
"""In the order of ``NP_TREES_*``."""

_MOST_FEATURES = 1 << 28
_MAX_UNROLLED_LEVELS = 8
"""Depth up to which the kernel traverses all levels without testing for leaves."""


@dataclass(frozen=True)
class Links:
    """Nodes of all trees, as arrays indexed by node number.

    Attributes:
        features: int64 [nodes], the column of x that a node compares; 0 for leaves.
        thresholds: floats [nodes].
        outcomes: int64 [nodes], outcomes of the comparison that take the true branch.
        yes: int64 [nodes], the node of the true branch; of a leaf its own number.
        no: int64 [nodes], the node of the false branch; of a leaf its own number.
        roots: int64 [trees], the roots.
    """

    features: Array
    thresholds: Array
    outcomes: Array
    yes: Array
    no: Array
    roots: Array


@dataclass(frozen=True)
class Ensemble:
    """The arrays and parameters of the kernel; see ``trees/trees.h``.

    Attributes:
        nodes: records of thresholds, tests and successors.
        roots: uint32 [trees].
        weights: records of weights and targets.
        first: uint32 [leaves + 1], the first weight of each leaf.
        columns: least number of columns of x.
        at_most: whether all nodes compare by <= and take the false branch for NaN.
        single: whether each leaf has one weight.
        levels: depth of the deepest tree without the leaf; 0 above `_MAX_UNROLLED_LEVELS`.
    """

    nodes: Array
    roots: Array
    weights: Array
    first: Array
    columns: int
    at_most: bool
    single: bool
    levels: int


def ensemble(
    links: Links, owners: Array, targets: Array, weights: Array, count: int, dtype: np.dtype[Any]
) -> Ensemble:
    """Check the trees and encode them for the kernel.

    Args:
        links: the nodes.
        owners: int64 [weights], the leaf of each weight.
        targets: int64 [weights], the target of each weight.
        weights: floats [weights].
        count: number of targets.
        dtype: float32 or float64, of thresholds and weights.

    Raises:
        AttributesError: an index is out of range, there is a cycle, or a weight is not finite.
    """
    total = links.yes.size
    for what, numbers, most in (
        ("successor", links.yes, total),
        ("successor", links.no, total),
        ("root", links.roots, total),
        ("leaf of a weight", owners, total),
        ("target", targets, count),
        ("feature", links.features, _MOST_FEATURES),
    ):
        if numbers.size and (numbers.min() < 0 or numbers.max() >= most):
            raise AttributesError(f"a {what} is not below {most}")
    if not np.isfinite(weights).all():
        raise AttributesError("a weight is not finite")
    if not links.roots.size:
        raise AttributesError("there is no tree")
    itself = np.arange(total)
    leaves = (links.yes == itself) & (links.no == itself)
    levels = _levels(links, leaves)
    number = np.cumsum(leaves) - 1  # of each leaf among the leaves
    order = np.argsort(owners, kind="stable")
    kept = order[leaves[owners[order]]]  # weights of inner nodes are not used
    per_leaf = np.bincount(number[owners[kept]], minlength=int(leaves.sum()))
    inner = links.outcomes[~leaves]
    return Ensemble(
        _nodes(links, leaves, number, dtype),
        links.roots.astype(np.uint32),
        _weights(weights[kept], targets[kept], dtype),
        np.concatenate([[0], np.cumsum(per_leaf)]).astype(np.uint32),
        int(links.features[~leaves].max(initial=-1)) + 1,
        bool((inner == AT_MOST).all()),
        bool((per_leaf == 1).all()),
        levels if 0 < levels <= _MAX_UNROLLED_LEVELS else 0,
    )


def _levels(links: Links, leaves: Array) -> int:
    """Return the depth of the deepest tree without the leaf, by breadth-first traversal.

    Raises:
        AttributesError: there is a cycle.
    """
    level = np.unique(links.roots)
    for depth in range(links.yes.size + 1):
        level = level[~leaves[level]]
        if not level.size:
            return depth
        level = np.unique(np.concatenate([links.yes[level], links.no[level]]))
    raise AttributesError("a tree has a cycle")


def _nodes(links: Links, leaves: Array, number: Array, dtype: np.dtype[Any]) -> Array:
    fields = [("threshold", dtype), ("test", "u4"), ("next", "u4", 2)]
    if dtype.itemsize == 8:
        fields.append(("unused", "u4"))
    records = np.zeros(links.yes.size, fields)
    index = np.dtype(f"u{dtype.itemsize}")
    records["threshold"] = np.where(
        leaves, number.astype(index).view(dtype), links.thresholds.astype(dtype)
    )
    records["test"] = np.where(leaves, 0, links.features) * 16 + np.where(leaves, 0, links.outcomes)
    records["next"] = np.stack([links.no, links.yes], axis=1)
    return records


def _weights(weights: Array, targets: Array, dtype: np.dtype[Any]) -> Array:
    fields = [("weight", dtype), ("target", f"u{dtype.itemsize}")]
    records = np.zeros(weights.size, fields)
    records["weight"], records["target"] = weights, targets
    return records
