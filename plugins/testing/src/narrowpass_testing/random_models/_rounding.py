"""How far rounding moves a result: what is as near to an oracle as that is not wrong."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from onnx import numpy_helper

from narrowpass_testing.random_models._cases import Case
from narrowpass_testing.random_models._elements import Array, is_float
from narrowpass_testing.random_models._nodes import part_of, read_by
from narrowpass_testing.random_models._oracles import Values, run_nodes
from narrowpass_testing.random_models._traits import EXACT

ULPS, DRAWS, MARGIN = 2.0, 3, 2.0
"""What a kernel may err by, how often that is drawn, and how much further is the same."""


def is_rounding(case: Case, output: str, got: Any, expected: Any) -> bool:
    """Report whether two results of a model are as near to each other as its rounding.

    An Asin of a Tanh that is almost 1, or what is normalized after it lost its digits: an error of
    `ULPS` in the result of each node is drawn, and moves the output as far. Inputs stay what they
    are, and so do elements that nodes copy: operators that jump read such ones alone.
    """
    if getattr(got, "dtype", None) != getattr(expected, "dtype", None):
        return False
    model = part_of(case.model, output)
    plain = _run(case, model, None)
    if plain is None or not isinstance(expected, np.ndarray) or not is_float(expected.dtype):
        return False
    moved = 0.0
    for seed in range(DRAWS):
        other = _run(case, model, np.random.default_rng(seed))
        if other is None:
            return False
        errors = _errors(other[output], plain[output])
        moved = max(moved, float(errors[np.isfinite(errors)].max(initial=0.0)))
    return bool((_errors(got, expected) <= MARGIN * moved).all())


def _errors(one: Any, other: Any) -> Array:
    """Return how far elements are apart: NaN where one of them is none, infinity by shape."""
    a, b = np.asarray(one, np.float64), np.asarray(other, np.float64)
    with np.errstate(invalid="ignore"):
        return np.abs(a - b) if a.shape == b.shape else np.full(1, np.inf)


def _run(case: Case, model: Any, errors: np.random.Generator | None) -> Values | None:
    """Return what each node computes, with errors that are drawn; None where one does not run."""
    with np.errstate(all="ignore"):  # what overflows has no error that is looked at
        return _computed(case, model, errors)


def _computed(case: Case, model: Any, errors: np.random.Generator | None) -> Values | None:
    values: Values = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    values.update(case.feeds)
    for node in model.graph.node:
        names = [name for name in node.output if name]
        read = {name: values[name] for name in read_by(node)}
        found = run_nodes([node], read, names, model.opset_import)
        if found is None:
            return None
        for name, value in zip(names, found, strict=True):
            values[name] = value
            if errors is None or node.op_type in EXACT:
                continue
            if isinstance(value, np.ndarray) and is_float(value.dtype):
                ulp = float(ml_dtypes.finfo(value.dtype).eps)  # type: ignore[no-untyped-call]
                factors = 1 + ULPS * ulp * errors.uniform(-1, 1, value.shape)
                values[name] = (value.astype(np.float64) * factors).astype(value.dtype)
    return values
