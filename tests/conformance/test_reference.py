"""The ONNX backend test suite on the `reference` backend."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.backend.test.loader import load_model_tests
from suite_kit import EXPECTED, NODE, OTHERS, SharedPlugins, check


@pytest.fixture(autouse=True)
def backend(monkeypatch):
    monkeypatch.setattr(SharedPlugins, "backend", "reference")


@pytest.mark.parametrize("name", sorted(NODE))
def test_node(name):
    check(name, NODE[name])


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_other(name):
    check(name, OTHERS[name])


def test_loop16_seq_none_by_value():
    (case,) = (
        case for case in load_model_tests(kind="node") if case.name == "test_loop16_seq_none"
    )
    prepared = SharedPlugins.prepare(case.model)
    for inputs, (expected,) in case.data_sets:
        (actual,) = prepared.run(inputs)
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other, strict=True)


def test_the_whole_suite_is_run():
    if onnx.defs.onnx_opset_version() != 28:
        pytest.skip("the numbers are those of opset 28")
    unknown = EXPECTED.keys() - NODE.keys() - OTHERS.keys()
    expected = {name for name, entry in EXPECTED.items() if "backend" not in entry}
    passing = len(NODE.keys() - expected)
    print(f"{len(NODE)} node tests, of which {passing} must pass, and {len(OTHERS)} others")
    assert not unknown, "listed, but not in the suite"
    assert len(NODE) >= 1884
    assert len(OTHERS) >= 100
    assert passing >= 1868
