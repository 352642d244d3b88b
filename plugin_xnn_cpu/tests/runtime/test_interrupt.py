"""Ctrl-C during a run: the run ends, with what the signal's handler raises, and can be repeated."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from xnn_kit import compile_model, one_node

pytestmark = pytest.mark.anywhere

BEGIN = """
import os, signal, sys, threading, time
sys.path.insert(0, {folder!r})
import numpy as np
from onnx import TensorProto, helper
from xnn_kit import compile_model, feeds_for, one_node

# Shells ignore it for what they start in the background, and that is inherited.
signal.signal(signal.SIGINT, signal.default_int_handler)


def interrupt():
    time.sleep(0.3)
    began.append(time.perf_counter())
    os.kill(os.getpid(), signal.SIGINT)


def check(model, threads):
    program = compile_model(model, threads=threads)
    feeds = feeds_for(model)
    threading.Thread(target=interrupt).start()
    runs = 0
    try:
        while runs < 200:
            program.run(feeds)
            runs += 1
    except KeyboardInterrupt:
        print("ended after", time.perf_counter() - began[0], "s, in run", runs, flush=True)
    else:
        sys.exit("no run was ended")
    one, other = program.run(feeds), program.run(feeds)
    assert all(np.array_equal(one[name], other[name]) for name in one)


began = []
"""

MODELS = {
    "one long step": """
        matrix = np.ones((1024, 1024), np.float32)
        check(one_node("MatMul", [(3000, 1024), matrix]), {threads})
    """,
    "many steps": """
        names = ["x", *(f"v{{i}}" for i in range(200))]
        nodes = [
            helper.make_node("Sigmoid", [a], [b]) for a, b in zip(names, names[1:])
        ]
        graph = helper.make_graph(
            nodes, "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1 << 20])],
            [helper.make_tensor_value_info(names[-1], TensorProto.FLOAT, [1 << 20])],
        )
        check(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), {threads})
    """,
}


def run_script(text):
    return subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_an_interrupt_ends_a_run(name, threads):
    begin = BEGIN.format(folder=str(Path(__file__).parents[1] / "kits"))
    done = run_script(begin + textwrap.dedent(MODELS[name]).format(threads=threads))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("ended after")
    print(name, threads, done.stdout)


def test_one_call_is_ended_before_its_end():
    """The run is far longer than the test: only its end in between lets this finish."""
    text = BEGIN.format(folder=str(Path(__file__).parents[1] / "kits")) + textwrap.dedent("""
        from narrowpass_xnn_cpu.native import kernels
        from narrowpass_xnn_cpu.native.runtime.pool import shared
        from narrowpass_planning.plan.executor import Entry
        from narrowpass_xnn_cpu.native.runtime.tape import Tape
        size = 1 << 22
        x, y = np.ones(size, np.float32), np.empty(size, np.float32)
        params = kernels.function(size, "sigmoid")
        entries = [Entry("NP_FUNCTION", (0,), 1, None, params, True, "n")] * 200_000
        tape = Tape(entries, 2)
        tape.bind(0, x)
        tape.bind(1, y)
        threading.Thread(target=interrupt).start()
        try:
            tape.run(shared(2))
        except KeyboardInterrupt:
            print("ended after", time.perf_counter() - began[0], flush=True)
    """)
    done = run_script(text)
    assert done.stdout.startswith("ended after"), done.stdout + done.stderr


def test_signal_handlers_that_do_not_raise_do_not_end_a_run():
    text = BEGIN.format(folder=str(Path(__file__).parents[1] / "kits")) + textwrap.dedent("""
        seen = []
        signal.signal(signal.SIGINT, lambda *_: seen.append(len(seen)))
        model = one_node("MatMul", [(3000, 1024), np.ones((1024, 1024), np.float32)])
        program, feeds = compile_model(model, threads=2), feeds_for(model)
        expected = program.run(feeds)["y0"]
        threading.Thread(target=interrupt).start()
        while not seen:
            assert np.array_equal(program.run(feeds)["y0"], expected)
        print("seen")
    """)
    done = run_script(text)
    assert done.stdout == "seen\n", done.stdout + done.stderr


def test_other_threads_go_on():
    """A run on another thread than the main one is not interrupted."""
    model = one_node("MatMul", [(500, 512), np.ones((512, 512), np.float32)])
    program = compile_model(model, threads=2)
    x = np.ones((500, 512), np.float32)
    results = []

    def work():
        end = time.perf_counter() + 0.2
        while time.perf_counter() < end:
            results.append(program.run({"x0": x})["y0"][0, 0])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert set(results) == {512.0}
