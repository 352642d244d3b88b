"""The ONNX backend test suite, through the IR, the verifier and the `reference` backend.

The checks are those of the suite's own runner; only the reports are pytest's.
"""

from __future__ import annotations

import importlib.util
import tomllib
import unittest
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

from narrowpass.onnx_backend import NarrowpassBackend, NarrowpassRep
from narrowpass.plugins import load_plugins

_LIST = Path(__file__).with_name("expected_failures_reference.toml")
_PLUGINS = load_plugins()


class _SharedPlugins(NarrowpassBackend):
    """Finds the plugins once, not for each of 1900 models."""

    @classmethod
    def prepare(cls, model, device="CPU", **kwargs) -> NarrowpassRep:
        return super().prepare(model, device, plugins=_PLUGINS, **kwargs)


def _load_suite() -> dict[str, dict[str, unittest.TestCase]]:
    """Give the tests on the CPU by kind and name; those of the kind `real` are downloads."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the suite computes expected values when it is imported
        cases = Runner(_SharedPlugins, __name__).test_cases
    return {
        kind.removeprefix("OnnxBackend").removesuffix("ModelTest"): {
            name.removesuffix("_cpu"): case(name)
            for name in unittest.TestLoader().getTestCaseNames(case)
            if name.endswith("_cpu")
        }
        for kind, case in cases.items()
    }


_SUITE = _load_suite()
_NODE = _SUITE["Node"]
_OTHERS = {
    name: case
    for kind in ("Simple", "PyTorchConverted", "PyTorchOperator")
    for name, case in _SUITE[kind].items()
}
_EXPECTED = tomllib.loads(_LIST.read_text("utf-8"))


def _run(case: unittest.TestCase) -> None:
    getattr(case, case._testMethodName)()


def _applies(entry: dict[str, object]) -> bool:
    return "without" not in entry or importlib.util.find_spec(str(entry["without"])) is None


def _check(name: str, case: unittest.TestCase) -> None:
    entry = _EXPECTED.get(name)
    if entry is None or not _applies(entry):
        _run(case)
        return
    try:
        _run(case)
    except Exception as error:  # whatever it is, the entry must tell it
        if entry["error"] not in str(error):
            raise AssertionError(f"{name} fails, but not as {_LIST.name} says") from error
        pytest.xfail(entry["reason"])
    if entry.get("random"):
        pytest.xfail(entry["reason"])
    pytest.fail(f"{name} passes: take it off {_LIST.name}")


@pytest.mark.parametrize("name", sorted(_NODE))
def test_node(name):
    _check(name, _NODE[name])


@pytest.mark.parametrize("name", sorted(_OTHERS))
def test_other(name):
    _check(name, _OTHERS[name])


def test_loop16_seq_none_by_value():
    (case,) = (
        case for case in load_model_tests(kind="node") if case.name == "test_loop16_seq_none"
    )
    prepared = _SharedPlugins.prepare(case.model)
    for inputs, (expected,) in case.data_sets:
        (actual,) = prepared.run(inputs)
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other, strict=True)


def test_the_whole_suite_is_run():
    if onnx.defs.onnx_opset_version() != 28:
        pytest.skip("the numbers are those of opset 28")
    unknown = _EXPECTED.keys() - _NODE.keys() - _OTHERS.keys()
    passing = len(_NODE.keys() - _EXPECTED.keys())
    print(f"{len(_NODE)} node tests, of which {passing} must pass, and {len(_OTHERS)} others")
    assert not unknown, "listed, but not in the suite"
    assert len(_NODE) >= 1884
    assert len(_OTHERS) >= 100
    assert passing >= 1868
