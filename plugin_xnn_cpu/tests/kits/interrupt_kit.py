"""A process that is interrupted during one long step: ``python interrupt_kit.py STEP THREADS``.

Steps grow until they take long enough on one thread of this machine. Times are those that the
thread computed, whatever else the machine does: the signal is sent when the main thread has
computed a part of the step, and what it computes from then to the exception is measured.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time

import numpy as np
from onnx import TensorProto, helper
from xnn_kit import compile_model, one_node

LONG = 0.3
"""Seconds of computing that a step takes at least."""

ITEMS = 1 << 22
"""Elements that are scattered to: more than caches hold."""


def _indices(count, shape=None):
    found = np.random.default_rng(0).integers(0, ITEMS, count, np.int64)
    return found if shape is None else found.reshape(shape)


def _weights(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def _lstm(n):
    hidden = 256
    weights = [_weights(1, 4 * hidden, 64), _weights(1, 4 * hidden, hidden)]
    return one_node("LSTM", [(n, 1, 64), *weights], outputs=1, hidden_size=hidden)


def _trees(n):
    """Return one row through `n` trees of one node and two leaves each."""
    ids, leaves = np.arange(n), np.repeat(np.arange(n), 2)
    node = helper.make_node(
        "TreeEnsembleRegressor",
        ["x0"],
        ["y0"],
        domain="ai.onnx.ml",
        n_targets=1,
        nodes_treeids=np.repeat(ids, 3).tolist(),
        nodes_nodeids=np.tile([0, 1, 2], n).tolist(),
        nodes_featureids=np.tile([0, 0, 0], n).tolist(),
        nodes_values=np.tile([0.5, 0.0, 0.0], n).tolist(),
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"] * n,
        nodes_truenodeids=np.tile([1, 0, 0], n).tolist(),
        nodes_falsenodeids=np.tile([2, 0, 0], n).tolist(),
        target_treeids=leaves.tolist(),
        target_nodeids=np.tile([1, 2], n).tolist(),
        target_ids=np.zeros(2 * n, int).tolist(),
        target_weights=np.ones(2 * n, np.float32).tolist(),
    )
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x0", TensorProto.FLOAT, [40, 4])],
        [helper.make_tensor_value_info("y0", TensorProto.FLOAT, [40, 1])],
    )
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=imports)


def _strided(n):
    """Return a copy of every second column."""
    slices = map(np.array, ([0, 0], [256, n], [0, 1], [1, 2]))
    return one_node("Slice", [(256, n), *slices])


def _scatter_nd(n):
    shapes = [(ITEMS,), _indices(n, (n, 1)), (n,)]
    return one_node("ScatterND", shapes, reduction="add")


STEPS = {
    "top_k": (1 << 20, lambda n: one_node("TopK", [(2, n), np.array([n])], outputs=2)),
    "scatter elements": (
        1 << 24,
        lambda n: one_node("ScatterElements", [(ITEMS,), _indices(n), (n,)], reduction="add"),
    ),
    "scatter nd": (1 << 24, _scatter_nd),
    "cumulative sum": (1 << 26, lambda n: one_node("CumSum", [(n,), np.array(0)])),
    "copy": (1 << 18, _strided),
    "reduction": (1 << 26, lambda n: one_node("ReduceProd", [(n,)])),
    "arg extreme": (1 << 26, lambda n: one_node("ArgMax", [(1, n)], axis=1)),
    "log softmax": (1 << 26, lambda n: one_node("LogSoftmax", [(1, n)], axis=1)),
    "instance norm": (
        1 << 25,
        lambda n: one_node(
            "InstanceNormalization", [(1, 1, n), np.ones(1, np.float32), np.ones(1, np.float32)]
        ),
    ),
    "max pool": (
        512,
        lambda n: one_node("MaxPool", [(1, 1, 512, n + 511)], kernel_shape=[512, 512]),
    ),
    "average pool": (
        512,
        lambda n: one_node("AveragePool", [(1, 1, 512, n + 511)], kernel_shape=[512, 512]),
    ),
    "trees": (50_000, _trees),
    "lstm": (2000, _lstm),
    "matmul": (2000, lambda n: one_node("MatMul", [(n, 1024), (1024, 1024)])),
    "gemm": (2000, lambda n: one_node("MatMul", [(n, 1024), _weights(1024, 1024)])),
    "convolution": (200, lambda n: one_node("Conv", [(1, 64, 100, n), _weights(64, 64, 5, 5)])),
    "winograd": (200, lambda n: one_node("Conv", [(1, 64, 100, n), _weights(64, 64, 3, 3)])),
    "convolution of one axis": (
        10_000,
        lambda n: one_node("Conv", [(1, 256, n), _weights(256, 256, 7)]),
    ),
    "depthwise": (
        1000,
        lambda n: one_node("Conv", [(1, 64, 200, n), _weights(64, 1, 5, 5)], group=64),
    ),
    "xnn deconvolution": (
        100,
        lambda n: one_node(
            "ConvTranspose", [(1, 128, 100, n), _weights(128, 128, 3, 3)], strides=[2, 2]
        ),
    ),
    "softmax": (100_000, lambda n: one_node("Softmax", [(n, 1000)])),
}
"""Names of kernels: the size to begin with, and the model of a size."""


def _feeds(model):
    """Return uniform numbers: normal ones would take longer than the step."""
    drawn, feeds = np.random.default_rng(0), {}
    given = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        if value.name not in given:
            shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
            feeds[value.name] = drawn.random(shape, np.float32) - np.float32(0.5)
    return feeds


def _program(name, threads):
    """Return a program, its feeds, its explanation and how long it computes on this thread."""
    size, build = STEPS[name]
    while True:
        model = build(size)
        program, feeds = compile_model(model, threads=threads), _feeds(model)
        start = time.thread_time()
        program.run(feeds)
        took = time.thread_time() - start
        if took >= LONG:
            return program, feeds, took
        size = int(size * min(8, max(1.3, 1.3 * LONG / max(took, 1e-3))))


def _interrupt(clock, at, sent):
    while time.clock_gettime(clock) < at:
        time.sleep(0.001)
    sent.append(time.clock_gettime(clock))
    os.kill(os.getpid(), signal.SIGINT)


def main(name, threads):
    """Interrupt the step, and print a line of JSON."""
    # Shells ignore it for what they start in the background, and that is inherited.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    program, feeds, took = _program(name, threads)
    expected = program.run(feeds)
    clock = time.pthread_getcpuclockid(threading.get_ident())
    sent = []
    begin = time.thread_time()
    thread = threading.Thread(target=_interrupt, args=(clock, begin + took / 4, sent))
    thread.start()
    answered = 0.0
    try:
        program.run(feeds)
        thread.join()
    except KeyboardInterrupt:
        answered = time.thread_time() - sent[0]
    again = program.run(feeds)
    found = {
        "kernels": [plan.kernel for plan in program.explain()],
        "took": took,
        "answered": answered,
        "same": all(np.array_equal(again[key], expected[key]) for key in expected),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
