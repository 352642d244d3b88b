"""Random graphs against onnxruntime: layouts, views, fusions and memory in any mix."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graph_maker import random_model
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from oracle_kit import expected_outputs
from xnn_kit import check, close, compile_model, feeds_for

from narrowpass import Bundle, CompileOptions
from narrowpass.errors import NarrowpassError
from narrowpass_testing import random_feeds
from narrowpass_testing.strategies import models
from narrowpass_xnn_cpu.backend import XnnCpuBackend

pytestmark = pytest.mark.once


def try_seed(seed: int, nodes: int) -> None:
    model = random_model(seed, nodes)
    # Additions in a chain may cancel: the tolerance is for values around 1 after a chain.
    check(model, feeds_for(model, seed), native=None, tolerance=1e-3, least=1e-2)


@pytest.mark.parametrize("seed", range(60))
def test_short_chains_agree_with_onnxruntime(seed):
    try_seed(seed, nodes=3)


@pytest.mark.parametrize("seed", range(1000, 1060))
def test_long_chains_agree_with_onnxruntime(seed):
    try_seed(seed, nodes=14)


@pytest.mark.long
def test_many_chains_agree_with_onnxruntime():
    for seed in range(2000, 7000):
        try_seed(seed, nodes=3 + seed % 20)


@settings(max_examples=60)
@given(models(), st.integers(0, 2**32 - 1))
def test_models_of_all_types_agree_with_the_reference(model, seed):
    """Models of all types of elements, with control flow and zero-size tensors."""
    feeds = random_feeds(model, seed)
    bundle = Bundle({"main": model})
    try:
        # Types and operators that no other implementation has all of.
        expected = expected_outputs(ir.to_proto(model), feeds, oracle="project")
    except NarrowpassError:
        reject()  # hypothesis fails where too few examples are left
    got = XnnCpuBackend().compile(bundle, CompileOptions(threads=1)).run(feeds)
    nodes = list(model.graph.all_nodes())
    values = [*model.graph.inputs, *(value for node in nodes for value in node.outputs)]
    narrow = any(value.dtype == ir.DataType.FLOAT16 for value in values)
    for name, value in expected.items():
        if narrow:
            # One rounding more or less decides comparisons, overflows and what is cast from them;
            # test_narrow.py has the bounds.
            assert got[name].dtype == value.dtype
            assert got[name].shape == value.shape
            continue
        if value.dtype.kind == "f":
            np.testing.assert_array_equal(np.isnan(got[name]), np.isnan(value))
        close(got[name], value, 1e-4)


def test_a_constant_passed_on_is_known_by_its_shape():
    text = (
        '<ir_version: 8, opset_import: ["": 18]> g (float[2,3] x) => (int64 y, float[2,3] z)'
        " <float[2,3] w = {1, 2, 3, 4, 5, 6}> { v = Dropout(w) y = Size(v) z = Add(v, x) }"
    )
    check(onnx.parser.parse_model(text), native=None)


def test_the_callers_model_stays():
    model = ir.from_proto(random_model(5, 10))
    before = ir.to_proto(model).SerializeToString()
    compile_model(model)
    assert ir.to_proto(model).SerializeToString() == before
