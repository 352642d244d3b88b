"""Weights pass through: memory does not grow with the model."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from onnx import TensorProto, helper

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

CHILD = """
import sys, threading, time
import narrowpass, narrowpass.bundle, narrowpass.driver, narrowpass_ir.io
import narrowpass_int4.int4
plugins = narrowpass.load_plugins()
narrowpass.driver.registry_for(plugins)

def resident():
    with open("/proc/self/status") as file:
        fields = dict(line.split(":") for line in file)
    return [int(fields[name].split()[0]) << 10 for name in ("RssAnon", "VmRSS")]

before = resident()
peak = list(before)

def watch():
    while True:
        peak[:] = map(max, peak, resident())
        time.sleep(0.002)

threading.Thread(target=watch, daemon=True).start()
narrowpass.build(sys.argv[1], sys.argv[2], sys.argv[3], target="reference", plugins=plugins)
print(*(most - least for most, least in zip(peak, before)))
"""


def decoder(folder, width, layers):
    """Write a chain of square matrices with their weights beside the model; return its bytes."""
    rng = np.random.default_rng(0)
    tensors, nodes, size = [], [], 4 * width * width
    with (folder / "weights.bin").open("wb") as file:
        for number in range(layers):
            rng.standard_normal((width, width), np.float32).tofile(file)
            tensor = TensorProto(name=f"w{number}", data_type=1, dims=[width, width])
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (
                ("location", "weights.bin"),
                ("offset", number * size),
                ("length", size),
            ):
                tensor.external_data.add(key=key, value=str(value))
            tensors.append(tensor)
            nodes.append(
                helper.make_node("MatMul", [f"h{number}", f"w{number}"], [f"h{number + 1}"])
            )
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("h0", 1, ["n", width])],
        [helper.make_tensor_value_info(f"h{layers}", 1, ["n", width])],
        tensors,
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    (folder / "model.onnx").write_bytes(proto.SerializeToString())
    return layers * size


@pytest.mark.parametrize(
    "text", ["int4{method=rtn}", "int4{method=mse,format=nbits,block=channel}"]
)
def test_weights_are_streamed(text, tmp_path):
    total = decoder(tmp_path, 2048, 16)
    assert total == 16 * 16 << 20
    arguments = [tmp_path / "model.onnx", text, tmp_path / "out.narrow"]
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *map(str, arguments)],
        check=True,
        capture_output=True,
        text=True,
    )
    # Pieces of 4 MB, and the arrays that the search works with: below a few weights of 16 MB. Pages
    # of mapped files are evicted, too: of all weights there are 256 MB.
    private, resident = map(int, done.stdout.split())
    assert private < 5 * 16 << 20
    assert resident < 7 * 16 << 20
    files = (tmp_path / "out.narrow").rglob("*")
    stored = sum(file.stat().st_size for file in files)
    assert stored < total / 5
