"""Traps for constant folders, before and after `fold`, in onnxruntime without its optimizations."""

from __future__ import annotations

import numpy as np
import pytest
import traps_equal
import traps_identities
import traps_integers
import traps_layout
import traps_more
import traps_structure
from folding_kit import feeds_of, fold, parse, run_onnxruntime

pytestmark = pytest.mark.once

FAMILIES = {
    "identities": traps_identities.IDENTITIES,
    "reshapes": traps_layout.RESHAPES,
    "casts": traps_identities.CASTS,
    "integers": traps_integers.INTEGERS,
    "control": traps_structure.CONTROL,
    "functions": traps_structure.FUNCTIONS,
    "equal": traps_equal.EQUAL,
    "old": traps_equal.OLD,
    "resizes": traps_equal.RESIZES,
    "fusions": traps_more.FUSIONS,
    "reductions": traps_more.REDUCTIONS,
    "shapes": traps_more.SHAPES,
    "names": traps_more.NAMES,
}
ALL = {
    f"{family}: {name}": trap for family, found in FAMILIES.items() for name, trap in found.items()
}


@pytest.mark.parametrize("name", ALL)
def test_results_are_those_before(name):
    trap = ALL[name]
    proto = parse(trap.text, trap.ir, trap.opset, trap.more, dict(trap.constants))
    feeds = {**feeds_of(proto, special=False), **trap.feeds}
    due = run_onnxruntime(proto, feeds) if trap.runs else ()
    after, _, _ = fold(proto)
    left = [node.op_type for node in after.graph.node]
    assert set(trap.left) <= set(left)
    assert not set(trap.gone) & set(left)
    if not trap.runs:
        return
    for got, expected in zip(run_onnxruntime(after, feeds), due, strict=True):
        check(got, expected, trap.tolerance)


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
