"""Lowering of TreeEnsemble and TreeEnsembleRegressor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass.errors import AttributesError, BackendError
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.plan.step import Run, Shape, Sizing, Slot, elements
from narrowpass_xnn_cpu.lower.builder import Builder, storage_dtype
from narrowpass_xnn_cpu.lower.op import Op, check_dtype
from narrowpass_xnn_cpu.lower.rule import Rule, rules
from narrowpass_xnn_cpu.lower.trees.ensemble import AGGREGATES, Array, Ensemble, ensemble
from narrowpass_xnn_cpu.lower.trees.reading import floats, read_ensemble, read_regressor
from narrowpass_xnn_cpu.lowered.op import Computation, LoweredOp, PackedStep
from narrowpass_xnn_cpu.lowered.record import record
from narrowpass_xnn_cpu.native.library import extension

_NUMBERED = ("AVERAGE", "SUM", "MIN", "MAX")
"""Aggregates in the order in which TreeEnsemble numbers them."""


@record
class Trees(Computation):
    """Scores of rows by an ensemble of decision trees.

    Operands are float32 or float64 rows [rows, columns], then constants: nodes, roots, weights,
    the first node of each tree, and the base [targets], of the type of the thresholds.

    Attributes:
        columns: of the rows that the trees compare.
        trees: their number.
        targets: scores of a row.
        aggregate: one of `AGGREGATES`.
        at_most: whether a node compares by ≤, and not <.
        single: whether all weights of a leaf are of one target.
        levels: of the deepest tree.
        double: whether thresholds are float64.
    """

    mnemonic = "trees"
    columns: int
    trees: int
    targets: int
    aggregate: str
    at_most: bool
    single: bool
    levels: int
    double: bool

    def kernel_name(self, op: LoweredOp, packed: Any) -> str:
        """See `Computation.kernel_name`."""
        return f"trees {'float64' if self.double else 'float32'}"

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        rows, columns = shapes[0]
        result = rows, self.targets
        if columns < self.columns:
            raise BackendError(
                f"its trees compare {self.columns} features, and x has only {columns}"
            )
        if not elements(result):
            return Run(result)
        double_out = step.op.output.dtype.itemsize == 8
        params = extension().ffi.new(
            "struct np_trees_params *",
            (
                rows,
                columns,
                self.trees,
                self.targets,
                AGGREGATES.index(self.aggregate),
                self.at_most,
                self.single,
                self.levels,
                self.double,
                double_out,
            ),
        )
        workspace = elements(result) * 8 if self.double and not double_out else 0
        return Run(result, "NP_TREES", params=params, workspace=workspace)


def _bytes(array: Array) -> Array:
    dense = np.ascontiguousarray(array).reshape(-1)
    # A slot has at least 8 bytes, so that the kernel gets a valid address.
    return dense.view(np.uint8) if dense.size else np.zeros(8, np.uint8)


def _read(op: Op, dtype: np.dtype[Any]) -> tuple[Ensemble, Array, str]:
    """Return the trees, the base value of each target, and the aggregate function.

    Raises:
        AttributesError: the attributes are not valid trees.
    """
    count = int(op.get("n_targets", 1))
    if not 0 < count < 1 << 31:
        raise AttributesError(f"n_targets is {count}")
    if op.kind == "TreeEnsemble":
        number = int(op.get("aggregate_function", 1))
        if not 0 <= number < len(_NUMBERED):
            raise AttributesError(f"aggregate_function is {number}")
        aggregate, (links, weights) = _NUMBERED[number], read_ensemble(op)
        base = np.zeros(0)
    else:
        aggregate = op.get("aggregate_function", "SUM")
        if aggregate not in AGGREGATES:
            raise AttributesError(f"aggregate_function is {aggregate}")
        links, weights = read_regressor(op)
        base = floats(op, "base_values")
    forest = ensemble(links, *weights, count, dtype)
    return forest, (base if base.size == count else np.zeros(count)).astype(dtype), aggregate


def _dtype(op: Op, facts: Facts) -> np.dtype[Any]:
    """Return the dtype of comparisons."""
    return np.dtype(np.float64 if facts.dtype(op.input(0)) == ir.DataType.DOUBLE else np.float32)


def _check(op: Op, facts: Facts) -> str | None:
    given = op.required(0)
    reason = check_dtype(given, facts, ir.DataType.FLOAT, ir.DataType.DOUBLE)
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
    _read(op, _dtype(op, facts))  # `rules.reason` reports an AttributesError
    return None


def _lower(op: Op, builder: Builder) -> None:
    forest, base, aggregate = _read(op, _dtype(op, builder.facts))
    output = Slot(op.output.name or "", storage_dtype(builder.facts, op.output))
    arrays = forest.nodes, forest.roots, forest.weights, forest.first, base
    constants = [builder.constant_slot(f"{output.name} (trees)", _bytes(a)) for a in arrays]
    trees = Trees(
        columns=int(forest.columns),
        trees=forest.roots.size,
        targets=base.size,
        aggregate=aggregate,
        at_most=bool(forest.at_most),
        single=bool(forest.single),
        levels=int(forest.levels),
        double=base.dtype.itemsize == 8,
    )
    builder.emit(trees, [builder.slot_of(op.required(0)), *constants], output, op.output)


RULES: tuple[Rule, ...] = (
    *rules(
        "TreeEnsemble", "TreeEnsembleRegressor", lower=_lower, check=_check, domain="ai.onnx.ml"
    ),
)
