"""The ONNX backend test suite on `xnn-cpu`: right results, and where each came from.

``native_xnn_cpu.txt`` has a line for each test: how many of its nodes ran on kernels of the
backend's own, and how many on the reference evaluator. After a change of what is native:
``NARROWPASS_REFRESH=1 pytest tests/conformance/test_xnn_cpu.py``.
"""

from __future__ import annotations

import os
from pathlib import Path

import onnx
import pytest
from suite_kit import EXPECTED, NODE, OTHERS, SharedPlugins, check

FILE = Path(__file__).with_name("native_xnn_cpu.txt")
REFRESH = "NARROWPASS_REFRESH" in os.environ


def read() -> dict[str, tuple[int, int]]:
    if not FILE.exists():
        return {}
    rows = (line.split() for line in FILE.read_text(encoding="utf-8").splitlines())
    return {name: (int(native), int(fallback)) for name, native, fallback in rows}


COUNTS = read()


@pytest.fixture(autouse=True)
def backend(monkeypatch):
    monkeypatch.setattr(SharedPlugins, "backend", "xnn-cpu")
    monkeypatch.setattr(SharedPlugins, "last", None)


OPSET = 28
"""The operator set of the onnx release whose tests were counted; others have others."""


def counted(name: str) -> None:
    if onnx.defs.onnx_opset_version() != OPSET:
        return
    program = SharedPlugins.last
    assert program is not None
    plans = program.explain()
    fallback = sum(bool(plan.reason) for plan in plans)
    found = len(plans) - fallback, fallback
    if REFRESH:
        COUNTS[name] = found
        lines = [f"{key} {native} {rest}\n" for key, (native, rest) in sorted(COUNTS.items())]
        FILE.write_text("".join(lines), encoding="utf-8")
        return
    assert found == COUNTS[name], f"{name}: native and fallback nodes; see the module's docstring"


@pytest.mark.parametrize("name", sorted(NODE))
def test_node(name):
    check(name, NODE[name])
    counted(name)


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_other(name):
    check(name, OTHERS[name])
    counted(name)


def test_the_counts():
    if onnx.defs.onnx_opset_version() != OPSET:
        pytest.skip(f"the numbers are those of opset {OPSET}")
    passing = {*NODE, *OTHERS} - EXPECTED.keys()
    if not REFRESH:
        assert COUNTS.keys() == passing
    alone = sum(fallback == 0 for _, fallback in COUNTS.values())
    print(f"{alone} of {len(COUNTS)} models run without the reference evaluator")
    assert alone >= 850
