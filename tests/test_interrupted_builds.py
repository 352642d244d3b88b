"""Ctrl-C while a model is built, and while its weights are packed: nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import narrowpass
from narrowpass.cli._errors import redeliver_interrupts

TIMES = 12
"""Interrupts, spread evenly over the time that all of it takes."""


def _model(layers=12, width=384):
    """Return a model of fully connected layers with some megabytes of weights."""
    drawn = np.random.default_rng(0)
    nodes, tensors = [], []
    for i in range(layers):
        weight = drawn.standard_normal((width, width)).astype(np.float32) / width**0.5
        tensors.append(numpy_helper.from_array(weight, f"w{i}"))
        nodes.append(helper.make_node("MatMul", [f"v{i}", f"w{i}"], [f"m{i}"]))
        nodes.append(helper.make_node("Relu", [f"m{i}"], [f"v{i + 1}"]))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("v0", TensorProto.FLOAT, [8, width])],
        [helper.make_tensor_value_info(f"v{layers}", TensorProto.FLOAT, [8, width])],
        tensors,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])


class _Work:
    """Builds a bundle, packs its weights into a cache folder, and runs it."""

    def __init__(self, folder):
        self.out, self.cache = folder / "out" / "model.narrow", folder / "cache"
        self.out.parent.mkdir()
        self._model = _model()
        self._feeds = {"v0": np.ones((8, 384), np.float32)}

    def do(self):
        """Do all of it anew, but for what a bundle that is there is replaced by."""
        narrowpass.quantize(self._model, [self._feeds], self.out, to="int8")
        return self.load()

    def load(self):
        with narrowpass.load(self.out, "xnn-cpu", cache_dir=self.cache, threads=1) as program:
            return next(iter(program.run(self._feeds).values()))

    def left(self):
        """Return the names of files that should not be there."""
        found = [path.name for path in self.out.parent.iterdir() if path != self.out]
        hidden = self.cache.rglob("*") if self.cache.exists() else []
        return found + [path.name for path in hidden if "tmp" in path.name]


def _interrupt(clock, at):
    while time.clock_gettime(clock) < at:
        time.sleep(0.0005)
    os.kill(os.getpid(), signal.SIGINT)


def main(folder):
    """Interrupt all of it at many places; print a line of JSON."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    work = _Work(Path(folder))
    clock = time.pthread_getcpuclockid(threading.get_ident())
    right = work.do()
    begin = time.thread_time()
    work.do()
    took = time.thread_time() - begin
    left, interrupted, same = [], 0, True
    for i in range(TIMES):
        for path in work.cache.rglob("*"):
            if path.is_file():
                path.unlink()  # packed again
        at = time.thread_time() + took * (i + 0.5) / TIMES
        thread = threading.Thread(target=_interrupt, args=(clock, at))
        thread.start()
        try:
            # As the command line does: without, one in a hundred is lost in a finalizer.
            with redeliver_interrupts():
                while True:
                    work.do()
        except KeyboardInterrupt:
            interrupted += 1
        thread.join()
        left += work.left()
        same = same and bool(np.array_equal(work.load(), right))
    print(json.dumps({"left": left, "interrupted": interrupted, "same": same}))


@pytest.mark.long
def test_an_interrupt_leaves_nothing_behind(tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    done = subprocess.run(
        [sys.executable, __file__, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found == {"left": [], "interrupted": TIMES, "same": True}
    assert list(temporary.iterdir()) == []


if __name__ == "__main__":
    main(sys.argv[1])
