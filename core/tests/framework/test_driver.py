from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

import narrowpass
from narrowpass import Context, Decision, Pass, PassResult, load_plugins
from narrowpass.errors import DataError, PluginError, UsageError

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[N, 4] x) => (float[N, 4] y)
<float[4] w = {1.0, 2.0, 3.0, 4.0}>
{ t = Mul(x, w)  y = Relu(t) }
"""

FEEDS = {"x": np.array([[1, -2, 3, -4], [5, 6, 7, 8]], np.float32)}


@dataclass(frozen=True)
class Report(Pass):
    """Decides something about each node and counts its calibration samples."""

    name = "report"

    def run(self, model, ctx: Context):
        for node in model.graph:
            ctx.decisions.append(Decision(node.name or "", node.op_type, "seen", "rule", limit=3))
        ctx.counters["samples"] = sum(1 for _ in ctx.samples or [])
        ctx.counters[f"target {ctx.target.name}"] += 1
        return PassResult(model, modified=False)


@pytest.fixture
def plugins(entry_point, touch):
    return load_plugins(entry_points=[entry_point("fake", narrowpass_passes=[touch, Report])])


@pytest.fixture
def model_file(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), path)
    return path


def expected():
    return ReferenceEvaluator(onnx.parser.parse_model(MODEL)).run(None, FEEDS)[0]


def test_build_then_load_then_run(model_file, tmp_path, plugins):
    out = tmp_path / "model.narrow"
    narrowpass.build(model_file, "touch", out, plugins=plugins)
    with narrowpass.load(out, plugins=plugins) as program:
        np.testing.assert_array_equal(program.run(FEEDS)["y"], expected())


def test_build_in_memory_from_an_object_leaves_it_alone(plugins):
    model = ir.from_onnx_text(MODEL)
    bundle = narrowpass.build(model, "touch", plugins=plugins)
    assert bundle.methods["main"].graph.doc_string == "touched;"
    assert not model.graph.doc_string
    with narrowpass.load(bundle, plugins=plugins) as program:
        np.testing.assert_array_equal(program.run(FEEDS)["y"], expected())


def test_load_builds_an_onnx_file_in_memory(model_file, plugins):
    with narrowpass.load(model_file, "reference", keep=["t"], plugins=plugins) as program:
        result = program.run(FEEDS, outputs=["t", "y"])
    np.testing.assert_array_equal(result["t"], FEEDS["x"] * np.arange(1, 5, dtype=np.float32))
    assert list(result) == ["t", "y"]


def test_a_plain_onnx_file_holds_one_method(model_file, tmp_path, plugins):
    out = tmp_path / "out.onnx"
    narrowpass.build(model_file, "touch", out, plugins=plugins)
    onnx.checker.check_model(out, full_check=True)
    assert onnx.load(out).graph.doc_string == "touched;"
    with pytest.raises(UsageError, match=r"out\.onnx can hold one method, not 2 \(a, b\)"):
        narrowpass.build({"a": model_file, "b": model_file}, "", out, plugins=plugins)


def test_reports_keep_what_each_pass_decided_in_each_method(model_file, plugins):
    bundle = narrowpass.build(
        {"a": model_file, "b": model_file},
        "report,touch",
        calibration=[FEEDS, FEEDS],
        plugins=plugins,
    )
    assert [report.name for report in bundle.reports] == ["report", "touch"]
    part = bundle.reports[0].methods["b"]
    assert part.counters == {"samples": 2, "target reference": 1}
    assert part.decisions[0] | {"node": ""} == {
        "node": "",
        "op_type": "Mul",
        "decision": "seen",
        "by": "rule",
        "limit": 3,
    }
    assert bundle.reports[1].methods["a"].counters == {"touched": 1}
    assert bundle.pipeline == "report,touch"
    assert bundle.plugins == {"dist-fake": "1.0"}


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"pipeline": "tuoch"}, UsageError, "did you mean 'touch'"),
        ({"target": "none"}, PluginError, "no backend 'none'"),
        ({"calibration": "no-such-data"}, UsageError, "no data at 'no-such-data'"),
        ({"pipeline": "report", "calibration": []}, DataError, "holds no samples"),
        ({"models": {}}, UsageError, "at least one method"),
        ({"models": {"a/b": "missing.onnx"}}, UsageError, "method name 'a/b'"),
    ],
)
def test_unusable_arguments(model_file, plugins, arguments, kind, message):
    with pytest.raises(kind, match=message):
        narrowpass.build(**{"models": model_file, "plugins": plugins} | arguments)


def test_a_pipeline_for_a_bundle_is_refused(model_file, plugins):
    bundle = narrowpass.build(model_file, "", plugins=plugins)
    with pytest.raises(UsageError, match="already built"):
        narrowpass.load(bundle, pipeline="touch", plugins=plugins)
