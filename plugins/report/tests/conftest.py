"""Bundles to write pages of."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from plugins_kit import show_plugins

from narrowpass.bundle import Bundle, MethodReport, Report
from narrowpass_testing.fixtures import narrowpass_cli

__all__ = ["narrowpass_cli"]

sys.path.insert(0, str(Path(__file__).parent))  # for page_kit


HOSTILE = '</script><img src="x" onerror="document.body.dataset.harm=1"><!--<script>'
FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16


def _info(name, dtype=FLOAT):
    return helper.make_tensor_value_info(name, dtype, ["batch", 8])


def _blocks(count):
    """Blocks of nine nodes, with casts, a line around them, and a mask that all read."""
    nodes, x = [], "x"

    def add(op, *inputs, **attributes):
        name = f"/model/encoder/layer.{len(nodes) // 9}/attention/self/{op}_{len(nodes)}"
        nodes.append(helper.make_node(op, inputs, [f"{name}_output_0"], name, **attributes))
        return f"{name}_output_0"

    for _ in range(count):
        y = add("Mul", add("MatMul", x, "w"), add("MatMul", x, "w"))
        y = add("Cast", add("Add", y, "mask"), to=HALF)
        y = add("Cast", add("Relu", y), to=FLOAT)
        x = add("Add", add("MatMul", y, "w"), x)
    return nodes


def _model(nodes, outputs, inputs=("x", "mask"), functions=()):
    weight = numpy_helper.from_array(np.ones((8, 8), np.float32), "w")
    graph = helper.make_graph(
        nodes, "g", [_info(name) for name in inputs], [_info(name) for name in outputs], [weight]
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("here", 1)]
    proto = helper.make_model(graph, ir_version=10, opset_imports=opsets, functions=functions)
    return ir.serde.deserialize_model(proto)


def _decisions(nodes):
    for index, node in enumerate(nodes):
        color = ("green, narrow", "gray, narrow", "red, wide")[index % 3]
        fields = {"node": node.name, "op_type": node.op_type, "decision": color, "by": "classifier"}
        if index % 3 == 2:
            fields |= {"reason": "it is too large", "measured": 7e4, "limit": 65504.0}
        if index % 3 == 1:
            fields |= {"error": 3e-4}
        yield fields


@pytest.fixture
def deep():
    """Return a function that creates a bundle of so many blocks of nine nodes."""

    def create(blocks):
        nodes = _blocks(blocks)
        report = Report("fp16", {"main": MethodReport(tuple(_decisions(nodes)), {"green": 1})})
        model = _model(nodes, [nodes[-1].output[0]])
        return Bundle({"main": model}, pipeline="fp16", reports=[report])

    return create


@pytest.fixture
def hostile():
    """A bundle in which every name is a piece of HTML."""
    nodes = [
        helper.make_node("MatMul", [HOSTILE, "w"], ["m"], HOSTILE),
        helper.make_node("Relu", ["m"], [HOSTILE + "y"], "\u2028&amp;"),
    ]
    fields = {"node": HOSTILE, "op_type": HOSTILE, "decision": HOSTILE, "reason": HOSTILE}
    fields |= {"measured": float("inf"), "limit": 1}
    report = Report(HOSTILE, {"main": MethodReport((fields,))})
    model = _model(nodes, [HOSTILE + "y"], [HOSTILE])
    return Bundle({"main": model}, pipeline=HOSTILE, reports=[report])


@pytest.fixture
def nested():
    """A bundle whose node "choose" has two branches that read from outside, and a function."""

    def branch(name, op):
        node = helper.make_node(op, ["m"], [f"{name}_y"], f"within {name}")
        return helper.make_graph([node], name, [], [_info(f"{name}_y")])

    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], "outside"),
        helper.make_node("ReduceMax", ["mask"], ["top"], "top", keepdims=0),
        helper.make_node("Cast", ["top"], ["yes"], "cast", to=TensorProto.BOOL),
        helper.make_node(
            "If",
            ["yes"],
            ["c"],
            "choose",
            then_branch=branch("then", "Relu"),
            else_branch=branch("else", "Neg"),
        ),
        helper.make_node("Twice", ["c"], ["y"], "call", domain="here"),
    ]
    inside = [helper.make_node("Add", ["a", "a"], ["b"], "in function")]
    opsets = [helper.make_opsetid("", 21)]
    function = helper.make_function("here", "Twice", ["a"], ["b"], inside, opsets)
    return Bundle({"main": _model(nodes, ["y"], functions=[function])})


@pytest.fixture
def install(monkeypatch):
    """Return a function that installs passes, beside the report: nothing else is visible."""
    points = importlib.metadata.entry_points(group="narrowpass")
    shown = tuple(point for point in points if point.name in ("analysis", "reference", "report"))
    add = show_plugins(monkeypatch, shown)
    return lambda *passes: add(narrowpass_passes=list(passes))


@pytest.fixture
def call(install, narrowpass_cli, tmp_path, monkeypatch):
    """Return a function that calls the command line in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        result = narrowpass_cli(*arguments)
        assert result.exit_code == 0, result.output
        return result.stdout

    return run
