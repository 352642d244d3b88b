"""The random models of the testing kit, with blocks of layers of ours, on `xnn-cpu`.

`tests/campaign` runs them through pipelines, too, and at each level of instruction sets.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from layer_recipes import LAYERS, chain
from oracle_kit import expected_outputs
from xnn_kit import check as check_native
from xnn_kit import close, compile_model

from narrowpass import Bundle, CompileOptions
from narrowpass.errors import NarrowpassError
from narrowpass_testing import random_feeds
from narrowpass_testing.random_models import (
    RECIPES,
    check,
    is_known,
    random_models,
    read_known,
    reason_for,
)
from narrowpass_testing.strategies import models
from narrowpass_xnn_cpu.backend import XnnCpuBackend

RECIPES_OF_ALL = RECIPES | LAYERS.only(["layers"])
KNOWN = read_known(Path(__file__).parents[3] / "tests" / "campaign" / "known.toml")


def known(case, finding):
    return is_known(case, finding) or reason_for(case, finding, KNOWN) is not None


def try_models(seed, count, recipes=RECIPES_OF_ALL):
    cases = random_models(seed, count, recipes=recipes)
    return sum(check(case, "xnn-cpu", threads=(1, 2), known=known) for case in cases)


def test_random_models():
    pytest.importorskip("onnxruntime")
    assert try_models(0, 80) > 60


def test_blocks_of_layers(fp32_code):
    """With the kernels of each kind of processor."""
    pytest.importorskip("onnxruntime")
    first = {"plain": 0, "avx2": 1000, "best": 2000}[fp32_code]
    assert try_models(first, 25, LAYERS.only(["layers"]) | RECIPES.only(["written"])) > 18


def test_long_chains():
    pytest.importorskip("onnxruntime")
    for seed in range(12):
        assert check(chain(seed, 14), "xnn-cpu", threads=(1, 2), known=known)


@pytest.mark.long
@pytest.mark.parametrize("first", range(10_000, 20_000, 1000))
def test_many_random_models(first):
    pytest.importorskip("onnxruntime")
    try_models(first, 500)
    try_models(first, 500, LAYERS.only(["layers"]) | RECIPES.only(["written", "contrib"]))


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
    check_native(onnx.parser.parse_model(text), native=None)


def test_the_callers_model_stays():
    model = ir.from_proto(chain(5, 10).model)
    before = ir.to_proto(model).SerializeToString()
    compile_model(model)
    assert ir.to_proto(model).SerializeToString() == before
