"""The largest relative errors that tests allow, by kind of operator and type, with derivations.

`u` is half a unit in the last place of the type. A tolerance is relative to the largest element of
an output: that bounds elements that cancel, whose own relative error has no bound.
"""

from __future__ import annotations

from typing import NamedTuple

import onnx


class Tolerance(NamedTuple):
    """An allowed error and why it is that much."""

    relative: float
    reason: str


UNITS = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8, "float64": 2.0**-53}
"""u by type: 24, 11, 8 and 53 significant bits, rounded to nearest."""

EXACT = Tolerance(0.0, "elements are moved, compared or rounded to integers: no bit may differ")
ROUNDED = Tolerance(2 * UNITS["float32"], "one correctly rounded operation, in either order")
ACCUMULATED = Tolerance(
    168 * UNITS["float32"],
    "accumulators of n fp32 terms in two orders differ by at most 2 n u sum|a b|; for the "
    "n <= 1,000 normal numbers of these tests rounding errors grow as sqrt(n): about "
    "2 sqrt(1000) u of the largest element, times 2.6 for outliers",
)
"""For graphs, and for all operators that are not listed."""

EXACT_OPERATORS = {
    *("Abs", "Ceil", "Clip", "Floor", "Identity", "Max", "Min", "Neg", "Relu", "Round"),
    *("Concat", "Expand", "Flatten", "Gather", "Pad", "Reshape", "Slice", "Split", "Squeeze"),
    *("DepthToSpace", "SpaceToDepth", "Tile", "Transpose", "Unsqueeze"),
    *("GlobalMaxPool", "MaxPool"),
}
ROUNDED_OPERATORS = frozenset(("Add", "Mul", "Sub"))


def tolerance_of(model: onnx.ModelProto) -> Tolerance:
    """Return the float32 tolerance of a model: of its only operator, or of a graph."""
    if len(model.graph.node) == 1:
        kind = model.graph.node[0].op_type
        if kind in EXACT_OPERATORS:
            return EXACT
        if kind in ROUNDED_OPERATORS:
            return ROUNDED
    return ACCUMULATED
