"""Sweeps: grids, trials judged by numpy, resumption, the Pareto front."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import narrowpass
from narrowpass.errors import UsageError
from narrowpass_ray import Judging, sweep, sweeping
from narrowpass_ray.sweeping import expand, pipelines
from narrowpass_ray.trial import Trial, run_trial
from narrowpass_testing import model_from_text


@pytest.fixture
def model(tmp_path: Path) -> str:
    values = ", ".join(map(str, np.random.default_rng(1).normal(size=64).tolist()))
    text = f"""
        g (float[N, 8] x) => (float[N, 8] y)
        <float[8, 8] w = {{{values}}}> {{ y = MatMul(x, w) }}
    """
    onnx.save(ir.to_proto(model_from_text(text)), tmp_path / "model.onnx")
    return str(tmp_path / "model.onnx")


@pytest.fixture
def data(tmp_path: Path) -> str:
    (tmp_path / "samples").mkdir()
    for number in range(3):
        x = np.random.default_rng(number).normal(size=(4, 8)).astype(np.float32)
        np.savez(tmp_path / "samples" / f"{number}.npz", x=x)
    return str(tmp_path / "samples")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("fold", ["fold"]),
        ("", [""]),
        ("fold<|,fp16>", ["fold", "fold,fp16"]),
        ("a{x=<1|2>},b{y=<3|4>}", ["a{x=1},b{y=3}", "a{x=1},b{y=4}", "a{x=2},b{y=3}",
                                   "a{x=2},b{y=4}"]),
    ],
)  # fmt: skip
def test_alternatives_are_all_tried(text: str, wanted: list[str]) -> None:
    assert expand(text) == wanted


@pytest.mark.parametrize("text", ["a<b", "a>b", "a<b<c>>"])
def test_alternatives_that_do_not_end(text: str) -> None:
    with pytest.raises(UsageError, match="write alternatives as"):
        expand(text)


def test_limits_follow_each_pipeline() -> None:
    assert pipelines(["", "fold"], ["rel:1e-2"]) == [
        "auto{max-error=rel:1e-2}",
        "fold,auto{max-error=rel:1e-2}",
    ]
    assert pipelines([], []) == [""]


def test_a_trial_is_what_numpy_finds(model: str, data: str, tmp_path: Path) -> None:
    pytest.importorskip("narrowpass_int8_sym")
    bundles = tmp_path / "bundles"
    bundles.mkdir()
    judging = Judging(model, data, "xnn-cpu", runs=3, bundles=str(bundles))
    text = "int8-sym{mode=dynamic}"
    trial = run_trial(judging, text)
    assert trial.error == ""
    (bundle,) = bundles.iterdir()
    worst = 0.0
    weight = ir.from_proto(onnx.load(model)).graph.initializers["w"].const_value.numpy()
    with narrowpass.load(bundle, "xnn-cpu", threads=1) as program:
        for file in sorted(Path(data).iterdir()):
            x = np.load(file)["x"]
            right = x.astype(np.float64) @ weight.astype(np.float64)
            found = np.abs(program.run({"x": x})["y"] - right).max() / np.abs(right).max()
            worst = max(worst, float(found))
    # The trial's reference is float32, off by 8 rounding errors of 2⁻²⁴ from numpy's float64.
    assert trial.metrics["relative"] == pytest.approx(worst, abs=1e-6)
    assert trial.metrics["relative"] > 1e-4
    assert (trial.samples, trial.bytes > 0, trial.ratio > 0) == (3, True, True)


def test_a_trial_that_fails_says_why(model: str, data: str, tmp_path: Path) -> None:
    assert "no pass" in run_trial(Judging(model, data), "no-such-pass").error
    assert "no data at" in run_trial(Judging(model, str(tmp_path / "nowhere")), "").error


def test_a_sweep_goes_on_where_it_was(
    model: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import contextlib

    ran: list[str] = []

    def here(judging: Judging, texts: list[str], num_cpus: float) -> Any:
        for text in texts:
            ran.append(text)
            yield run_trial(judging, text)

    monkeypatch.setattr(sweeping, "_results", here)
    monkeypatch.setattr(sweeping, "connected", lambda address: contextlib.nullcontext())
    judging = Judging(model, data, "xnn-cpu", runs=1)
    out = str(tmp_path / "out")
    first = sweep(judging, ["", "no-such-pass"], out)
    assert [bool(trial.error) for trial in first] == [False, True]
    again = sweep(judging, ["", "no-such-pass"], out)
    assert ran == ["", "no-such-pass", "no-such-pass"]
    assert again[0] == first[0]
    with pytest.raises(UsageError, match="differs in judging"):
        sweep(Judging(model, data, "xnn-cpu", runs=2), [""], out)
    with pytest.raises(UsageError, match="each once"):
        sweep(judging, ["", ""], out)


def trial(name: str, time: float, error: float) -> Trial:
    return Trial(name, seconds=time, seconds_before=1.0, before=1, metrics={"relative": error})


def test_the_front_is_what_nothing_beats() -> None:
    trials = [
        trial("slow and exact", 1.0, 0.0),
        trial("fast", 0.5, 0.1),
        trial("beaten by fast", 0.5, 0.2),
        trial("beaten by both", 1.0, 0.3),
        trial("between", 0.7, 0.05),
        Trial("failed", "why"),
    ]
    for one in trials[:-1]:
        others = [o for o in trials[:-1] if o is not one]
        beaten = any(
            o.ratio <= one.ratio and o.metrics["relative"] <= one.metrics["relative"]
            for o in others
        )
        assert (one in sweeping.front(trials, "relative")) != beaten
    plot, table = sweeping.exhibits(trials, "relative")
    kinds = {point["label"]: point["kind"] for point in plot["plot"]["points"]}
    assert [name for name, kind in kinds.items() if kind] == ["slow and exact", "fast", "between"]
    assert table["table"]["rows"][-1][-1] == "why"
    json.dumps([plot, table])
    with pytest.raises(UsageError, match="no metric"):
        sweeping.error_of(trials[0], "z")
    with pytest.raises(UsageError, match="have no top1"):
        sweeping.error_of(trials[0], "top1")
