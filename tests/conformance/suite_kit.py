"""The ONNX backend test suite, through the IR, the verifier and a backend.

The checks are those of the suite's own runner; only the reports are pytest's.
"""

from __future__ import annotations

import importlib.util
import tomllib
import unittest
import warnings
from pathlib import Path
from typing import ClassVar

import pytest
from onnx.backend.test.runner import Runner

from narrowpass import Program
from narrowpass.framework.plugins import load_plugins
from narrowpass_reference.onnx_backend import NarrowpassBackend, NarrowpassRep

LIST = Path(__file__).with_name("expected_failures.toml")
PLUGINS = load_plugins()


class SharedPlugins(NarrowpassBackend):
    """Finds the plugins once, not for each of 1900 models, and keeps the last program."""

    backend: ClassVar[str] = "reference"
    last: ClassVar[Program | None] = None

    @classmethod
    def prepare(cls, model, device="CPU", **kwargs) -> NarrowpassRep:
        options = {"backend": cls.backend, "plugins": PLUGINS, **kwargs}
        prepared = super().prepare(model, device, **options)
        cls.last = prepared.program
        return prepared


def _load_suite() -> dict[str, dict[str, unittest.TestCase]]:
    """Return the tests on the CPU by kind and name; those of the kind `real` are downloads."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the suite computes expected values when it is imported
        cases = Runner(SharedPlugins, __name__).test_cases
    return {
        kind.removeprefix("OnnxBackend").removesuffix("ModelTest"): {
            name.removesuffix("_cpu"): case(name)
            for name in unittest.TestLoader().getTestCaseNames(case)
            if name.endswith("_cpu")
        }
        for kind, case in cases.items()
    }


SUITE = _load_suite()
NODE = SUITE["Node"]
OTHERS = {
    name: case
    for kind in ("Simple", "PyTorchConverted", "PyTorchOperator")
    for name, case in SUITE[kind].items()
}
EXPECTED = tomllib.loads(LIST.read_text("utf-8"))


def _run(case: unittest.TestCase) -> None:
    getattr(case, case._testMethodName)()


def _applies(entry: dict[str, object]) -> bool:
    if entry.get("backend", SharedPlugins.backend) != SharedPlugins.backend:
        return False
    return "without" not in entry or importlib.util.find_spec(str(entry["without"])) is None


def check(name: str, case: unittest.TestCase) -> None:
    entry = EXPECTED.get(name)
    if entry is None or not _applies(entry):
        _run(case)
        return
    try:
        _run(case)
    except Exception as error:  # the entry reports any of them
        if entry["error"] not in str(error):
            raise AssertionError(f"{name} fails, but not as {LIST.name} says") from error
        pytest.xfail(entry["reason"])
    if entry.get("random"):
        pytest.xfail(entry["reason"])
    pytest.fail(f"{name} passes: take it off {LIST.name}")
