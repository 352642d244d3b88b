"""Runs that code in C repeats, and the list of what has no kernel, against numpy."""

import ctypes

import numpy as np

import narrowpass
from narrowpass_testing import model_from_text


def perceptron():
    return model_from_text(
        """g (float[N,3] x) => (float[N,2] y)
        <float[3,2] w = {1, 2, 3, 4, 5, 6}> { a = MatMul(x, w)  y = Relu(a) }"""
    )


def call(replay, feeds):
    """Bind feeds and results as C does, and call; return the results by name."""
    buffers = (ctypes.c_void_p * 64).from_address(replay.call.buffers)
    results = {each.name: np.full(each.shape, np.nan, each.dtype) for each in replay.results}
    for each in (*replay.feeds, *replay.results):
        memory = feeds.get(each.name, results.get(each.name))
        for number, offset in each.binds:
            buffers[number] = memory.ctypes.data + offset
    run = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(replay.call.run)
    assert run(replay.call.argument) == 0
    for each in replay.results:
        if each.source is not None:
            results[each.name][...] = each.source
    return results


def padded(values):
    """Return an array with bytes behind it, which kernels may read."""
    memory = np.zeros(len(values.reshape(-1)) + 64, np.float32)
    found = memory[: values.size].reshape(values.shape)
    found[...] = values
    return found


def test_a_run_is_repeated_for_other_elements():
    weights = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    with narrowpass.load(perceptron(), "xnn-cpu", threads=1, pipeline="") as program:
        first = padded(np.ones((4, 3), np.float32))
        program.run({"x": first})
        replay = program.replay({"x": first})
        assert [(each.name, each.shape) for each in replay.feeds] == [("x", (4, 3))]
        for number in range(3):
            # Small whole numbers: exact in any order.
            x = padded(np.arange(12, dtype=np.float32).reshape(4, 3) - 4 * number)
            found = call(replay, {"x": x})["y"]
            np.testing.assert_array_equal(found, np.maximum(x @ weights, 0))


def test_there_is_none_where_more_than_one_partition_runs():
    """The reference evaluator computes Det between two partitions."""
    model = model_from_text(
        """g (float[N,2,2] x) => (float[N] y) { a = Relu(x)  b = Det(a)  y = Sqrt(b) }"""
    )
    feeds = {"x": np.eye(2, dtype=np.float32)[None]}
    with narrowpass.load(model, "xnn-cpu", threads=1, pipeline="") as program:
        program.run(feeds)
        assert program.replay(feeds) is None


def test_fallbacks_are_listed_before_compilation():
    backend = narrowpass.load_plugins().registry.backend("xnn-cpu")
    assert backend.fallbacks(_named(perceptron())) == {}
    model = _named(
        model_from_text(
            """g (float[N,2,2] x) => (float[N] y, int64[3] s) {
            a = Relu(x)  b = Det(a)  y = Sqrt(b)  s = Shape(x) }"""
        )
    )
    found = backend.fallbacks(model)
    assert [*found] == ["Det"]
    assert "Det" in found["Det"]


def _named(model):
    for node in model.graph:
        node.name = node.op_type
    return model
