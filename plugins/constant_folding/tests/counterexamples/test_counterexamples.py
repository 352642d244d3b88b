"""Counterexamples to naive rewrites, before and after `fold`, in unoptimized onnxruntime."""

from __future__ import annotations

import control_flow
import cse_and_opsets
import fusions_and_reductions
import identities_and_casts
import integers_and_ranges
import layout_operators
import numpy as np
import pytest
from folding_kit import feeds_of, fold, parse, run_onnxruntime

FAMILIES = {
    "identities": identities_and_casts.IDENTITIES,
    "reshapes": layout_operators.RESHAPES,
    "casts": identities_and_casts.CASTS,
    "integers": integers_and_ranges.INTEGERS,
    "control": control_flow.CONTROL,
    "functions": control_flow.FUNCTIONS,
    "equal": cse_and_opsets.EQUAL,
    "old": cse_and_opsets.OLD,
    "resizes": cse_and_opsets.RESIZES,
    "fusions": fusions_and_reductions.FUSIONS,
    "reductions": fusions_and_reductions.REDUCTIONS,
    "shapes": fusions_and_reductions.SHAPES,
    "names": fusions_and_reductions.NAMES,
}
ALL = {
    f"{family}: {name}": case for family, found in FAMILIES.items() for name, case in found.items()
}


@pytest.mark.parametrize("name", ALL)
def test_fold_keeps_results(name):
    case = ALL[name]
    proto = parse(case.text, case.ir, case.opset, case.more, dict(case.constants))
    feeds = {**feeds_of(proto, special=False), **case.feeds}
    due = run_onnxruntime(proto, feeds) if case.runs else ()
    after, _, _ = fold(proto)
    left = [node.op_type for node in after.graph.node]
    assert set(case.left) <= set(left)
    assert not set(case.gone) & set(left)
    if not case.runs:
        return
    for got, expected in zip(run_onnxruntime(after, feeds), due, strict=True):
        check(got, expected, case.tolerance)


def check(got, due, tolerance):
    if isinstance(due, list):
        for one, other in zip(got, due, strict=True):
            check(one, other, tolerance)
        return
    assert got.dtype == due.dtype
    assert got.shape == due.shape
    if not tolerance:
        np.testing.assert_array_equal(got, due)
        if due.dtype.kind == "f":
            finite = ~np.isnan(due)
            np.testing.assert_array_equal(np.signbit(got[finite]), np.signbit(due[finite]))
        return
    np.testing.assert_allclose(got, due, rtol=tolerance, atol=tolerance)
