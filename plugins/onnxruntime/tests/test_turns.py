"""Processes that want to build the same bundle at once: one builds, and the others wait for it."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time

import numpy as np
import onnx
import pytest
from filelock import FileLock
from onnx import TensorProto, helper, numpy_helper

from narrowpass_onnxruntime.files import LOCK, turn

onnxruntime = pytest.importorskip("onnxruntime")

WIDTH, INNER = 64, 8192
PATIENCE = 120
"""Seconds after which a process is taken to hang."""

# Says when it builds and when it wants its turn; goes on when there is a file `go`, or dies.
WORKER = """
import os, signal, sys, time
from pathlib import Path
import numpy as np
import onnxruntime
import narrowpass_onnxruntime
from filelock import FileLock

form, cache, folder, last = *sys.argv[1:4], sys.argv[4] == "dies"
folder = Path(folder)

def building(inner):
    def build(*arguments, **options):
        folder.joinpath(f"built-{os.getpid()}").touch()
        while not folder.joinpath("go").exists():
            time.sleep(0.01)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)
        return inner(*arguments, **options)
    return build

def acquiring(lock, *arguments, **options):
    if lock.lock_file.endswith(".narrow.lock"):
        folder.joinpath(f"waits-{os.getpid()}").touch()
    return acquire(lock, *arguments, **options)

acquire, FileLock.acquire = FileLock.acquire, acquiring
if form == "provider":
    from narrowpass_onnxruntime.provider.compiling import GroupCompiler as builder
    name, cls = "_build", onnxruntime.InferenceSession
else:
    from narrowpass_onnxruntime.session.creation import _Build as builder
    name, cls = "_run", narrowpass_onnxruntime.InferenceSession
setattr(builder, name, building(getattr(builder, name)))
narrowpass_onnxruntime.register()
ours = ("NarrowpassExecutionProvider", {"cache_dir": cache, "threads": "1"})
session = cls(str(folder / "model.onnx"), providers=[ours, "CPUExecutionProvider"])
np.save(folder / f"{os.getpid()}.npy", session.run(None, {"x": np.load(folder / "x.npy")})[0])
"""


@pytest.fixture
def folder(tmp_path):
    """Has a model, and what it is fed."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal(shape, np.float32), name)
        for name, shape in {"w": (WIDTH, INNER), "v": (INNER, WIDTH)}.items()
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", WIDTH]) for name in "xy")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "v"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "perceptron", [x], [y], weights)
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(
        helper.make_model(graph, opset_imports=opsets, ir_version=10), tmp_path / "model.onnx"
    )
    np.save(tmp_path / "x.npy", rng.standard_normal((2, WIDTH), np.float32))
    return tmp_path


def started(form, folder, how="lives"):
    arguments = [form, str(folder / "cache"), str(folder), how]
    return subprocess.Popen([sys.executable, "-c", WORKER, *arguments])


def wait_for(path, worker):
    end = time.monotonic() + PATIENCE
    while not path.exists():
        assert worker.poll() is None, "the process has ended"
        assert time.monotonic() < end, f"no {path.name}"
        time.sleep(0.01)


def check(worker, folder):
    """Compare with onnxruntime: float32, 8192 terms added in another order."""
    assert worker.wait(PATIENCE) == 0
    session = onnxruntime.InferenceSession(
        str(folder / "model.onnx"), providers=["CPUExecutionProvider"]
    )
    expected = session.run(None, {"x": np.load(folder / "x.npy")})[0]
    found = np.load(folder / f"{worker.pid}.npy")
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def builders(folder):
    return {int(path.name.partition("-")[2]) for path in folder.glob("built-*")}


@pytest.mark.parametrize("form", ["provider", "class"])
def test_the_second_process_takes_what_the_first_has_built(form, folder):
    first = started(form, folder)
    wait_for(folder / f"built-{first.pid}", first)
    second = started(form, folder)
    wait_for(folder / f"waits-{second.pid}", second)
    (folder / "go").touch()
    for worker in (first, second):
        check(worker, folder)
    assert builders(folder) == {first.pid}


@pytest.mark.parametrize("form", ["provider", "class"])
def test_where_the_first_process_dies_the_second_builds(form, folder):
    first = started(form, folder, "dies")
    wait_for(folder / f"built-{first.pid}", first)
    second = started(form, folder)
    wait_for(folder / f"waits-{second.pid}", second)
    (folder / "go").touch()
    assert first.wait(PATIENCE) == -signal.SIGKILL
    check(second, folder)
    assert builders(folder) == {first.pid, second.pid}


def test_nobody_waits_for_ever(tmp_path, caplog):
    """As long as another has the turn, here too: with a warning."""
    path = tmp_path / "built"
    with FileLock(f"{path}{LOCK}"), caplog.at_level(logging.WARNING):
        before = time.monotonic()
        with turn(path, 0.2):
            assert time.monotonic() - before >= 0.2
        (record,) = caplog.records
    assert str(path) in record.getMessage()
    caplog.clear()
    with turn(path, 0.0):
        assert os.path.exists(f"{path}{LOCK}")  # noqa: PTH110
    assert not caplog.records
