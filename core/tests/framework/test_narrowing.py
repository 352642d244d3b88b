"""`optimize` and `quantize` choose the pipeline; `build` runs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx
import pytest
from plugins_kit import REFERENCE

import narrowpass
from narrowpass import Pass, PassResult
from narrowpass.errors import PluginError, UsageError
from narrowpass.narrowing import choosing_pass

PROTO = onnx.parser.parse_model("""
    <ir_version: 10, opset_import: ["": 21]>
    g (float[n, 2] x) => (float[n, 2] y) <float[2] w = {1.0, 2.0}> { y = Mul(x, w) }
""")
X = np.ones((3, 2), np.float32)


@dataclass(frozen=True)
class Recorder(Pass):
    """Keeps the samples that it sees, twice over, in place of quantizing."""

    name: ClassVar[str] = "bytes"
    serves: ClassVar[dict[str, str]] = {"int8": "", "int4": "more=true"}

    more: bool = False
    seen: ClassVar[list[list[str]]] = []

    def run(self, model, ctx):
        for _ in range(2):
            samples = [] if ctx.samples is None else list(ctx.samples)
            self.seen.append([str(sample["x"].shape) for sample in samples])
        return PassResult(model, modified=False)


@dataclass(frozen=True)
class Chooser(Pass):
    """Takes the options that `--max-error` has."""

    name: ClassVar[str] = "chooser"
    serves: ClassVar[dict[str, str]] = {"--max-error": "evaluations=3"}

    max_error: str = ""
    objective: str = "latency"
    evaluations: int = 20

    def run(self, model, ctx):
        return PassResult(model, modified=False)


@pytest.fixture
def plugins(entry_point):
    Recorder.seen.clear()
    point = entry_point("narrowing", narrowpass_passes=[Recorder, Chooser])
    return narrowpass.load_plugins(entry_points=[point, *REFERENCE])


class Reader:
    """What onnxruntime's quantizers read: one round of samples."""

    def __init__(self, count):
        self._left = count

    def get_next(self):
        self._left -= 1
        return {"x": X} if self._left >= 0 else None


def test_optimize_runs_the_default_pipeline(plugins, tmp_path):
    out = tmp_path / "m.narrow"
    bundle = narrowpass.optimize(PROTO.SerializeToString(), out, plugins=plugins)
    assert "chooser" not in bundle.pipeline
    with narrowpass.load(out, "reference", plugins=plugins) as program:
        np.testing.assert_array_equal(program.run({"x": X})["y"], X * [1, 2])


def test_optimize_within_an_error(plugins):
    bundle = narrowpass.optimize(
        PROTO, max_error="rel:1e-2", objective="bytes", calibration=[{"x": X}], plugins=plugins
    )
    assert "chooser{max-error=" in bundle.pipeline
    assert "evaluations=3" in bundle.pipeline
    assert "rel:1e-2" in bundle.pipeline
    assert "objective=bytes" in bundle.pipeline


@pytest.mark.parametrize("samples", [[{"x": X}] * 3, lambda: iter([{"x": X}] * 3), Reader(3)])
def test_quantize_reads_samples_of_every_kind_more_than_once(plugins, samples):
    bundle = narrowpass.quantize(PROTO, samples, plugins=plugins)
    assert bundle.pipeline.endswith("bytes")
    assert Recorder.seen == [["(3, 2)"] * 3] * 2


def test_quantize_without_samples(plugins):
    narrowpass.quantize(PROTO, plugins=plugins)
    assert Recorder.seen == [[], []]


def test_the_pass_gets_the_options_that_it_has_for_the_type(plugins):
    assert narrowpass.quantize(PROTO, to="int4", plugins=plugins).pipeline.endswith(
        "bytes{more=true}"
    )


def test_a_type_that_no_pass_serves(plugins, monkeypatch):
    monkeypatch.setattr("narrowpass.framework.missing._is_installed", lambda _: True)
    with pytest.raises(PluginError, match="no pass that is installed serves bfloat16; passes: b"):
        narrowpass.quantize(PROTO, to="bfloat16", plugins=plugins)


def test_a_type_that_several_passes_serve(entry_point):
    @dataclass(frozen=True)
    class Other(Recorder):
        name: ClassVar[str] = "other"

    points = [
        entry_point("one", narrowpass_passes=[Recorder]),
        entry_point("two", narrowpass_passes=[Other]),
    ]
    plugins = narrowpass.load_plugins(entry_points=[*points, *REFERENCE])
    with pytest.raises(PluginError, match=r"several passes serve int8: bytes of .*, other of .*"):
        narrowpass.quantize(PROTO, plugins=plugins)


def test_an_unknown_type(plugins):
    with pytest.raises(UsageError, match=r"one of int8, int4, float16, bfloat16, not 'int3'"):
        narrowpass.quantize(PROTO, to="int3", plugins=plugins)


def test_the_pass_that_chooses(plugins):
    registry = plugins.registry
    assert choosing_pass(None, None, None) == ""
    within = choosing_pass("rel:1e-2", None, None, registry)
    assert within == "chooser{evaluations=3,max-error=rel:1e-2}"
    own = choosing_pass("0.1", "m:f", "mix", registry)
    assert own == "chooser{evaluations=3,max-error=m:f:0.1,objective=mix}"
    with pytest.raises(UsageError, match="need an error"):
        choosing_pass(None, None, "bytes")
    with pytest.raises(UsageError, match="need an error"):
        choosing_pass(None, "m:f", None)


def test_the_pass_that_chooses_is_looked_for_where_no_registry_is_given(plugins, monkeypatch):
    monkeypatch.setattr("narrowpass.narrowing.installed_plugins", lambda: plugins)
    assert choosing_pass("1", None, None) == "chooser{evaluations=3,max-error=1}"
