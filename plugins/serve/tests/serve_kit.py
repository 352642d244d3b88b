"""Small models whose answers numpy has, and servers: in this process or in one of their own."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from starlette.testclient import TestClient

import narrowpass
from narrowpass_serve import Metrics, Repository, Settings, Source, create_app

FLOAT, INT64, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING
WIDTH, OUT = 16, 8


def _save(path, nodes, inputs, outputs, constants=None):
    info = helper.make_tensor_value_info
    held = [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()]
    graph = helper.make_graph(
        nodes, "g", [info(*each) for each in inputs], [info(*each) for each in outputs], held
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    narrowpass.build(model, "", out=path)
    return path


def weights(seed=0):
    return np.random.default_rng(seed).standard_normal((WIDTH, OUT)).astype(np.float32)


def matmul(path, seed=0):
    """Save y = x W, with rows that are independent."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    # Exporters name the rows of an output in their own way.
    shapes = [("x", FLOAT, ["N", WIDTH])], [("y", FLOAT, ["other", OUT])]
    return _save(path, nodes, *shapes, {"w": weights(seed)})


def mixing(path):
    """Save a softmax over the rows: of more rows, another function."""
    nodes = [helper.make_node("Softmax", ["x"], ["y"], axis=0)]
    return _save(path, nodes, [("x", FLOAT, ["N", 4])], [("y", FLOAT, ["N", 4])])


def outer(path):
    """Save a matmul of two inputs: rows of the second one are no rows of the output."""
    nodes = [helper.make_node("MatMul", ["x", "z"], ["y"])]
    inputs = [("x", FLOAT, ["N", 1]), ("z", FLOAT, ["M", "K"])]
    return _save(path, nodes, inputs, [("y", FLOAT, ["N", "K"])])


def fixed(path):
    """Save an identity of two rows."""
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    return _save(path, nodes, [("x", FLOAT, [2, 4])], [("y", FLOAT, [2, 4])])


def table(path):
    """Save rows of a table by their index, which fails where none is."""
    nodes = [helper.make_node("Gather", ["w", "ids"], ["y"])]
    shapes = [("ids", INT64, ["N", 3])], [("y", FLOAT, ["N", 3, OUT])]
    return _save(path, nodes, *shapes, {"w": weights()})


def strings(path):
    """Save an identity of texts."""
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    return _save(path, nodes, [("x", STRING, ["N"])], [("y", STRING, ["N"])])


def doubling(path, element):
    """Save y = x + x of an element type."""
    nodes = [helper.make_node("Add", ["x", "x"], ["y"])]
    return _save(path, nodes, [("x", element, ["N", 2])], [("y", element, ["N", 2])])


def identity(path, element):
    """Save y = x of an element type."""
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    return _save(path, nodes, [("x", element, ["N"])], [("y", element, ["N"])])


def row_of(number, rows=1):
    return np.random.default_rng(number).standard_normal((rows, WIDTH)).astype(np.float32)


def tensor(name, array, datatype="FP32"):
    """Return an input in JSON."""
    data = array.ravel().tolist()
    return {"name": name, "datatype": datatype, "shape": list(array.shape), "data": data}


def result(answer, name="y", dtype=np.float32):
    """Return an output of JSON as an array."""
    found = next(each for each in answer.json()["outputs"] if each["name"] == name)
    return np.array(found["data"], dtype).reshape(found["shape"])


@dataclass
class LocalServer:
    """A server in this process."""

    client: TestClient
    repository: Repository
    metrics: Metrics

    def infer(self, model, *inputs, **more):
        document = {"inputs": list(inputs), **more}
        return self.client.post(f"/v2/models/{model}/infer", json=document)

    def metric(self, name, **labels):
        """Return the value of a metric; 0 where it was never counted."""
        wanted = {f'{key}="{value}"' for key, value in labels.items()}
        for line in self.client.get("/metrics").text.splitlines():
            found = re.fullmatch(rf"{name}(?:\{{(.*)\}})? (\S+)", line)
            if found and wanted <= set((found[1] or "").split(",")):
                return float(found[2])
        return 0.0


@contextlib.contextmanager
def serving(paths, **settings):
    """Serve models by name."""
    chosen, metrics = Settings(**settings), Metrics()
    sources = {name: Source(name, Path(path)) for name, path in paths.items()}
    repository = Repository(sources, chosen, metrics)
    try:
        for name in sources:
            repository.load(name)
        with TestClient(create_app(repository, chosen, metrics)) as client:
            yield LocalServer(client, repository, metrics)
    finally:
        repository.close()


class ServerProcess:
    """A server in a process of its own."""

    def __init__(self, *arguments):
        command = [sys.executable, "-m", "narrowpass", "serve", "--port", "0", *map(str, arguments)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.lines = []
        while not (
            found := re.search(
                r"serving at (http://\S+:\d+)(?: and gRPC at (\S+))?", "".join(self.lines[-1:])
            )
        ):
            line = self.process.stderr.readline()
            assert line, "".join(self.lines)
            self.lines.append(line)
        self.url, self.grpc = found.groups()

    def stop(self, signal=None):
        """Send a signal; return the exit code, and what was said after the start."""
        if signal is not None:
            self.process.send_signal(signal)
        said = self.process.communicate(timeout=60)[1]
        return self.process.returncode, said

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()


def wait_until(condition, seconds=30.0):
    """Wait for what another thread or process does; return whether it came."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True
