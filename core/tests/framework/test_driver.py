from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator
from plugins_kit import REFERENCE

import narrowpass
from narrowpass import Candidate, Context, Decision, Pass, PassResult, load_plugins
from narrowpass.errors import DataError, ModelError, PluginError, UsageError

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
    return load_plugins(
        entry_points=[entry_point("fake", narrowpass_passes=[touch, Report]), *REFERENCE]
    )


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


def test_build_from_a_model_of_onnx_leaves_it_alone(plugins):
    proto = onnx.parser.parse_model(MODEL)
    before = proto.SerializeToString(deterministic=True)
    bundle = narrowpass.build(proto, "touch", plugins=plugins)
    assert proto.SerializeToString(deterministic=True) == before
    with narrowpass.load(bundle, plugins=plugins) as program:
        np.testing.assert_array_equal(program.run(FEEDS)["y"], expected())


def test_a_model_of_onnx_whose_weights_lie_elsewhere_is_refused(model_file, tmp_path):
    proto = onnx.load(model_file)
    [weight] = proto.graph.initializer
    weight.CopyFrom(onnx.numpy_helper.from_array(np.ones(4, np.float32), "w"))
    path = tmp_path / "external.onnx"
    onnx.save(proto, path, save_as_external_data=True, size_threshold=0)
    with pytest.raises(ModelError, match="'w' lies in another file; pass the path"):
        narrowpass.build(onnx.load(path, load_external_data=False), "")


@pytest.mark.parametrize(
    "given",
    [
        lambda touch: touch(),
        lambda touch: [touch()],
        lambda touch: (touch(), "report", narrowpass.Pipeline((touch("b"),))),
        lambda touch: ["touch", "report,touch"],
    ],
)
def test_passes_and_text_are_a_pipeline(given, plugins, touch):
    bundle = narrowpass.build(ir.from_onnx_text(MODEL), given(touch), plugins=plugins)
    assert bundle.methods["main"].graph.doc_string.startswith("touched;")
    assert bundle.plugins == {"dist-fake": "1.0"}


class Renames(Candidate):
    def __init__(self, name):
        self.name = name

    def rewrite(self, model, nodes, ctx):
        return model


@dataclass(frozen=True)
class Chooses(Pass):
    """Uses one of the candidates, and shows that it did."""

    name = "chooses"

    def run(self, model, ctx):
        ctx.used.add("one")
        ctx.exhibits.append({"title": "one"})
        return PassResult(ctx.candidates["one"].rewrite(model, [], ctx), modified=False)


def test_the_manifest_names_the_plugins_of_candidates_that_were_used(entry_point, touch, tmp_path):
    points = [
        entry_point("fake", narrowpass_passes=[Chooses, touch]),
        *(entry_point(name, narrowpass_candidates=[Renames(name)]) for name in ("one", "other")),
        *REFERENCE,
    ]
    plugins = load_plugins(entry_points=points)
    out = tmp_path / "model.narrow"
    narrowpass.build(ir.from_onnx_text(MODEL), "chooses,touch", out, plugins=plugins)
    read = narrowpass.Bundle.load(out)
    assert read.plugins == {"dist-fake": "1.0", "dist-one": "1.0"}
    shown = [report.methods["main"].exhibits for report in read.reports]
    assert shown == [({"title": "one"},), ()]


def test_a_function_returns_calibration_data(plugins):
    bundle = narrowpass.build(
        ir.from_onnx_text(MODEL),
        "report",
        calibration=lambda: iter([FEEDS, FEEDS]),
        plugins=plugins,
    )
    assert bundle.reports[0].methods["main"].counters["samples"] == 2


def test_load_builds_an_onnx_file_in_memory(model_file, plugins):
    with narrowpass.load(model_file, "reference", keep=["t"], plugins=plugins) as program:
        result = program.run(FEEDS, outputs=["t", "y"])
    np.testing.assert_array_equal(result["t"], FEEDS["x"] * np.arange(1, 5, dtype=np.float32))
    assert list(result) == ["t", "y"]


@pytest.mark.parametrize("parse", [onnx.parser.parse_model, ir.from_onnx_text])
def test_load_builds_a_model_in_memory(parse, plugins):
    with narrowpass.load(parse(MODEL), "reference", plugins=plugins) as program:
        np.testing.assert_array_equal(program.run(FEEDS)["y"], expected())


@pytest.mark.parametrize(
    ("source", "said"), [(3, "int is no model"), ({1, 2}, "set is no model"), ("x", "or bundle")]
)
def test_what_cannot_be_loaded(plugins, source, said):
    with pytest.raises(UsageError, match=said):
        narrowpass.load(source, plugins=plugins)


def test_a_plain_onnx_file_holds_one_method(model_file, tmp_path, plugins):
    out = tmp_path / "out.onnx"
    narrowpass.build(model_file, "touch", out, plugins=plugins)
    onnx.checker.check_model(out, full_check=True)
    assert onnx.load(out).graph.doc_string == "touched;"
    with pytest.raises(UsageError, match=r"out\.onnx can hold one method, not 2 \(a, b\)"):
        narrowpass.build({"a": model_file, "b": model_file}, "", out, plugins=plugins)


@pytest.mark.parametrize("other", ["model.onnx", "sub/../model.onnx", "link.onnx"])
def test_the_source_is_not_overwritten(model_file, tmp_path, plugins, other):
    (tmp_path / "sub").mkdir()
    (tmp_path / "link.onnx").symlink_to(model_file)
    before = model_file.read_bytes()
    with pytest.raises(UsageError, match="is the model that is read, and is not overwritten"):
        narrowpass.build(model_file, "touch", tmp_path / other, plugins=plugins)
    assert model_file.read_bytes() == before


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
        ({"pipeline": [Report]}, UsageError, "an instance"),
        ({"pipeline": Report}, UsageError, "is no pipeline; pass text such as 'ONE,OTHER'"),
        ({"pipeline": ["touch", "tuoch"]}, UsageError, "did you mean 'touch'"),
        ({"calibration": 3}, UsageError, "calibration cannot be int"),
        ({"models": {1, 2}}, UsageError, "set is no model; pass the path"),
        ({"models": {"a": None}}, UsageError, "NoneType is no model"),
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
