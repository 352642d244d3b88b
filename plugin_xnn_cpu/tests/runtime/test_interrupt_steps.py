"""Ctrl-C during one long step of each kind: it is answered soon, and the program goes on.

What is asserted is how long the interrupted thread computed from the signal on, and not how long
that took: the machine may have more to do.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from interrupt_kit import STEPS

from narrowpass_xnn_cpu.native import library

pytestmark = pytest.mark.anywhere

SOON = 0.2
"""Seconds of computing in which the documentation says that a Ctrl-C is answered."""


def interrupted(name, threads):
    """Interrupt a step in a process of its own; return what it prints."""
    script = Path(__file__).parents[1] / "kits" / "interrupt_kit.py"
    done = subprocess.run(
        [sys.executable, script, name, str(threads)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


ALWAYS = ("top_k", "scatter elements", "lstm")
"""Steps of one loop, of additions and of tiles; others are like these, or need gigabytes."""


def _cases():
    for name in STEPS:
        yield pytest.param(name, 1, marks=[] if name in ALWAYS else pytest.mark.long)
    yield pytest.param("top_k", 2, marks=pytest.mark.long)
    yield ("xnn deconvolution", 2)


@pytest.mark.parametrize(("name", "threads"), list(_cases()))
def test_a_long_step_is_ended_soon(name, threads):
    if name.startswith("xnn") and library.is_portable():
        pytest.skip("operators in plain C are computed to their ends")
    found = interrupted(name, threads)
    print(name, threads, found)
    # Three quarters of the step were left: one that goes on to its end takes longer.
    assert 0 < found["answered"] < min(SOON, 0.6 * found["took"]), found
    assert found["same"]
    assert not [kernel for kernel in found["kernels"] if kernel.startswith(("numpy", "onnx"))]
