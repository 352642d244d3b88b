"""build and replay."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass

import numpy as np
import onnx
import onnx.reference
import pytest

import narrowpass
from narrowpass.cli._app import app
from narrowpass_reference import ReferenceBackend


def _evaluate(path, x):
    return onnx.reference.ReferenceEvaluator(onnx.load(path)).run(None, {"x": x})[0]


def test_bundle(call, passes, model):
    result = call("build", model, "-o", "out.narrow", "-p", "negate")
    assert "main" in result.out
    assert "3 -> 5" in result.out
    assert "wrote out.narrow" in result.out
    assert "target: reference" in result.err
    assert "pipeline" not in result.err
    with narrowpass.load("out.narrow") as program:
        x = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)
        np.testing.assert_array_equal(program.run({"x": x})["y"], _evaluate(model, x))


def test_default_pipeline_is_printed(call, install, model):
    assert "narrowpass: pipeline: none" in call("build", model, "-o", "out.narrow").err
    assert call("-q", "build", model, "-o", "out.narrow").err == ""
    shown = call("build", model, "-o", "out.narrow", "--target", "reference", "-p", "").err
    assert shown == ""


def test_plain_onnx(call, passes, model):
    call("build", model, "-o", "out.onnx", "-p", "negate")
    onnx.checker.check_model("out.onnx", full_check=True)
    x = np.ones((1, 4), np.float32)
    np.testing.assert_array_equal(_evaluate("out.onnx", x), _evaluate(model, x))


def test_json(call, passes, model, tmp_path):
    document = call(
        "build", f"a={model}", f"b={model}", "-o", "o.narrow", "-p", "twice", "--json"
    ).json
    files = sum(f.stat().st_size for f in (tmp_path / "o.narrow").rglob("*") if f.is_file())
    assert document["bytes"] == files
    assert document["pipeline"] == "twice"
    assert (document["output"], document["format"], document["target"]) == (
        "o.narrow",
        "bundle",
        "reference",
    )
    assert document["methods"]["b"] == {
        "source": model,
        "nodes": {"before": 3, "after": 7},
        "weight_bytes": {"before": 60, "after": 60},
    }
    assert [(row["method"], row["pass"]) for row in document["passes"]] == [
        ("a", "negate"),
        ("a", "negate"),
        ("b", "negate"),
        ("b", "negate"),
    ]
    assert document["passes"][0]["counters"] == {"negated": 1}
    for key in document.keys() - {"version"}:
        assert key in app.get_command(None, "build").help


def test_what_a_pass_says_of_itself_is_printed(call, passes, model):
    printed = call("build", model, "-o", "o.narrow", "-p", "negate{times=4}").out
    assert "\nnegate: 4 nodes for each output\n" in printed
    several = ("build", f"a={model}", f"b={model}", "-o", "p.narrow", "-p", "negate")
    assert "\nb: negate: 2 nodes for each output\n" in call(*several).out
    document = call(*several, "--json").json
    assert document["passes"][1]["summary"] == "2 nodes for each output"


def test_file_whose_name_has_an_equals_sign(call, install, model, save):
    save("a=b.onnx")
    assert list(call("build", "a=b.onnx", "-o", "o.narrow", "--json").json["methods"]) == ["main"]


def test_instruments(call, passes, model, tmp_path):
    result = call(
        "build", model, "-o", "o.narrow", "-p", "negate", "--time", "--statistics",
        "--print-after-change", "--dump-dir", "dump dir", "--instrument", "dump{dir=second}",
    )  # fmt: skip
    assert "passes and checks" in result.err
    assert "negate: nodes 3 -> 5" in result.err
    assert "// after negate" in result.err
    names = ["00-input.onnx", "01-negate.onnx"]
    for folder in ("dump dir", "second"):
        assert sorted(path.name for path in (tmp_path / folder).iterdir()) == names


def test_dump_of_several_methods(call, passes, model, tmp_path):
    call("build", f"a={model}", f"b={model}", "-o", "o.narrow", "-p", "negate", "--dump-dir", "d")
    for method in ("a", "b"):
        assert (tmp_path / "d" / method / "01-negate.onnx").is_file()


def test_calibration_reaches_the_passes(call, passes, model, tmp_path):
    (tmp_path / "data").mkdir()
    for index in range(3):
        np.savez(tmp_path / "data" / f"{index}.npz", x=np.zeros((1, 4), np.float32))
    document = call(
        "build", model, "-o", "o.narrow", "-p", "negate", "--calibration", "data", "--json"
    ).json
    assert document["passes"][0]["counters"]["samples"] == 3


def test_failing_pass_names_itself(call, passes, model, tmp_path):
    error = call("build", model, "-o", "o.narrow", "-p", "negate,fail", code=1).err
    assert "pass 'fail': node 'relu' is not to its taste" in error
    assert not (tmp_path / "o.narrow").exists()
    error = call("build", f"a={model}", f"b={model}", "-o", "o", "-p", "crash", code=1).err
    assert "method 'a': pass 'crash' failed: ZeroDivisionError" in error


def test_reproducer_and_replay(call, passes, install, model, tmp_path):
    error = call("build", model, "-o", "o", "-p", "negate,fail", "--reproducer", "r", code=1).err
    assert "narrowpass replay r" in error
    replayed = call("replay", "r", code=1)
    assert "node 'relu' is not to its taste" in replayed.err
    document = json.loads(call("replay", "r", "--json", code=1).out)
    assert document["pipeline"] == "fail"
    assert "not to its taste" in document["error"]
    assert "not to its taste" in document["was"]
    # Once the pass is repaired, it no longer fails.
    path = tmp_path / "r" / "reproducer.json"
    path.write_text(path.read_text("utf-8").replace('"fail"', '"negate"'))
    assert "no longer fails" in call("replay", "r").out
    assert call("replay", "r", "--json").json["error"] is None


def test_a_reproducer_has_the_options_of_the_target(call, passes, install, model):
    @dataclass(frozen=True)
    class Tuned(ReferenceBackend):
        name = "tuned"
        cores: int = 4

    install("tuned", narrowpass_backends=[Tuned()])
    target = "tuned{cores=2}"
    call("build", model, "-o", "o", "-p", "fail", "--target", target, "--reproducer", "r", code=1)
    assert json.loads(call("replay", "r", "--json", code=1).out)["target"] == target


@dataclass(frozen=True)
class Work(narrowpass.Pass):
    """Takes long."""

    name = "work"

    def run(self, model, ctx):
        for done in range(4):
            ctx.observer.progress("calibrating", done + 1, 4)
            time.sleep(0.15)  # a bar is drawn ten times in a second
        return narrowpass.PassResult(model, modified=False)


@pytest.mark.parametrize("options", [(), ("-q",), ("--json",)])
def test_no_bar_where_nobody_watches(call, install, model, options):
    """And no line, as nothing takes long."""
    install(narrowpass_passes=[Work])
    result = call("build", model, "-o", "o.narrow", "-p", "work", *options)
    assert "calibrating" not in result.err + result.out


def test_lines_of_long_work_where_nobody_watches(call, install, model, monkeypatch):
    install(narrowpass_passes=[Work])
    monkeypatch.setattr("narrowpass.cli.output.EVERY", 0.1)
    result = call("build", model, "-o", "o.narrow", "-p", "work")
    lines = [line for line in result.err.splitlines() if "calibrating" in line]
    assert lines
    assert all(re.fullmatch(r"narrowpass: work: calibrating, \d of 4 \(\d+ s\)", x) for x in lines)
    assert "calibrating" not in result.out


@pytest.mark.parametrize("options", [("-q",), ("--json",)])
def test_no_lines_of_long_work_where_none_are_wanted(call, install, model, monkeypatch, options):
    install(narrowpass_passes=[Work])
    monkeypatch.setattr("narrowpass.cli.output.EVERY", 0.1)
    result = call("build", model, "-o", "o.narrow", "-p", "work", *options)
    assert "calibrating" not in result.err + result.out


def test_a_bar_on_a_terminal(call, install, model, monkeypatch):
    install(narrowpass_passes=[Work])
    monkeypatch.setattr("narrowpass.cli.output.error_is_terminal", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    shown = call("build", model, "-o", "o.narrow", "-p", "work")
    assert "work: calibrating" in shown.err
    assert "50%" in shown.err
    assert "calibrating" not in shown.out
    shown = call("build", f"a={model}", f"b={model}", "-o", "p.narrow", "-p", "work").err
    assert "b: work: calibrating" in shown
    assert "calibrating" not in call("-q", "build", model, "-o", "o.narrow", "-p", "work").err
