"""Lowers ensembles of decision trees to one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass.errors import BackendError
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.plan.step import Run, Shape, Sizing, Slot, Step, elements
from narrowpass_xnn_cpu.lower.builder import Builder, storage_dtype
from narrowpass_xnn_cpu.lower.op import Op, lowers, needs
from narrowpass_xnn_cpu.lower.trees.ensemble import AGGREGATES, Array, Ensemble, ensemble
from narrowpass_xnn_cpu.lower.trees.reading import by_identifiers, by_places, floats
from narrowpass_xnn_cpu.native.library import extension

_NUMBERED = ("AVERAGE", "SUM", "MIN", "MAX")
"""Aggregates in the order in which TreeEnsemble numbers them."""


class Trees(Step):
    """Scores of rows by all trees.

    Args:
        given: float32 or float64 [rows, columns].
        forest: the trees.
        base: float [targets], of the type of the thresholds.
        aggregate: one of `AGGREGATES`.
        output: float32 or float64 [rows, targets].
    """

    def __init__(
        self, given: Slot, forest: Ensemble, base: Array, aggregate: str, output: Slot
    ) -> None:
        constants = forest.nodes, forest.roots, forest.weights, forest.first, base
        slots = [
            Slot(f"{output.name} (trees)", np.dtype(np.uint8), _bytes(array)) for array in constants
        ]
        super().__init__([given, *slots], output)
        self.kernel = f"trees {base.dtype.name}"
        self._forest = forest
        self._aggregate = aggregate
        self._targets = base.size
        self._double = base.dtype.itemsize == 8

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Step.size`."""
        rows, columns = shapes[0]
        result = rows, self._targets
        if columns < self._forest.columns:
            raise BackendError(
                f"its trees compare {self._forest.columns} features, and x has only {columns}"
            )
        if not elements(result):
            return Run(result)
        double_out = self.output.dtype.itemsize == 8
        params = extension().ffi.new(
            "struct np_trees_params *",
            (
                rows,
                columns,
                self._forest.roots.size,
                self._targets,
                AGGREGATES.index(self._aggregate),
                self._forest.at_most,
                self._forest.single,
                self._forest.levels,
                self._double,
                double_out,
            ),
        )
        workspace = elements(result) * 8 if self._double and not double_out else 0
        return Run(result, "NP_TREES", params=params, workspace=workspace)


def _bytes(array: Array) -> Array:
    dense = np.ascontiguousarray(array).reshape(-1)
    # No slot is of 0 bytes: the kernel is given an address in any case.
    return dense.view(np.uint8) if dense.size else np.zeros(8, np.uint8)


def _read(op: Op, dtype: np.dtype[Any]) -> tuple[Ensemble, Array, str]:
    """Give the trees, what is added to each target, and the aggregate.

    Raises:
        ValueError: attributes that are no ensemble of trees.
    """
    count = int(op.get("n_targets", 1))
    if not 0 < count < 1 << 31:
        raise ValueError(f"n_targets is {count}")
    if op.kind == "TreeEnsemble":
        number = int(op.get("aggregate_function", 1))
        if not 0 <= number < len(_NUMBERED):
            raise ValueError(f"aggregate_function is {number}")
        aggregate, (links, weights) = _NUMBERED[number], by_places(op)
        base = np.zeros(0)
    else:
        aggregate = op.get("aggregate_function", "SUM")
        if aggregate not in AGGREGATES:
            raise ValueError(f"aggregate_function is {aggregate}")
        links, weights = by_identifiers(op)
        base = floats(op, "base_values")
    forest = ensemble(links, *weights, count, dtype)
    return forest, (base if base.size == count else np.zeros(count)).astype(dtype), aggregate


def _dtype(op: Op, facts: Facts) -> np.dtype[Any]:
    """Give the type that features are compared in."""
    return np.dtype(np.float64 if facts.dtype(op.input(0)) == ir.DataType.DOUBLE else np.float32)


def _check(op: Op, facts: Facts) -> str | None:
    given = op.required(0)
    reason = needs(given, facts, ir.DataType.FLOAT, ir.DataType.DOUBLE)
    if reason:
        return reason
    if facts.dtype(given) not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        return f"{given.name!r} is narrow; the kernel is for float32 and double"
    if facts.rank(given) != 2:
        return f"{given.name!r} has not two dimensions"
    if op.get("post_transform", "NONE") not in ("NONE", 0):
        return "its post_transform is not NONE"
    doubles = (f"{name}_as_tensor" for name in ("nodes_values", "target_weights", "base_values"))
    if _dtype(op, facts).itemsize == 4 and any(op.get(name, None) is not None for name in doubles):
        return "its trees are of double, its features of float32"
    _read(op, _dtype(op, facts))  # families.reason says what is wrong with them
    return None


@lowers("TreeEnsemble", "TreeEnsembleRegressor", check=_check, domain="ai.onnx.ml")
def _lower(op: Op, builder: Builder) -> None:
    forest, base, aggregate = _read(op, _dtype(op, builder.facts))
    output = Slot(op.output.name or "", storage_dtype(builder.facts, op.output))
    builder.emit(Trees(builder.at(op.required(0)), forest, base, aggregate, output), op.output)
