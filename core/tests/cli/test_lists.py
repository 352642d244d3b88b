"""plugins, passes, backends, inspect, explain."""

from __future__ import annotations

import importlib.metadata
import shutil
from dataclasses import dataclass

import click
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from narrowpass import Decision, Pass, PassResult
from narrowpass.cli._app import app
from narrowpass_reference import ReferenceBackend


@pytest.fixture
def bundle(call, passes, model):
    call("build", model, "-o", "m.narrow", "-p", "negate")
    return "m.narrow"


def _check_keys(command, document):
    shown = app.get_command(click.Context(app), command).help
    for key in document.keys() - {"version"}:
        assert key in shown


def test_no_plugins(call, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [])
    assert "no plugins are installed" in call("plugins").out
    assert "no passes are installed" in call("passes").out


def test_plugins(call, passes):
    analysis, fake, reference = call("plugins").out.splitlines()
    assert analysis.startswith("analysis   narrowpass-analysis ")
    assert fake.split() == ["fake", "dist-fake", "1.0", "loaded", "passes,", "pipelines"]
    assert reference.startswith("reference  narrowpass-reference ")


def test_passes(call, passes):
    shown = call("passes").out
    assert "Appends a node to each output that changes its sign twice." in shown
    assert "More than one line" not in shown
    document = call("passes", "--json").json
    _check_keys("passes", document)
    [negate] = [row for row in document["passes"] if row["name"] == "negate"]
    assert negate["owner"] == "dist-fake 1.0"
    assert negate["options"] == [
        {
            "name": "times",
            "type": "integer",
            "default": "2",
            "about": "how often, of `int`, of one.",
        },
        {"name": "only", "type": "[text, ...]", "default": "[]", "about": ""},
    ]
    assert document["pipelines"] == [
        {"name": "twice", "owner": "dist-fake 1.0", "text": "negate,negate"}
    ]
    assert {"dump", "timing", "reproducer"} <= {row["name"] for row in document["instruments"]}


def test_options_are_explained_where_a_pass_is_named(call, passes):
    assert "how often, of `int`, of one." in call("passes", "negate").out
    assert "how often" not in call("passes").out


def test_passes_by_name(call, passes):
    document = call("passes", "negate", "timing", "--json").json
    assert document.pop("version") == 1
    assert {kind: [row["name"] for row in rows] for kind, rows in document.items()} == {
        "passes": ["negate"],
        "pipelines": [],
        "instruments": ["timing"],
        "classifiers": [],
    }
    shown = call("passes", "negate").out
    assert shown.startswith("pass ")
    assert "instrument" not in shown
    failed = call("passes", "negat", code=2)
    assert "no pass 'negat' is installed (did you mean 'negate'?)" in failed.err


def test_backends(call):
    [row] = call("backends", "--json").json["backends"]
    assert (row["name"], row["available"], row["default"]) == ("reference", True, True)
    _check_keys("backends", row)
    assert "reference (default)" in call("backends").out


def test_details_of_a_backend(call, install):
    class Detailed(ReferenceBackend):
        name = "detailed"

        def details(self):
            return {"isa": "avx2", "processor": "avx512"}

    class Wrong(ReferenceBackend):
        name = "wrong"

        def details(self):
            return {"isa": 2}

    install(narrowpass_backends=[Detailed(), Wrong()])
    rows = {row["name"]: row["details"] for row in call("backends", "--json").json["backends"]}
    assert rows == {
        "detailed": {"isa": "avx2", "processor": "avx512"},
        "reference": {},
        "wrong": {},
    }
    shown = call("backends")
    assert "isa avx2, processor avx512" in shown.out
    assert "backend 'wrong' gave {'isa': 2} in details" in shown.err


@dataclass(frozen=True)
class Tuned(ReferenceBackend):
    """Has options.

    Attributes:
        cores: how many compute, of `int`.
    """

    name = "tuned"
    priority = 9

    cores: int = 4


def test_options_of_backends(call, install, model):
    install(narrowpass_backends=[Tuned()])
    document = call("backends", "tuned", "--json").json
    [row] = document["backends"]
    _check_keys("backends", row)
    assert row["options"] == [
        {"name": "cores", "type": "integer", "default": "4", "about": "how many compute, of `int`."}
    ]
    assert "how many compute" in call("backends", "tuned").out
    shown = call("backends").out
    assert "tuned    cores   integer  4" in shown
    assert "how many compute" not in shown
    failed = call("backends", "tunde", code=2)
    assert "no backend 'tunde' is installed (did you mean 'tuned'?)" in failed.err


def test_options_of_backends_are_part_of_their_name(call, install, model):
    install(narrowpass_backends=[Tuned()])
    text = "tuned{cores=2}"
    built = call("build", model, "-o", "m.narrow", "--target", text, "--json").json
    assert built["target"] == text
    assert call("explain", "m.narrow", "--backend", text, "--json").json["backend"] == text
    bench = ("bench", "m.narrow", "--runs", "1", "--json", "--backend")
    assert call(*bench, " tuned {cores = 2}").json["backend"] == text
    both = call("compare", model, "m.narrow", "--backend", text, "--json").json
    assert both["a"]["backend"] == both["b"]["backend"] == text
    np.savez("x.npz", x=np.zeros((1, 4), np.float32))
    ran = call("run", "m.narrow", "--input", "x.npz", "--backend", text, "--json").json
    assert ran["backend"] == text
    failed = call("bench", "m.narrow", "--backend", "tuned{cores=2,fast=true}", code=2)
    assert "'tuned' has no option 'fast'; its options: cores\n" in failed.err
    assert f"  tuned{{cores=2,fast=true}}\n  {' ' * 14}^" in failed.err


def test_unavailable_backend(call, install):
    class Away(ReferenceBackend):
        name = "away"
        priority = 9

        def available(self):
            return "there is no such processor"

    install(narrowpass_backends=[Away()])
    first, second = call("backends", "--json").json["backends"]
    assert (first["name"], first["available"], first["default"]) == ("away", False, False)
    assert second["default"]
    shown = call("backends")
    assert "no: there is no such processor" in shown.out
    assert "backend 'away' is not available here: there is no such processor; 'reference'" in (
        shown.err
    )


def test_inspect_onnx(call, model):
    shown = call("inspect", model, "--verify").out
    for text in ("IR version 10", "ai.onnx 21", "nodes 3", "[batch, 4]", "MatMul", "no problems"):
        assert text in shown
    document = call("inspect", model, "--json").json
    assert document["problems"] is None
    _check_keys("inspect", {**document, **document["methods"]["main"]})
    main = document["methods"]["main"]
    assert main["operators"] == {"MatMul": 1, "Add": 1, "Relu": 1}
    assert (main["weight_bytes"], main["dtypes"]) == (60, {"float": 2})
    assert main["inputs"] == [{"name": "x", "dtype": "float", "shape": ["batch", 4]}]


def test_inspect_counts_tensors_of_constant_nodes(call, save):
    weights = numpy_helper.from_array(np.ones((4, 4), np.float32))
    nodes = [
        helper.make_node("Constant", [], ["w"], value=weights),
        helper.make_node("Constant", [], ["n"], value_int=3),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in "xy")
    save("constant.onnx", nodes, [x], [y])
    shown = call("inspect", "constant.onnx").out
    assert "initializers 0 (0 B), tensors in Constant nodes 1 (64 B)" in shown
    method = call("inspect", "constant.onnx", "--json").json["methods"]["main"]
    assert (method["constants"], method["constant_bytes"]) == (1, 64)
    _check_keys("inspect", method)


def test_inspect_bundle(call, bundle):
    shown = call("inspect", bundle, "--verify").out
    assert "built with pipeline 'negate' by dist-fake 1.0" in shown
    document = call("inspect", bundle, "--json", "--verify").json
    assert document["problems"] == []
    assert document["pipeline"] == "negate"
    _check_keys("inspect", document)


def test_inspect_damaged_bundle(call, bundle, tmp_path):
    shutil.copytree(tmp_path / bundle, tmp_path / "bad.narrow")
    report = next((tmp_path / "bad.narrow" / "reports").iterdir())
    report.write_text(report.read_text("utf-8").replace("added", "taken"))
    result = call("inspect", "bad.narrow", "--verify", code=1)
    assert report.name in result.out
    assert "1 problem;" in result.err
    document = call("inspect", "bad.narrow", "--verify", "--json", code=1).json
    assert len(document["problems"]) == 1


def test_explain(call, bundle):
    shown = call("explain", bundle).out
    assert "negate: kept (it is <first>) [0.5, limit 1]" in shown
    assert "1 nodes or values no longer there, negate: folded" in shown
    document = call("explain", bundle, "--json").json
    _check_keys("explain", document)
    matmul = document["nodes"][0]
    assert (matmul["node"], matmul["method"], matmul["kernel"]) == (
        "matmul",
        "main",
        "onnx.reference",
    )
    [decision] = matmul["decisions"]
    assert (decision["decision"], decision["by"], decision["measured"]) == ("kept", "negate", 0.5)
    assert [row["node"] for row in document["removed"]] == ["gone"]


def test_explain_builds_an_onnx_file(call, passes, model):
    assert "negate: kept" in call("explain", model, "-p", "negate").out
    assert "negate" not in call("explain", model).out


@dataclass(frozen=True)
class NoteFunctions(Pass):
    """Decides something about each node of functions."""

    name = "note-functions"

    def run(self, model, ctx):
        for function in model.functions.values():
            for node in function:
                name = f"{function.name}/{node.name}"
                ctx.decisions.append(Decision(name, node.op_type, "seen", "rule"))
        return PassResult(model, False)


FUNCTIONS = """
<ir_version: 8, opset_import: ["" : 17, "f": 1]>
g (float[N, 4] x) => (float[N, 4] y) { a = f.Twice(x)  y = f.Twice(a) }
<domain: "f", opset_import: ["": 17]>
Twice (x) => (y) { t = Add(x, x)  y = Relu(t) }
"""


def test_explain_finds_nodes_of_functions(call, install, save):
    install(narrowpass_passes=[NoteFunctions])
    proto = onnx.parser.parse_model(FUNCTIONS)
    for node in proto.functions[0].node:
        node.name = node.op_type.lower()
    save("f.onnx", proto=proto)
    document = call("explain", "f.onnx", "-p", "note-functions", "--json").json
    assert document["removed"] == []
    decided = {row["node"]: row["decisions"] for row in document["nodes"] if row["decisions"]}
    assert list(decided) == ["Twice/add", "Twice/relu"]  # the reference runs functions as they are
    assert decided["Twice/add"][0]["decision"] == "seen"
    assert "no longer there" not in call("explain", "f.onnx", "-p", "note-functions").out


def test_explain_one_method(call, passes, model):
    call("build", f"a={model}", f"b={model}", "-o", "two.narrow", "-p", "negate")
    both = call("explain", "two.narrow", "--json").json["nodes"]
    assert {row["method"] for row in both} == {"a", "b"}
    one = call("explain", "two.narrow", "--method", "b", "--json").json
    assert {row["method"] for row in one["nodes"]} == {"b"}
    assert {row["method"] for row in one["removed"]} == {"b"}
    assert "--method c" in call("explain", "two.narrow", "--method", "c", code=2).err


def test_explain_infers_types_that_the_model_lacks(call, model):
    dtypes = {row["node"]: row["dtype"] for row in call("explain", model, "--json").json["nodes"]}
    assert dtypes == {"matmul": "float", "add": "float", "relu": "float"}
