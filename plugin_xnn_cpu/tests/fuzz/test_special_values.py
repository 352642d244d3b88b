"""ONNX's node tests with NaN, infinities, huge and subnormal numbers in their inputs.

The oracles are onnxruntime and onnx's evaluator, where they agree: infinities and NaN must be where
theirs are. One model for each operator, version and form of the suite, one special number at a time
in each of its float32 inputs.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import ModelProto
from onnx.backend.test.case.node import collect_testcases
from onnx.reference import ReferenceEvaluator
from xnn_kit import skip_where_nan_is_lost

import narrowpass
from narrowpass import Bundle
from narrowpass.errors import BackendError

# Other levels of instruction sets would take seconds each.
pytestmark = pytest.mark.anywhere

Array = np.ndarray[Any, Any]

SPECIAL = (np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-40, -0.0)

RANDOM = ("Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomUniform")

DIFFERENT = {
    "MaxPool": (np.isnan, "propagates NaN, which onnxruntime may lose: xnn-cpu.md"),
    "Attention": (
        lambda x: not np.isfinite(x),
        "does not read what a mask leaves out: a row without keys is 0, and not 0 times NaN",
    ),
    "Ceil": (lambda x: x == np.float32(1e-40), "takes subnormal numbers for 0: xnn-cpu.md"),
    "GroupNormalization": (lambda x: abs(x) > 1e30, "squares overflow: 0, and not NaN"),
    "InstanceNormalization": (lambda x: abs(x) > 1e30, "squares overflow: 0, and not NaN"),
    "DynamicQuantizeLinear": (
        np.isinf,
        "an infinite scale and a zero point of NaN, whose cast to a byte has no right result",
    ),
}
"""Operators of the suite with the special numbers whose results differ, and why that stays."""

SLICES = 12


def forms() -> list[tuple[str, ModelProto, dict[str, Array]]]:
    """Return the node tests whose inputs are arrays, some of float32: name, model and feeds."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    found = []
    for case in cases:
        if case.model is None or not case.data_sets:
            continue
        if any(node.op_type.startswith(RANDOM) for node in case.model.graph.node):
            continue
        names = [value.name for value in case.model.graph.input]
        feeds = dict(zip(names, case.data_sets[0][0], strict=True))
        if all(isinstance(array, np.ndarray) for array in feeds.values()):
            found.append((case.name, case.model, feeds))
    return found


def salted(name: str, feeds: Mapping[str, Array]) -> Iterator[tuple[float, dict[str, Array]]]:
    """Yield feeds with one special number in one of them."""
    rng = np.random.default_rng(list(name.encode()))
    for key, array in feeds.items():
        if array.dtype == np.float32 and array.size:
            for special in SPECIAL:
                changed = array.copy()
                changed.reshape(-1)[rng.integers(array.size)] = special
                yield special, {**feeds, key: changed}


def alike(one: Any, other: Any) -> bool:
    """Return whether results are those of the same operator: NaN and infinities are where they are.

    Finite numbers are only compared with as wide a tolerance as the suite has: other tests do.
    """
    if not isinstance(one, np.ndarray) or not isinstance(other, np.ndarray):
        return False
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.dtype.kind not in "fV":
        return np.array_equal(one, other)
    a, b = one.astype(np.float64), other.astype(np.float64)
    return np.allclose(a, b, rtol=1e-3, atol=1e-5, equal_nan=True)


def known(model: ModelProto, special: float) -> bool:
    entries = (DIFFERENT.get(node.op_type) for node in model.graph.node)
    return any(entry is not None and entry[0](np.float32(special)) for entry in entries)


@pytest.mark.parametrize(
    "part",
    [0, *(pytest.param(part, marks=pytest.mark.long) for part in range(1, SLICES))],
)
@pytest.mark.filterwarnings("ignore")  # onnx's evaluator divides by zero, and more
def test_special_numbers_are_where_the_oracles_have_them(part):
    onnxruntime = pytest.importorskip("onnxruntime")
    skip_where_nan_is_lost()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    compared, wrong = 0, []
    for name, model, feeds in forms()[part::SLICES]:
        try:
            evaluator = ReferenceEvaluator(model)
            session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        except Exception:  # noqa: BLE001  # an oracle does not have the operator
            continue
        bundle = Bundle({"main": ir.from_proto(model)})
        program = narrowpass.load(bundle, "xnn-cpu", threads=1, cache=False)
        with program, np.errstate(all="ignore"):
            for special, changed in salted(name, feeds):
                if known(model, special):
                    continue
                try:
                    right = session.run(None, changed)
                    judged = all(map(alike, right, evaluator.run(None, changed)))
                except Exception:  # noqa: BLE001  # refused by an oracle, in its own way
                    continue
                if not judged:
                    continue
                compared += 1
                try:
                    got = [*program.run(changed).values()]
                except BackendError as error:
                    wrong.append((name, special, str(error)))
                    continue
                if not all(map(alike, got, right)):
                    wrong.append((name, special, [plan.kernel for plan in program.explain()]))
    assert compared > 500
    assert not wrong
