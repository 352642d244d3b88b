"""What a process imports for a session whose model was built before: each has it for itself."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("onnxruntime")

WORKER = """
import json, os, sys
import numpy as np, onnx, onnxruntime
from onnx import TensorProto, helper, numpy_helper
import narrowpass_onnxruntime

form, cache, path = sys.argv[1:]
x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 512]) for name in "xy")
weight = numpy_helper.from_array(np.full((512, 512), 0.5, np.float32), "w")
node = helper.make_node("MatMul", ["x", "w"], ["y"])
model = helper.make_model(
    helper.make_graph([node], "halves", [x], [y], [weight]),
    opset_imports=[helper.make_opsetid("", 18)], ir_version=10,
)
if not os.path.exists(path):
    onnx.save(model, path)
narrowpass_onnxruntime.register()
own = narrowpass_onnxruntime.InferenceSession
cls = onnxruntime.InferenceSession if form == "provider" else own
ours = ("NarrowpassExecutionProvider", {"cache_dir": cache, "threads": "1"})
session = cls(path if form == "class" else model.SerializeToString(), providers=[ours])
found = session.run(None, {"x": np.ones((1, 512), np.float32)})[0]
large = ("sympy", "onnx.reference", "narrowpass_reference.nodes")
print(json.dumps([found.tolist() == [[256.0] * 512], [each in sys.modules for each in large]]))
"""


@pytest.mark.parametrize("form", ["provider", "class"])
def test_large_libraries_are_left_out(form, tmp_path):
    arguments = [form, str(tmp_path / "cache"), str(tmp_path / "model.onnx")]
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", WORKER, *arguments], capture_output=True, text=True, check=False
        )
        assert not done.returncode, done.stderr
        right, imported = json.loads(done.stdout)
        assert right
    assert imported == [False] * 3
