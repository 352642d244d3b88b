"""The ONNX backend test suite on `xnn-cpu`: right results, and what may be left to the evaluator.

``evaluator_xnn_cpu.toml`` says which operators, and which of the suite's other models, run on the
reference evaluator, with a reason for each. The lists are written by hand.
"""

from __future__ import annotations

import importlib.util
import tomllib
from collections import Counter
from pathlib import Path

import onnx
import pytest
from suite_kit import EXPECTED, NODE, OTHERS, PLUGINS, SharedPlugins, check

TOOL = Path(__file__).parents[2] / "tools" / "fallbacks.py"
LISTS = tomllib.loads(Path(__file__).with_name("evaluator_xnn_cpu.toml").read_text("utf-8"))
OPERATORS = {kind for entry in LISTS["left"] for kind in entry["nodes"]}
MODELS = Counter(name for entry in LISTS["others"] for name in entry["models"])
OPSET = 28
"""The operator set of the onnx release that the lists are for; others have other tests."""


@pytest.fixture(autouse=True)
def backend(monkeypatch):
    monkeypatch.setattr(SharedPlugins, "backend", "xnn-cpu")
    monkeypatch.setattr(SharedPlugins, "last", None)


def left() -> list[str]:
    """Return the operators that the last model left to the evaluator."""
    program = SharedPlugins.last
    assert program is not None
    return [plan.op_type for plan in program.explain() if plan.reason]


@pytest.mark.parametrize("name", sorted(NODE))
def test_node(name):
    check(name, NODE[name])
    if onnx.defs.onnx_opset_version() == OPSET:
        assert set(left()) <= OPERATORS, "on the evaluator, and not listed"


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_other(name):
    check(name, OTHERS[name])
    if onnx.defs.onnx_opset_version() == OPSET:
        assert len(left()) == MODELS[name], "see the list `others`"


@pytest.mark.long
@pytest.mark.skipif(onnx.defs.onnx_opset_version() != OPSET, reason=f"numbers of opset {OPSET}")
def test_no_more_nodes_are_left_than_are_listed():
    """`test_node` knows the operators; how many nodes of each are left takes the whole suite."""
    spec = importlib.util.spec_from_file_location("fallbacks", TOOL)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    found: Counter[str] = Counter()
    for _, _, plans in tool.suite(PLUGINS):
        found.update(plan.op_type for plan in plans if tool.place(plan) == tool.EVALUATOR)
    listed = Counter({k: n for entry in LISTS["left"] for k, n in entry["nodes"].items()})
    assert not found - listed, "more nodes run on the Python evaluator than are listed"


def test_the_lists():
    assert all(entry["reason"] for kind in ("left", "others") for entry in LISTS[kind])
    if onnx.defs.onnx_opset_version() != OPSET:
        pytest.skip(f"the names are those of opset {OPSET}")
    assert MODELS.keys() <= OTHERS.keys() - EXPECTED.keys()
    assert len(MODELS) == MODELS.total(), "listed twice"
    assert len(OTHERS) - len(MODELS) >= 112, "fewer models run without the evaluator"
