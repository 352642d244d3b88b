"""Multiplication by a row, fused into the quantization of its result."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from qdq_graph import QdqGraph
from xnn_kit import compile_model

SCALE, ZERO = 0.03, -7


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def multiplied(
    shape: tuple[int | str, ...],
    row: np.ndarray,
    *,
    swapped: bool = False,
    shown: bool = False,
    unsigned: bool = False,
) -> ir.Model:
    """Build dequantize(quantize(x times a row))."""
    graph = QdqGraph(unsigned=unsigned)
    x, factors = graph.input(shape), graph.constant(row)
    y = graph.node("Mul", *((factors, x) if swapped else (x, factors)))
    if shown:
        graph.output(y)
    graph.output(graph.quantize(y, SCALE, ZERO))
    return graph.model()


def bytes_of(values: np.ndarray) -> np.ndarray:
    """Quantize as ONNX says, by numpy: float32 division, halves to even; NaN is the least byte."""
    whole = np.rint(values / np.float32(SCALE))
    whole = np.where(np.isnan(whole), -1e9, whole)
    return np.clip(whole + ZERO, -128, 127).astype(np.int8)


def as_floats(values: np.ndarray) -> np.ndarray:
    return (bytes_of(values).astype(np.int32) - ZERO).astype(np.float32) * np.float32(SCALE)


def kernels(model: ir.Model) -> Counter[tuple[str, str]]:
    return Counter((plan.op_type, plan.kernel) for plan in compile_model(model).explain())


FORMS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "a row": ((3, 5), (5,), {}),
    "a row of more axes": ((2, 3, 5), (1, 1, 5), {}),
    "a row first": ((2, 3, 5), (5,), {"swapped": True}),
    "one column": ((4, 1), (1,), {}),
    "one axis": ((9,), (9,), {}),
    "unsigned": ((3, 5), (5,), {"unsigned": True}),
    # A tile has 16384 elements: it ends within a row, and a row goes on in the next one.
    "several tiles": ((331, 101), (101,), {}),
    "rows above a tile": ((2, 20000), (20000,), {}),
    "no rows": ((0, 5), (5,), {}),
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("dims", "row", "options"), FORMS.values(), ids=FORMS)
def test_bytes_equal_those_of_two_nodes(dims, row, options, threads):
    """Multiplication rounds to float32 before the division, as two nodes do."""
    shape = ("N", *dims[1:]) if len(dims) > 1 else dims
    model = multiplied(shape, numbers(*row, seed=1), **options)
    x = numbers(*dims) * 3
    program = compile_model(model, threads=threads)
    assert ("Mul", "quantize") in {(plan.op_type, plan.kernel) for plan in program.explain()}
    (got,) = program.run({"x": x}).values()
    assert np.array_equal(got, as_floats(x * numbers(*row, seed=1)))


def test_nonfinite_numbers():
    row = np.float32([1, 0, -1, np.inf, 1e30])
    x = np.float32([[np.nan, np.inf, np.inf, 0, 1e30], [np.inf, 0, -np.inf, -1, -1e30]])
    (got,) = compile_model(multiplied(("N", 5), row)).run({"x": x}).values()
    with np.errstate(invalid="ignore", over="ignore"):
        assert np.array_equal(got, as_floats(x * row))


def test_other_sizes_run_by_run():
    program = compile_model(multiplied(("N", 5), numbers(5, seed=1)))
    for count in (3, 0, 4000, 1):
        x = numbers(count, 5, seed=count)
        (got,) = program.run({"x": x}).values()
        assert np.array_equal(got, as_floats(x * numbers(5, seed=1)))


APART: dict[str, tuple[tuple[int | str, ...], tuple[int, ...], dict[str, Any]]] = {
    "other readers": (("N", 5), (5,), {"shown": True}),
    "a column": (("N", 3, 5), (3, 1), {}),
    "one number": (("N", 5), (1,), {}),
    "a width that is not known": (("N", "M"), (5,), {}),
    "a row that adds axes": (("N", 5), (1, 1, 5), {}),
}


@pytest.mark.parametrize(("shape", "row", "options"), APART.values(), ids=APART)
def test_factors_that_are_no_row_are_not_fused(shape, row, options):
    model = multiplied(shape, numbers(*row, seed=1), **options)
    assert ("Mul", "quantize") not in kernels(model)
    x = numbers(*(size if isinstance(size, int) else 5 for size in shape))
    got = list(compile_model(model).run({"x": x}).values())[-1]
    assert np.array_equal(got, as_floats(x * numbers(*row, seed=1)))
