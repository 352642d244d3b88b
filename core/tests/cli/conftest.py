"""The command line called in this process, with plugins created by the tests."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import click
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from plugins_kit import ANALYSIS, REFERENCE, show_plugins

from narrowpass import Decision, Pass, PassResult
from narrowpass.cli import main
from narrowpass.errors import PassError


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass(frozen=True)
class Negate(Pass):
    """Appends a node to each output that changes its sign twice.

    More than one line.

    Attributes:
        times: how often, of ``int``,
            of one.
    """

    name = "negate"
    times: int = 2
    only: tuple[str, ...] = ()

    def run(self, model, ctx):
        import onnx_ir as ir

        graph = model.graph
        for index, value in enumerate(graph.outputs):
            renamed, last = value.name, value
            for _ in range(self.times):
                node = ir.node("Neg", [last])
                last = node.outputs[0]
                last.type, last.shape = value.type, value.shape
                graph.append(node)
                ctx.decisions.append(Decision(node.name or "", "Neg", "added", "negate"))
            value.name = f"{renamed}_before_{len(graph)}"
            last.name = renamed
            graph.outputs[index] = last
        first = graph[0]
        ctx.decisions.append(
            Decision(first.name or "", first.op_type, "kept", "negate", "it is <first>", 0.5, 1.0)
        )
        ctx.decisions.append(Decision("gone", "Add", "folded", "negate"))
        ctx.counters["negated"] += len(graph.outputs)
        if ctx.samples is not None:
            ctx.counters["samples"] += sum(1 for _ in ctx.samples)
        return PassResult(model, True, f"{self.times} nodes for each output")


@dataclass(frozen=True)
class Fail(Pass):
    """Refuses every model."""

    name = "fail"

    def run(self, model, ctx):
        raise PassError("node 'relu' is not to its taste")


@dataclass(frozen=True)
class Crash(Pass):
    """Has a defect."""

    name = "crash"

    def run(self, model, ctx):
        raise ZeroDivisionError("division by zero")


@pytest.fixture
def install(monkeypatch):
    """Return a function that installs plugins: nothing else is visible then."""
    monkeypatch.delenv("NARROWPASS_DISABLE_PLUGINS", raising=False)
    monkeypatch.delenv("NARROWPASS_TRACEBACK", raising=False)
    return show_plugins(monkeypatch, (*ANALYSIS, *REFERENCE))


@pytest.fixture
def passes(install):
    """Install a plugin with a few passes."""
    install(
        narrowpass_passes=[Negate, Fail, Crash],
        narrowpass_pipelines={"twice": "negate,negate"},
    )


@pytest.fixture
def commands(install):
    """Install a plugin with the commands given."""

    def add(**functions):
        install(
            narrowpass_commands=[
                click.Command(name, callback=function) for name, function in functions.items()
            ]
        )

    return add


@pytest.fixture
def call(install, tmp_path, monkeypatch, capsys):
    """Return a function that calls the command line in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments, code=0):
        with pytest.raises(SystemExit) as stopped:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        result = Result(stopped.value.code, captured.out, captured.err)
        assert result.code == code, result
        return result

    return run


def make_model(dtype=TensorProto.FLOAT, rows="batch"):
    """A model y = relu(x w + b) of 4 inputs and 3 outputs."""
    rng = np.random.default_rng(0)
    initializers = [
        numpy_helper.from_array(rng.standard_normal((4, 3)).astype(np.float32), "w"),
        numpy_helper.from_array(rng.standard_normal(3).astype(np.float32), "b"),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="matmul"),
        helper.make_node("Add", ["m", "b"], ["a"], name="add"),
        helper.make_node("Relu", ["a"], ["y"], name="relu"),
    ]
    if dtype != TensorProto.FLOAT:
        nodes[0].input[0] = "wide"
        nodes[2].output[0] = "narrow"
        nodes.insert(0, helper.make_node("Cast", ["x"], ["wide"], name="up", to=TensorProto.FLOAT))
        nodes.append(helper.make_node("Cast", ["narrow"], ["y"], name="down", to=dtype))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", dtype, [rows, 4])],
        [helper.make_tensor_value_info("y", dtype, [rows, 3])],
        initializers,
    )
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])


@pytest.fixture
def model(tmp_path):
    """Write a small model."""
    onnx.save(make_model(), tmp_path / "model.onnx")
    return "model.onnx"


@pytest.fixture
def save(tmp_path):
    """Return a function that writes a model: a proto, or one of the nodes."""

    def write(name, nodes=None, inputs=(), outputs=(), *, proto=None, dtype=TensorProto.FLOAT):
        if proto is None and nodes is None:
            proto = make_model(dtype)
        elif proto is None:
            graph = helper.make_graph(nodes, "g", list(inputs), list(outputs))
            opsets = [helper.make_opsetid("", 21)]
            proto = helper.make_model(graph, ir_version=10, opset_imports=opsets)
        onnx.save(proto, tmp_path / name)
        return name

    return write
