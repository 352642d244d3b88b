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

    name: ClassVar[str] = "int8-sym"

    seen: ClassVar[list[list[str]]] = []

    def run(self, model, ctx):
        for _ in range(2):
            samples = [] if ctx.samples is None else list(ctx.samples)
            self.seen.append([str(sample["x"].shape) for sample in samples])
        return PassResult(model, modified=False)


@dataclass(frozen=True)
class Chooser(Pass):
    """Takes the options of the pass auto."""

    name: ClassVar[str] = "auto"

    max_error: str = ""
    objective: str = "latency"

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
    assert "auto" not in bundle.pipeline
    with narrowpass.load(out, "reference", plugins=plugins) as program:
        np.testing.assert_array_equal(program.run({"x": X})["y"], X * [1, 2])


def test_optimize_within_an_error(plugins):
    bundle = narrowpass.optimize(
        PROTO, max_error="rel:1e-2", objective="bytes", calibration=[{"x": X}], plugins=plugins
    )
    assert "auto{max-error=" in bundle.pipeline
    assert "rel:1e-2" in bundle.pipeline
    assert "objective=bytes" in bundle.pipeline


@pytest.mark.parametrize("samples", [[{"x": X}] * 3, lambda: iter([{"x": X}] * 3), Reader(3)])
def test_quantize_reads_samples_of_every_kind_more_than_once(plugins, samples):
    bundle = narrowpass.quantize(PROTO, samples, plugins=plugins)
    assert bundle.pipeline.endswith("int8-sym")
    assert Recorder.seen == [["(3, 2)"] * 3] * 2


def test_quantize_without_samples(plugins):
    narrowpass.quantize(PROTO, plugins=plugins)
    assert Recorder.seen == [[], []]


def test_a_pass_that_is_not_installed(plugins):
    with pytest.raises(PluginError, match="pip install narrowpass-int4"):
        narrowpass.quantize(PROTO, to="int4", plugins=plugins)
    with pytest.raises(PluginError, match="pip install narrowpass-fp16"):
        narrowpass.quantize(PROTO, to="bfloat16", plugins=plugins)


def test_an_unknown_type(plugins):
    with pytest.raises(UsageError, match=r"one of int8, int4, float16, bfloat16, not 'int3'"):
        narrowpass.quantize(PROTO, to="int3", plugins=plugins)


def test_the_pass_that_chooses():
    assert choosing_pass(None, None, None) == ""
    assert choosing_pass("rel:1e-2", None, None) == "auto{max-error=rel:1e-2}"
    assert choosing_pass("0.1", "m:f", "mix") == "auto{max-error=m:f:0.1,objective=mix}"
    with pytest.raises(UsageError, match="need an error"):
        choosing_pass(None, None, "bytes")
    with pytest.raises(UsageError, match="need an error"):
        choosing_pass(None, "m:f", None)
