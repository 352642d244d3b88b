"""The page as text: it needs nothing else, and names are never markup."""

from __future__ import annotations

import time
from dataclasses import dataclass

import onnx
import onnx_ir as ir
import pytest
from page_kit import Page

from narrowpass import Decision, Pass, PassResult
from narrowpass.bundle import Bundle, MethodReport, Report
from narrowpass_report import graph
from narrowpass_report.page import render
from narrowpass_testing import model_from_text


@dataclass(frozen=True)
class Judge(Pass):
    """Decides about the first node, and adds one."""

    name = "judge"

    def run(self, model, ctx):
        first = model.graph[0]
        ctx.decisions.append(
            Decision(first.name, first.op_type, "kept", "judge", "it is <first>", 0.5, 1.0)
        )
        value = model.graph.outputs[0]
        node = ir.node("Neg", [value])
        node.outputs[0].type, node.outputs[0].shape = value.type, value.shape
        model.graph.append(node)
        model.graph.outputs[0] = node.outputs[0]
        node.outputs[0].name, value.name = value.name, "before"
        ctx.decisions.append(Decision("neg", "Neg", "added", "judge"))
        ctx.counters["judged"] += 1
        return PassResult(model, modified=True)


@pytest.fixture
def model(tmp_path):
    text = "g (float[n] x) => (float[n] y) { a = Relu(x) b = Abs(a) y = Neg(b) }"
    proto = ir.to_proto(model_from_text(text))
    proto.graph.node[0].name = "<script>alert(1)</script>"
    onnx.save(proto, tmp_path / "odd.onnx")
    return "odd.onnx"


@pytest.mark.parametrize("command", ["build", "explain"])
def test_report(call, install, model, tmp_path, command):
    install(Judge)
    output = ["-o", "o.narrow"] if command == "build" else []
    printed = call(command, model, *output, "-p", "judge", "--report", "r & <r>.html")
    assert "wrote r & <r>.html" in printed
    content = (tmp_path / "r & <r>.html").read_text("utf-8")
    page = Page(content)
    assert "<script>alert" not in content
    assert page.scripts == 2  # the data, and ours
    assert "<script>alert(1)</script>" in page.text
    assert "it is <first>" in page.text
    for text in ("judged", "kept", "0.5", "Decisions: 2", "added"):
        assert text in page.text


def test_without_passes(call, model, tmp_path):
    call("build", model, "-o", "o.narrow", "--report", "r.html")
    content = (tmp_path / "r.html").read_text("utf-8")
    assert "No pass ran" in content
    assert Page(content).data[0]["graphs"][0]["count"] == 3


def test_loads_nothing(deep):
    content = render(deep(2), "title")
    Page(content)
    for text in ("http:", "https:", "//fonts", "@import", "url(", "import(", "fetch("):
        assert text not in content
    assert "default-src 'none'" in content
    for text in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval("):
        assert text not in content


def test_hostile_names(hostile):
    content = render(hostile, "</title><img>")
    page = Page(content)
    assert "img" not in page.tags
    assert page.scripts == 2
    assert "\u2028" not in content.partition("<section id")[0]
    name = page.data[0]["graphs"][0]["nodes"][0]["name"]
    assert name in page.text
    assert name.startswith("</script><img")


def test_summary(deep):
    text = Page(render(deep(3), "title")).text
    assert "27 nodes" in text
    assert "6 casts" in text
    assert "float32 256 B (100.0%)" in text
    assert "float16 6 (22.2%)" in text
    assert "red 9 (33.3%)" in text


def test_data(deep):
    data = Page(render(deep(1), "title")).data[0]
    main = data["graphs"][0]
    relu = next(n for n in main["nodes"] if data["texts"][n.get("op", 0)] == "Relu")
    name, dtype, shape = main["values"][relu["out"][0]]
    assert name.endswith("_output_0")
    assert data["dtypes"][dtype] == ["float16", "float16"]  # inferred: the model does not say
    assert data["texts"][shape] == "batch\N{MULTIPLICATION SIGN}8"
    fields = relu["decisions"][0]
    assert [data["texts"][i] for i in fields[:4]] == [
        "fp16",
        "red, wide",
        "classifier",
        "it is too large",
    ]
    assert fields[4:] == [7e4, 65504.0, None]
    weight = main["values"][main["nodes"][0]["in"][1]]
    assert weight[0] == "w"
    assert weight[3] == 256
    assert [n["name"] for n in main["nodes"] if n.get("kind") == "input"] == ["x", "mask"]


def test_subgraphs_and_functions(nested):
    data = Page(render(nested, "title")).data[0]
    main = data["graphs"][0]
    choose = next(n for n in main["nodes"] if n["name"] == "choose")
    titles = [data["graphs"][i]["title"] for i in choose["opens"]]
    assert sorted(titles) == ["else_branch", "then_branch"]
    assert [main["values"][i][0] for i in choose["captured"]] == ["m"]
    inner = data["graphs"][choose["opens"][0]]
    assert main["nodes"][inner["up"][1]] is choose
    assert inner["up"][0] == 0
    assert {n["name"] for n in inner["nodes"] if n.get("kind") == "captured"} == {"m"}
    call = next(n for n in main["nodes"] if n["name"] == "call")
    assert data["graphs"][call["opens"][0]]["title"] == "function Twice"


def test_decision_about_a_weight(deep):
    bundle = deep(1)
    fields = {"node": "w", "decision": "narrowed", "by": "store", "measured": 1e-3, "limit": 4e-3}
    reports = [Report("store", {"main": MethodReport((fields,))})]
    data = Page(render(Bundle(bundle.methods, reports=reports), "title")).data[0]
    first = data["graphs"][0]["nodes"][0]
    assert first["decisions"][0][4:6] == [1e-3, 4e-3]
    assert data["texts"][first["decisions"][0][7]] == "w"


def test_methods(deep):
    model = deep(1).methods["main"]
    page = Page(render(Bundle({"encode": model, "decode": model}), "title"))
    assert [data["method"] for data in page.data] == ["encode", "decode"]
    assert "method decode" in page.text


def test_page_without_types(deep, monkeypatch):
    def refuse(model, **options):
        raise RuntimeError("cannot")

    monkeypatch.setattr(graph, "infer", refuse)
    page = Page(render(deep(1), "title"))
    assert page.data[0]["graphs"][0]["count"] == 9
    assert "unknown" in page.text


def test_model_is_not_changed(deep):
    bundle = deep(1)
    render(bundle, "title")
    nodes = list(bundle.methods["main"].graph)
    assert all(node.outputs[0].type is None for node in nodes[:-1])


def test_many_nodes(deep):
    bundle = deep(560)
    started = time.process_time()
    drawing = graph.draw(bundle.methods["main"], "main", bundle.reports)
    assert time.process_time() - started < 20  # a second, where nothing else runs
    assert drawing.data["graphs"][0]["count"] == 5040
    assert len(render(bundle, "title")) < 3_000_000
