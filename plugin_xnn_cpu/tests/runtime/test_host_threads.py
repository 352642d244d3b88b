"""What numpy multiplies keeps to the number of threads that a program has.

In processes of their own: numpy's BLAS starts its threads when it is loaded.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.anywhere

SCRIPT = """
import pathlib
import sys

import numpy as np
import onnx
import onnx_ir as ir
from narrowpass import Bundle, CompileOptions
from narrowpass_reference import ReferenceBackend
from narrowpass_xnn_cpu.backend import XnnCpuBackend

target, threads = sys.argv[1], int(sys.argv[2])
model = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 18]>
    g (double[N, N] x) => (double[N, N] y) { y = MatMul(x, x) }''')
backend = {"xnn-cpu": XnnCpuBackend, "reference": ReferenceBackend}[target]()
bundle = Bundle({"main": ir.from_proto(model)})
program = backend.compile(bundle, CompileOptions(threads=threads or None))
x = np.random.default_rng(0).standard_normal((1200, 1200))


def computed():
    tasks = pathlib.Path("/proc/self/task").iterdir()
    return {task.name: int((task / "schedstat").read_text().split()[0]) for task in tasks}


before = computed()
for _ in range(3):
    program.run({"x": x})
after = computed()
spent = sorted((after[name] - before.get(name, 0) for name in after), reverse=True)
print(sum(nanoseconds > spent[0] / 10 for nanoseconds in spent))
"""


def threads_that_computed(target: str, threads: int) -> int:
    """Return how many threads computed in three large matmuls; 0 sets no number of threads."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, target, str(threads)],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "2"},
        check=True,
        capture_output=True,
        text=True,
    )
    return int(done.stdout)


@pytest.fixture(scope="module", autouse=True)
def _several_threads():
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("the system does not report the processor time of each thread")
    if threads_that_computed("reference", 0) < 2:
        pytest.skip("numpy's BLAS does not use the threads that it is given here")


@pytest.mark.parametrize("target", ["reference", "xnn-cpu"])
def test_matmuls_of_numpy_use_no_more_threads_than_the_program(target):
    assert threads_that_computed(target, 1) == 1
