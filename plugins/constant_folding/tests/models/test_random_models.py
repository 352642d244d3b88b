"""Random models of all kinds: the same before and after, under onnx's evaluator."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from folding_kit import assert_same_bits, assert_stable, feeds_of
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from narrowpass import Context, Observer
from narrowpass.framework.passes import run_checked
from narrowpass_constant_folding.passes.fold import Fold
from narrowpass_ir.verify import verify
from narrowpass_testing.strategies import models

PARTS = Fold().parts()
EXACT = {"fuse-batchnorm", "fuse-bias"}


def check(pass_, model, seed, exact=True):
    before = ir.to_proto(model)
    result = run_checked(pass_, ir.from_proto(before), Context(observer=Observer(strict=True)))
    verify(result.model)
    after = ir.to_proto(result.model)
    onnx.checker.check_model(after, full_check=True)
    assert after.graph.input == before.graph.input
    assert after.graph.output == before.graph.output
    assert_stable(result.model, pass_)
    for size in (0, 1, 3):
        feeds = feeds_of(before, seed, n=size)
        with np.errstate(all="ignore"):
            try:
                expected = ReferenceEvaluator(before).run(None, feeds)
            except (ValueError, IndexError, RuntimeError):
                continue  # the model does not run with such a size
            actual = ReferenceEvaluator(after).run(None, feeds)
        for got, due in zip(actual, expected, strict=True):
            if exact:
                assert_same_bits(got, due)
            else:
                assert got.dtype == due.dtype
                np.testing.assert_allclose(got, due, rtol=1e-4, atol=1e-4, equal_nan=True)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(models(), st.integers(0, 3))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_fold(model, seed):
    check(Fold(), model, seed, exact=False)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_each_part_alone(part):
    @settings(max_examples=25, deadline=None, derandomize=True)
    @given(models(), st.integers(0, 3))
    def run(model, seed):
        check(part, model, seed, exact=part.name not in EXACT)

    run()
