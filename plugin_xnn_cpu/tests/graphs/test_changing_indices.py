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

pytestmark = pytest.mark.anywhere

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


EACH = """
import sys, threading, time
sys.path.insert(0, {folder!r})
import numpy as np, onnx
from onnx.reference import ReferenceEvaluator
from xnn_kit import compile_model
from narrowpass.errors import NarrowpassError

for text, inputs, good in {cases!r}:
    print(text, flush=True)
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 18]>'
        f"g (float[64, 4] x, {{inputs}} i) => (float y) {{{{ {{text}} }}}}"
    )
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    program = compile_model(model, threads=2)
    given = np.array(good)
    x = np.random.default_rng(1).standard_normal((64, 4)).astype(np.float32)
    feeds = {{"x": x, "i": given.astype(np.int32 if "int32" in inputs else given.dtype)}}
    (right,) = ReferenceEvaluator(model).run(None, feeds)
    i, wanted = feeds["i"], feeds["i"].copy()
    bad = ~wanted if wanted.dtype == bool else np.full_like(wanted, np.iinfo(wanted.dtype).max // 3)
    worse = ~wanted if wanted.dtype == bool else -bad
    done = threading.Event()

    def change():
        while not done.is_set():
            for values in (bad, wanted, worse, wanted):
                i[...] = values

    thread = threading.Thread(target=change)
    thread.start()
    end = time.perf_counter() + 0.25
    while time.perf_counter() < end:
        try:
            program.run(feeds)
        except NarrowpassError:
            pass
    done.set()
    thread.join()
    i[...] = wanted
    np.testing.assert_allclose(program.run(feeds)["y"], right, rtol=1e-5, atol=1e-5)
print("alive")
"""

ROWS = [n % 64 for n in range(500)]
TWO = "v = Constant <value_floats = [0.0, 1.0]> ()"
OTHERS = [
    ("y = Gather(x, i)", "int32[500]", ROWS),
    ("y = Gather <axis = 1> (x, i)", "int64[500]", [n % 4 for n in range(500)]),
    ("y = ScatterND(x, i, x)", "int64[64, 1]", [[n] for n in range(64)]),
    ("y = ScatterElements(x, i, x)", "int64[64, 4]", [[n] * 4 for n in range(64)]),
    ("y = ScatterElements <axis = 1> (x, i, x)", "int64[64, 4]", [[0, 1, 2, 3]] * 64),
    (f"k = Constant <value_int = 64> () {TWO} y = OneHot(i, k, v)", "int64[500]", ROWS),
    ("k = Constant <value_ints = [64]> () y = Slice(x, i, k)", "int64[1]", [3]),
    ("k = Constant <value_ints = [1]> () y = Slice(x, k, i)", "int64[1]", [9]),
    ("y = Tile(x, i)", "int64[2]", [2, 3]),
    ("y = Expand(x, i)", "int64[3]", [2, 64, 4]),
    ("y = Reshape(x, i)", "int64[2]", [4, 64]),
    ("y = Pad(x, i)", "int64[4]", [1, 0, 2, 1]),
    ("y = CumSum(x, i)", "int64", 1),
    ("y, z = TopK(x, i)", "int64[1]", [2]),
    ("y = ReduceSum(x, i)", "int64[1]", [1]),
    ("y = Unsqueeze(x, i)", "int64[1]", [1]),
    ("y = Trilu(x, i)", "int64", 1),
    ("y = Compress <axis = 0> (x, i)", "bool[64]", [n % 3 == 0 for n in range(64)]),
    ("y = Where(i, x, x)", "bool[64, 1]", [[n % 3 == 0] for n in range(64)]),
]  # fmt: skip
"""Operators that read integers, with values that are valid."""


@pytest.mark.parametrize("part", range(2))
def test_integers_of_other_operators_do_not_crash(part):
    """One after the other in a process, which prints the one that it is at."""
    folder = str(Path(__file__).parents[1] / "kits")
    text = EACH.format(folder=folder, cases=OTHERS[part::2])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", text],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.endswith("alive\n")
