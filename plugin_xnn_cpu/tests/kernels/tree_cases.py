"""Ensembles of decision trees; oracle: a walk in Python, which adds in the order of the kernel.

The kernel has no code of its own for instruction sets. No operator has scores of float64 for rows
of float32.
"""

from __future__ import annotations

import numpy as np
from edge_kit import Cases, edges

from narrowpass_xnn_cpu.native.library import extension

CASES = Cases()
ROWS = edges(8, 64)
"""Rows around walks of 8 at a time, and around the tiles of 64 that threads take."""
FEATURES = 3
AGGREGATES = ("sum", "average", "min", "max")
AT_MOST = 3


class Forest:
    """Random trees, laid out as the kernel reads them."""

    def __init__(self, rng, dtype, trees, depth, targets, *, single, at_most):
        word = {"f": "u4", "d": "u8"}[np.dtype(dtype).char]
        fields = [("threshold", dtype), ("test", "u4"), ("next", "u4", 2)]
        fields += [("unused", "u4")] if word == "u8" else []
        self.rng, self.depth, self.at_most, self.single = rng, depth, at_most, single
        self.rows, self.leaves = [], 0
        self.roots = np.array([self._add(depth) for _ in range(trees)], np.uint32)
        self.nodes = np.zeros(len(self.rows), np.dtype(fields, align=True))
        for at, (threshold, test, following, leaf) in enumerate(self.rows):
            self.nodes[at]["threshold"], self.nodes[at]["test"] = threshold, test
            self.nodes[at]["next"] = following
            if leaf is not None:
                self.nodes["threshold"].view()[at] = np.array(leaf, word).view(dtype)
        counts = np.ones(self.leaves, int) if single else rng.integers(0, 3, self.leaves)
        self.first = np.concatenate([[0], np.cumsum(counts)]).astype(np.uint32)
        kind = np.dtype([("weight", dtype), ("target", word)])
        self.weights = np.zeros(self.first[-1], kind)
        self.weights["weight"] = rng.standard_normal(self.first[-1])
        self.weights["target"] = rng.integers(0, targets, self.first[-1])

    def _add(self, levels):
        at = len(self.rows)
        self.rows.append(None)
        if levels and (levels == self.depth or self.rng.random() < 0.8):
            outcomes = AT_MOST if self.at_most else int(self.rng.integers(16))
            test = 16 * int(self.rng.integers(FEATURES)) + outcomes
            following = self._add(levels - 1), self._add(levels - 1)
            self.rows[at] = float(self.rng.integers(-2, 3)), test, following, None
        else:
            self.rows[at] = 0.0, 0, (at, at), self.leaves
            self.leaves += 1
        return at

    def leaf(self, root, x):
        """Return the number of the leaf that a row comes to."""
        at = root
        while self.rows[at][3] is None:
            threshold, test, following, _ = self.rows[at]
            value, outcomes = float(x[test >> 4]), test & 15
            taken = 8 if np.isnan(value) else 1 if value < threshold else 2
            taken = 4 if value > threshold else taken
            at = following[bool(outcomes & taken)]
        return self.rows[at][3]


def scores(forest, x, base, aggregate, dtype):
    """Return the results of rows, computed in `dtype`."""
    found = np.zeros((len(x), len(base)), dtype)
    choose = {"min": min, "max": max}.get(aggregate)
    for row, result in zip(x, found, strict=True):
        held = [None] * len(base)
        for root in forest.roots:
            leaf = forest.leaf(root, row)
            for weight, target in forest.weights[forest.first[leaf] : forest.first[leaf + 1]]:
                old = held[target]
                if choose:
                    held[target] = weight if old is None else choose(old, weight)
                else:
                    held[target] = weight if old is None else dtype(old + weight)
        for target, value in enumerate(held):
            total = dtype(0 if value is None else value)
            if aggregate == "average":
                total = dtype(total / dtype(len(forest.roots)))
            result[target] = total + base[target]
    return found


@CASES.of(
    "NP_TREES",
    rows=ROWS,
    trees=(1, 2, 7, 8, 9, 16, 17),
    depth=(0, 1, 2, 3, 6),
    targets=(1, 2, 3),
    aggregate=AGGREGATES,
    single=(False, True),
    at_most=(False, True),
    types=("ff", "df", "dd"),
    missing=(False, True),
)
def trees(kernel, rows, trees, depth, targets, aggregate, single, at_most, types, missing):
    dtype = np.dtype(types[0]).type
    forest = Forest(kernel.rng, dtype, trees, depth, targets, single=single, at_most=at_most)
    x = kernel.rng.integers(-3, 4, (rows, FEATURES)).astype(dtype)
    if missing:
        x[kernel.rng.random(x.shape) < 0.2] = np.nan
    base = kernel.rng.standard_normal(targets).astype(dtype)
    expected = scores(forest, x, base, aggregate, dtype).astype(types[1])
    params = extension().ffi.new(
        "struct np_trees_params *",
        {
            "rows": rows,
            "columns": FEATURES,
            "trees": trees,
            "targets": targets,
            "aggregate": AGGREGATES.index(aggregate),
            "at_most": at_most,
            "single": single,
            "levels": depth,
            "is_double": types[0] == "d",
            "double_out": types[1] == "d",
        },
    )
    packed = [np.ascontiguousarray(each).reshape(-1) for each in (forest.nodes, forest.weights)]
    given = [x, packed[0], forest.roots, packed[1], forest.first, base]
    kernel.expect(params, given, expected, workspace=expected.size * 8)
