"""Results that must have the same bits: those of a row, whether it runs alone or among others."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx

from narrowpass_testing.random_models._cases import Case
from narrowpass_testing.random_models._differences import difference
from narrowpass_testing.random_models._elements import Array
from narrowpass_testing.random_models._oracles import Values, run_onnxruntime
from narrowpass_testing.random_models._traits import DRAWN_BY_CHANCE

BATCH = "B"
"""The symbol of the axis of rows."""


def is_fixed(case: Case) -> bool:
    """Report whether nothing of a case is drawn when it runs."""
    return not {node.op_type for node in case.model.graph.node} & DRAWN_BY_CHANCE


def of_rows(feeds: Mapping[str, Array], rows: slice) -> dict[str, Array]:
    """Return some rows of each array."""
    return {name: np.ascontiguousarray(array[rows]) for name, array in feeds.items()}


def batched(case: Case, expected: Values) -> Case | None:
    """Return a case with a symbol for the axis of rows; None where its rows depend on each other.

    onnxruntime says so, of the first and of the last row alone, of the second half, and of all rows
    reversed.

    Args:
        case: any case.
        expected: the oracles' outputs for its feeds.
    """
    if len(case.model.graph.input) > len(case.feeds):
        return None  # some inputs have defaults, which are no rows
    counts = {array.shape[0] if array.ndim else 0 for array in case.feeds.values()}
    if len(counts) != 1 or min(counts) < 2 or not is_fixed(case):
        return None
    rows = counts.pop()
    values = {n: v for n, v in expected.items() if isinstance(v, np.ndarray)}
    if len(values) < len(case.model.graph.output):
        return None
    if any(v.ndim == 0 or v.shape[0] != rows for v in values.values()):
        return None
    # Arrays without elements fit anywhere for onnxruntime: it says nothing about rows then.
    graph = case.model.graph
    empty = any(0 in tensor.dims for tensor in graph.initializer)
    if empty or not all(array.size for array in (*case.feeds.values(), *values.values())):
        return None
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    for info in model.graph.input:
        info.type.tensor_type.shape.dim[0].dim_param = BATCH
    half = slice(rows // 2, rows)
    for part in (slice(0, 1), slice(rows - 1, rows), half, slice(None, None, -1)):
        found = run_onnxruntime(model, of_rows(case.feeds, part))
        if found is None:
            return None
        of_part = of_rows(values, part)
        if any(difference(found[n], v, None, case.slack) for n, v in of_part.items()):
            return None
    return Case(model, case.feeds, {}, case.slack)
