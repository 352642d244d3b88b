"""Random arguments for the command line and the public functions: only documented errors come."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from plugins_kit import REFERENCE

from narrowpass import (
    Bundle,
    Samples,
    build,
    load,
    load_model,
    load_plugins,
    open_bundle,
    save_model,
)
from narrowpass.errors import NarrowpassError

X = np.ones((2, 4), np.float32)

PATHS = [
    "model.onnx", "m.narrow", "m.narrow/manifest.json", "m.narrow/weights.safetensors", "x.npy",
    "x.npz", "cut.npz", "cut.onnx", "gone", "gone/x", ".", "", "folder", "dangling", "a\nb", "é☃",
    "n" * 300, "-", "--", "=", "a=b", "x=x.npy", "x=x.npz:x", "/dev/null", "a\0b", "\udcff", "m:f",
]  # fmt: skip
WORDS = [
    *PATHS, "0", "1", "-1", "1.5", "nan", "1e400", "9" * 30, "true", "fold", "negate", "negate{",
    "negate{times=3}", "negate,negate", "fail", "crash", "twice", "timing", "dump{dir=}", ",", "{}",
    "reference", "main", "x=2x4", "x=1x4", "x=0x4", "x=", "rel:1e-2", "sqnr:nan", "top1:2", "bash",
]  # fmt: skip
COMMANDS = {
    "build": ["-o", "-p", "--target", "--calibration", "--report", "--no-verify", "--time",
              "--statistics", "--print-after-change", "--dump-dir", "--reproducer",
              "--instrument", "--json"],
    "run": ["--method", "--input", "-o", "--backend", "-p", "--threads", "--no-cache",
            "--require-native", "--cache-dir", "--json"],
    "bench": ["--method", "--input", "--shape", "--backend", "-p", "--threads", "--profile",
              "--trace", "--seed", "--json"],
    "compare": ["--data", "--method", "--tolerance", "-p", "--shape", "--seed", "--json"],
    "explain": ["--method", "--backend", "-p", "--threads", "--report", "--json"],
    "inspect": ["--verify", "--json"],
    "passes": ["--json"],
    "replay": ["--dump-dir", "--json"],
    "completion": [],
}  # fmt: skip
FLAGS = {
    "--json", "--no-verify", "--time", "--statistics", "--print-after-change", "--no-cache",
    "--require-native", "--profile", "--verify",
}  # fmt: skip
ODD = [
    None, True, False, 0, 1, -1, 1.5, 10**30, float("nan"), "", "main", "fold", "x", b"x", "a\0b",
    [], ["x"], [1], (), {}, {"x": X}, {"main": "model.onnx"}, {1: 2}, {"y": 3}, object(), object,
    np.int64(2), np.float32(1), np.bool_(True), X, X.astype(">f4"), X[0], X.astype(object), len,
    Path("model.onnx"), Path("m.narrow"), "model.onnx", "m.narrow", "gone", ".", lambda: [{"x": X}],
]  # fmt: skip


@pytest.fixture
def prepared(call, passes, model):
    """Write what the random paths name."""
    call("build", model, "-o", "m.narrow", "-p", "negate")
    np.save("x.npy", X)
    np.savez("x.npz", x=X)
    Path("cut.npz").write_bytes(Path("x.npz").read_bytes()[:-30])
    Path("cut.onnx").write_bytes(Path("model.onnx").read_bytes()[:-30])
    Path("folder").mkdir()
    Path("dangling").symlink_to("nowhere")
    return Path("model.onnx").read_bytes()


def _command_line(rng):
    command = rng.choice(list(COMMANDS))
    words = [command, *rng.choices(PATHS, k=rng.choice([0, 1, 1, 1, 2, 3]))]
    if command in ("run", "bench", "compare", "explain", "inspect") and rng.random() < 0.7:
        words[1:] = rng.choices(["model.onnx", "m.narrow"], k=2 if command == "compare" else 1)
    if command in ("bench", "compare"):
        words += ["--runs", "1"]
    for option in rng.choices(COMMANDS[command], k=rng.randrange(4)) if COMMANDS[command] else ():
        words += [option] if option in FLAGS else [option, rng.choice(WORDS)]
    return words


def _check_command_line(rng, capsys):
    from narrowpass.cli import main

    words = _command_line(rng)
    with pytest.raises(SystemExit) as stopped:
        main(words)
    error = capsys.readouterr().err
    assert stopped.value.code in (0, 1, 2), (words, error)
    assert "internal error" not in error, (words, error)
    assert "Traceback" not in error, (words, error)
    if stopped.value.code:
        assert "error: " in error, (words, error)


def _calls(program, plugins):
    """Return the public functions with the names of the arguments that are tried."""
    registry = plugins.registry
    return [
        (load, ["source", "backend", "threads", "keep", "require_native", "cache",
                "cache_dir", "pipeline", "plugins"],
         {"source": "model.onnx", "plugins": plugins}),
        (build, ["models", "pipeline", "out", "target", "calibration", "instruments", "verify",
                 "plugins", "progress"], {"models": "model.onnx", "plugins": plugins}),
        (open_bundle, ["source", "target", "pipeline", "plugins"],
         {"source": "m.narrow", "plugins": plugins}),
        (load_model, ["path"], {}),
        (save_model, ["model", "path", "inline_limit"], {"path": "out.onnx"}),
        (Bundle, ["methods"], {}),
        (Bundle.load, ["path"], {}),
        (Samples.parse, ["text"], {}),
        (Samples.of, ["samples"], {}),
        (load_plugins, ["disabled", "entry_points"], {"entry_points": []}),
        (registry.backend, ["name"], {}),
        (program.run, ["feeds", "method", "outputs", "out"], {"feeds": {"x": X}}),
        (program.profile, ["feeds", "method", "runs"], {"feeds": {"x": X}, "runs": 1}),
        (program.observe, ["feeds", "meters", "method"], {"feeds": {"x": X}, "meters": {}}),
    ]  # fmt: skip


def _check_call(rng, calls):
    function, names, arguments = rng.choice(calls)
    required = [name for name in names[:1] if name not in arguments]
    chosen = {*required, *rng.sample(names, k=rng.randint(1, min(2, len(names))))}
    given = {**arguments, **{name: rng.choice(ODD) for name in sorted(chosen)}}
    runs = given.get("runs")
    if isinstance(runs, int) and runs > 10:  # a number like any other: it would take for ever
        return
    if function is save_model and "model" not in given:
        given["model"] = None
    if function is save_model and given.get("path") is None:
        given["path"] = "out.onnx"
    try:
        function(**given)
    except NarrowpassError as error:
        _check_message(str(error), function, given)


def _check_message(text, function, given):
    assert text, (function, given)


def _fuzz(prepared, capsys, seed, count):
    rng = random.Random(seed)
    plugins = load_plugins(entry_points=REFERENCE)
    with load("model.onnx", "reference", plugins=plugins) as program:
        calls = _calls(program, plugins)
        for _ in range(count):
            _check_command_line(rng, capsys)
            for _ in range(4):
                _check_call(rng, calls)
    assert load_model("model.onnx").graph.name == "g"
    assert Path("model.onnx").read_bytes() == prepared


@pytest.mark.parametrize("seed", range(2))
def test_only_documented_errors(prepared, capsys, seed):
    _fuzz(prepared, capsys, seed, 60)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 110))
def test_only_documented_errors_for_long(prepared, capsys, seed):
    _fuzz(prepared, capsys, seed, 1500)
