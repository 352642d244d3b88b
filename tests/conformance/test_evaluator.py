"""What `xnn-cpu` leaves to the Python evaluator in the ONNX node suite: no more than is listed.

``evaluator_xnn_cpu.toml`` has the operators with their numbers of nodes, and a reason for each.
"""

from __future__ import annotations

import importlib.util
import tomllib
from collections import Counter
from pathlib import Path

import onnx
import pytest

from narrowpass.framework.plugins import load_plugins

LIST = Path(__file__).with_name("evaluator_xnn_cpu.toml")
TOOL = Path(__file__).parents[2] / "tools" / "fallbacks.py"
OPSET = 28
"""The operator set of the onnx release whose nodes were counted; others have others."""

BEFORE = 1432
"""Nodes that were left before elementwise operators of all types were native."""


@pytest.fixture(scope="module")
def left():
    if onnx.defs.onnx_opset_version() != OPSET:
        pytest.skip(f"the numbers are those of opset {OPSET}")
    spec = importlib.util.spec_from_file_location("fallbacks", TOOL)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    found: Counter[str] = Counter()
    for _, _, plans in tool.suite(load_plugins()):
        found.update(plan.op_type for plan in plans if tool.place(plan) == tool.EVALUATOR)
    return found


@pytest.fixture(scope="module")
def listed():
    entries = tomllib.loads(LIST.read_text("utf-8"))["left"]
    assert all(entry["reason"] for entry in entries)
    return Counter({kind: n for entry in entries for kind, n in entry["nodes"].items()})


@pytest.mark.once
def test_no_more_is_left_than_is_listed(left, listed):
    more = left - listed
    assert not more, f"more nodes run on the Python evaluator than {LIST.name} has"


@pytest.mark.once
def test_at_most_a_third_is_left(left):
    assert left.total() <= BEFORE // 3
