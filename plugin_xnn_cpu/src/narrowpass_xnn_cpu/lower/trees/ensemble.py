"""An ensemble of decision trees as arrays, checked: no walk leaves them or goes in a circle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from narrowpass.errors import AttributesError

Array = np.ndarray[Any, Any]

LESS, EQUAL, GREATER, UNORDERED = 1, 2, 4, 8
"""``NP_TREE_LESS`` and so on."""
AT_MOST = LESS | EQUAL

MODES = (AT_MOST, LESS, GREATER | EQUAL, GREATER, EQUAL, LESS | GREATER | UNORDERED)
"""Outcomes that go to the true branch, by the number of the mode: <=, <, >=, >, ==, !=."""
MEMBER = 6
"""The mode of a node that asks for a member of a set."""

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
_FEW_LEVELS = 8
"""Levels that are walked without a look at whether all walks have ended."""


class TreeError(AttributesError):
    """Attributes that are no ensemble of trees; the message says why."""


@dataclass(frozen=True)
class Links:
    """Nodes of all trees, by number.

    Attributes:
        features: int64 [nodes], which column of x a node compares; 0 for leaves.
        thresholds: [nodes], of floats.
        outcomes: int64 [nodes], those that go to `yes`.
        yes: int64 [nodes], the number of the node that follows; of a leaf its own.
        no: the same.
        roots: int64 [trees].
    """

    features: Array
    thresholds: Array
    outcomes: Array
    yes: Array
    no: Array
    roots: Array


@dataclass(frozen=True)
class Ensemble:
    """What the kernel reads; see ``trees/trees.h``.

    Attributes:
        nodes: records of thresholds, tests and successors.
        roots: uint32 [trees].
        weights: records of weights and targets.
        first: uint32 [leaves + 1], the first weight of each leaf.
        columns: how many features x must have at least.
        at_most: whether all nodes compare by <= and send NaN to the false branch.
        single: whether each leaf has one weight.
        levels: nodes of the longest walk but the leaf; 0 where these are many.
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
    """Check the trees and write them as the kernel reads them.

    Args:
        links: the nodes.
        owners: int64 [weights], the leaf that each weight is of.
        targets: int64 [weights], the target that each is for.
        weights: [weights], of floats.
        count: of targets.
        dtype: float32 or float64, of thresholds and weights.

    Raises:
        TreeError: a number is out of range, a walk would not end, or a weight is not finite.
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
            raise TreeError(f"a {what} is not one of {most}")
    if not np.isfinite(weights).all():
        raise TreeError("a weight is not finite")
    if not links.roots.size:
        raise TreeError("there is no tree")
    itself = np.arange(total)
    leaves = (links.yes == itself) & (links.no == itself)
    levels = _levels(links, leaves)
    number = np.cumsum(leaves) - 1  # of each leaf among the leaves
    order = np.argsort(owners, kind="stable")
    kept = order[leaves[owners[order]]]  # weights of inner nodes are for nobody
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
        levels if 0 < levels <= _FEW_LEVELS else 0,
    )


def _levels(links: Links, leaves: Array) -> int:
    """Give the nodes of the longest walk but the leaf, level by level from the roots.

    Raises:
        TreeError: a walk does not end.
    """
    level = np.unique(links.roots)
    for depth in range(links.yes.size + 1):
        level = level[~leaves[level]]
        if not level.size:
            return depth
        level = np.unique(np.concatenate([links.yes[level], links.no[level]]))
    raise TreeError("a branch of a tree leads back to a node before it")


def _nodes(links: Links, leaves: Array, number: Array, dtype: np.dtype[Any]) -> Array:
    fields = [("threshold", dtype), ("test", "u4"), ("next", "u4", 2)]
    if dtype.itemsize == 8:
        fields.append(("unused", "u4"))
    made = np.zeros(links.yes.size, fields)
    index = np.dtype(f"u{dtype.itemsize}")
    made["threshold"] = np.where(
        leaves, number.astype(index).view(dtype), links.thresholds.astype(dtype)
    )
    made["test"] = np.where(leaves, 0, links.features) * 16 + np.where(leaves, 0, links.outcomes)
    made["next"] = np.stack([links.no, links.yes], axis=1)
    return made


def _weights(weights: Array, targets: Array, dtype: np.dtype[Any]) -> Array:
    fields = [("weight", dtype), ("target", f"u{dtype.itemsize}")]
    made = np.zeros(weights.size, fields)
    made["weight"], made["target"] = weights, targets
    return made
