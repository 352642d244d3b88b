"""Results that must have the same bits: in a row alone, at each level of instruction sets."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
import onnx

from differential.cases import Case
from differential.elements import Array
from differential.oracles import Values, difference, run_onnxruntime
from differential.traits import DRAWN_BY_CHANCE, EXACT

BATCH = "B"
"""The symbol of the axis of rows."""

LEVELLED = EXACT | {
    "Add",
    "Conv",
    "ConvInteger",
    "DequantizeLinear",
    "DynamicQuantizeLinear",
    "Gemm",
    "MatMul",
    "MatMulInteger",
    "Mul",
    "QLinearConv",
    "QLinearMatMul",
    "QuantizeLinear",
    "Sub",
}
"""Operators whose results have the same bits from AVX2 on: reductions of rows are not among them,
nor are functions, whose polynomials depend on the instruction set."""


def other_bits(got: Values, expected: Values) -> str:
    """Say which output has other bits than the same output elsewhere; "" where none has."""
    for name, value in expected.items():
        if not isinstance(value, np.ndarray) or value.dtype.kind in "OUS" or name not in got:
            continue
        found = np.asarray(got[name])
        if found.dtype != value.dtype or found.shape != value.shape:
            return f"{name}: {found.dtype}{list(found.shape)}, not {value.dtype}{list(value.shape)}"
        if found.tobytes() != value.tobytes():
            size = value.dtype.itemsize
            pairs = (np.frombuffer(a.tobytes(), f"V{size}") for a in (found, value))
            wrong = sum(a != b for a, b in zip(*pairs, strict=True))
            return f"{name}: {wrong} of {value.size} elements have other bits"
    return ""


def is_fixed(case: Case) -> bool:
    """Report whether nothing of a case is drawn when it runs."""
    return not {node.op_type for node in case.model.graph.node} & DRAWN_BY_CHANCE


def is_levelled(case: Case) -> bool:
    """Report whether results have the same bits at all levels from AVX2 on."""
    return {node.op_type for node in case.model.graph.node} <= LEVELLED


def digest(values: Mapping[str, Array]) -> str:
    """Return a digest of outputs."""
    found = hashlib.sha256()
    for name in sorted(values):
        value = np.asarray(values[name])
        found.update(f"{name} {value.dtype} {value.shape}".encode())
        found.update(value.tobytes())
    return found.hexdigest()[:20]


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
