"""Indices that another thread changes during a run: an error or some rows, and no crash."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper
from xnn_kit import compile_model

from narrowpass.errors import BackendError

pytestmark = [pytest.mark.anywhere, pytest.mark.once]

SCRIPT = """
import sys, threading, time
sys.path.insert(0, {folder!r})
import numpy as np
from onnx import TensorProto, helper
from xnn_kit import compile_model
from narrowpass.errors import NarrowpassError

op_type, shape, attributes = {case!r}
graph = helper.make_graph(
    [helper.make_node(op_type, ["x", "i"], ["y"], **attributes)], "g",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, [64, 4]),
     helper.make_tensor_value_info("i", TensorProto.INT64, shape)],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
program = compile_model(model, threads=2)
x, i = np.ones((64, 4), np.float32), np.zeros(shape, np.int64)
end = time.perf_counter() + 1.5

def change():
    while time.perf_counter() < end:
        i[...] = 1 << 40
        i[...] = 0

thread = threading.Thread(target=change)
thread.start()
refused = 0
while time.perf_counter() < end:
    try:
        program.run({{"x": x, "i": i}})
    except NarrowpassError:
        refused += 1
thread.join()
i[...] = 0
assert (program.run({{"x": x, "i": i}})["y"] == 1).all()
print("alive")
"""

CASES = [
    ("Gather", [200_000], {}),
    ("GatherElements", [64, 4], {}),
    ("GatherND", [100_000, 1], {}),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_changing_indices_do_not_crash(case):
    text = SCRIPT.format(folder=str(Path(__file__).parents[1] / "kits"), case=case)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


@pytest.mark.parametrize("index", [64, -65, 1 << 40, -(1 << 62)])
@pytest.mark.parametrize("count", [1, 100_000])
def test_the_last_index_is_checked_too(index, count):
    graph = helper.make_graph(
        [helper.make_node("Gather", ["x", "i"], ["y"])],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [64, 4]),
            helper.make_tensor_value_info("i", TensorProto.INT64, [count]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    program = compile_model(model, threads=2)
    x, i = np.ones((64, 4), np.float32), np.full(count, -64, np.int64)
    assert (program.run({"x": x, "i": i})["y"] == 1).all()
    i[-1] = index
    with pytest.raises(BackendError, match="index is out of range"):
        program.run({"x": x, "i": i})
