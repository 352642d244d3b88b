"""Operators in plain C that stand in for XNNPACK: built, loaded, and compared with XNNPACK's.

The ONNX node suite runs on them in `tox -e long`, and
``python tools/portable.py pytest plugin_xnn_cpu/tests`` runs all of these tests on them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import narrowpass
from narrowpass_testing import model_from_text

pytestmark = pytest.mark.anywhere

TOOL = Path(__file__).parents[3] / "tools" / "portable.py"

MODEL = """
g (float[1, 4, 9, 7] x) => (float[1, 6, 18, 14] y)
<float[6, 4, 3, 3] w = {%s}, float[4] scales = {1, 1, 2, 2}> {
    a = Conv <pads = [1, 1, 1, 1]> (x, w)
    b = Sigmoid(a)
    c = Mul(a, b)
    d = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (c)
    e = Softmax <axis = 1> (d)
    f = ReduceMean <keepdims = 1, axes = [2, 3]> (e)
    h = Sub(e, f)
    y = Resize <mode = "linear"> (h, , scales)
}
"""

RUN = """
import sys, numpy as np, narrowpass
from narrowpass_xnn_cpu.native import library
assert library.is_portable()
with narrowpass.load(sys.argv[1], "xnn-cpu", threads=2) as program:
    np.save(sys.argv[3], program.run({"x": np.load(sys.argv[2])})["y"])
"""


@pytest.fixture(scope="module")
def portable(tmp_path_factory):
    """Return the path of the library."""
    if shutil.which(os.environ.get("CC", "cc")) is None:
        pytest.skip("there is no C compiler")
    if not TOOL.exists():
        pytest.skip("the tool is in the repository alone")
    sys.path.insert(0, str(TOOL.parent))
    import portable as tool

    sys.path.pop(0)
    return tool.build(tmp_path_factory.mktemp("portable"))


def test_the_same_results_within_roundings(portable, tmp_path):
    """Four roundings of float32 at most differ in each element, of numbers below 1."""
    rng = np.random.default_rng(1)
    weights = ", ".join(f"{value:.4f}" for value in rng.standard_normal(6 * 4 * 9) / 6)
    model = model_from_text(MODEL % weights, opset=13)
    x = rng.standard_normal((1, 4, 9, 7)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    narrowpass.build(model, "", tmp_path / "m.narrow")
    arguments = [str(tmp_path / name) for name in ("m.narrow", "x.npy", "y.npy")]
    environment = {**os.environ, "NARROWPASS_XNNPACK": str(portable), "NARROWPASS_ISA": ""}
    subprocess.run([sys.executable, "-c", RUN, *arguments], check=True, env=environment)
    with narrowpass.load(model, "reference", pipeline="") as program:
        wanted = program.run({"x": x})["y"]
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), wanted, rtol=0, atol=1e-6)


def test_backends_says_what_stands_in(portable):
    environment = {**os.environ, "NARROWPASS_XNNPACK": str(portable), "NARROWPASS_ISA": ""}
    command = [sys.executable, "-m", "narrowpass", "backends"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    assert "not in this build: its operators are plain C" in done.stdout
