"""Prepared runs: feeds of the same shapes skip shape propagation, with the same results."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from xnn_kit import compile_model

from narrowpass.errors import DataError, UsageError
from narrowpass_planning.plan.prepared import PreparedRun

RNG = np.random.default_rng(5)


def model(outputs=("y",), rows="n"):
    """Build y = Relu (x @ w) and z = x + u, for x [n, 8] and u [n, 8]."""
    weight = RNG.standard_normal((8, 6)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "matmul"),
        helper.make_node("Relu", ["h"], ["y"]),
        helper.make_node("Add", ["x", "u"], ["z"]),
    ]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, 8]) for name in ("x", "u")
    ]
    sizes = {"y": 6, "z": 8, "x": 8}
    graph = helper.make_graph(
        nodes,
        "g",
        inputs,
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [rows, sizes[n]]) for n in outputs],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def feeds(rows=3):
    return {name: RNG.standard_normal((rows, 8)).astype(np.float32) for name in ("x", "u")}


@pytest.fixture
def prepared(monkeypatch):
    """Return a list with an entry for each run: whether it used the prepared plan."""
    found = []
    run = PreparedRun.run

    def watched(self, given):
        results = run(self, given)
        found.append(results is not None)
        return results

    monkeypatch.setattr(PreparedRun, "run", watched)
    return found


def check(program, proto, given):
    expected = ReferenceEvaluator(proto).run(None, given)
    results = program.run(given)
    assert list(results) == [value.name for value in proto.graph.output]
    for one, other in zip(results.values(), expected, strict=True):
        np.testing.assert_allclose(
            one, other, rtol=0, atol=1e-5
        )  # dot products of 8 elements of about 1
    return results


@pytest.mark.parametrize("outputs", [("y",), ("z", "y"), ("y", "z")])
@pytest.mark.parametrize("threads", [1, 2])
def test_from_the_third_run_on(prepared, outputs, threads):
    proto = model(outputs)
    with compile_model(proto, threads=threads) as program:
        kept = [check(program, proto, feeds()) for _ in range(5)]
        copies = [{name: array.copy() for name, array in each.items()} for each in kept]
        check(program, proto, feeds())
    assert prepared == [True] * 4
    for one, other in zip(kept, copies, strict=True):  # results are nobody else's
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


def test_results_in_the_workspace_are_copied(prepared):
    """The states of an LSTM lie behind its sequence; a constant is an output, too."""
    sizes = {"w": (1, 32, 8), "r": (1, 32, 8), "k": (2, 3)}
    constants = {name: RNG.standard_normal(size).astype(np.float32) for name, size in sizes.items()}
    node = helper.make_node("LSTM", ["x", "w", "r"], ["", "h", "c"], "cell", hidden_size=8)
    outputs = {"k": [2, 3], "c": [1, "n", 8], "h": [1, "n", 8]}
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["t", "n", 8])],
        [helper.make_tensor_value_info(k, TensorProto.FLOAT, dims) for k, dims in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    with compile_model(proto) as program:
        long = compile_model(proto)
        kept = []
        for _ in range(5):
            x = {"x": RNG.standard_normal((4, 2, 8)).astype(np.float32)}
            found, right = program.run(x), long.run(x, outputs=("k", "c", "h"))
            assert list(found) == ["k", "c", "h"]
            for name, array in right.items():
                np.testing.assert_array_equal(found[name], array)
            kept.append((found, right))
        for found, right in kept:
            for name, array in right.items():
                np.testing.assert_array_equal(found[name], array)
        found["k"][:] = 0
        np.testing.assert_array_equal(program.run(x)["k"], constants["k"])
    assert prepared == [True] * 4


def test_other_shapes_take_the_long_way_once(prepared):
    proto = model(("y", "z"))
    with compile_model(proto) as program:
        for rows in (3, 3, 3, 5, 3, 3, 3, 1, 70, 70, 70):
            check(program, proto, feeds(rows))
    assert prepared == [True, False, True, False, True]


def test_large_results_are_memory_of_their_own(prepared):
    proto = model(("y",))
    with compile_model(proto) as program:
        kept = [check(program, proto, feeds(4096)) for _ in range(6)]
        assert len({each["y"].ctypes.data for each in kept}) == 6
        del kept
        for _ in range(6):
            check(program, proto, feeds(4096))
    assert all(prepared)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda f: f | {"x": f["x"].astype(np.float64)}, "takes float32, not float64"),
        (lambda f: f | {"x": f["x"][:, :7]}, "axis 1 is 7, not 8"),
        (lambda f: f | {"x": f["x"][:2]}, "dimension 'n' is"),
        (lambda f: f | {"x": f["x"].tolist()}, "takes a numpy array"),
        (lambda f: {"x": f["x"]}, "nothing is fed to u"),
        (lambda f: {"x": f["x"], "v": f["u"]}, "no input 'v'"),
        (lambda f: f | {"v": f["u"]}, "no input 'v'"),
        (lambda f: [f["x"], f["u"]], "as a mapping"),
    ],
)
def test_mistakes_are_found_after_it_too(prepared, change, error):
    proto = model()
    with compile_model(proto) as program:
        for _ in range(3):
            check(program, proto, feeds())
        with pytest.raises(DataError, match=error):
            program.run(change(feeds()))
        check(program, proto, feeds())
    assert prepared[0]
    assert prepared[1:2] in ([False], [])


def test_a_closed_program(prepared):
    program = compile_model(model())
    for _ in range(3):
        program.run(feeds())
    program.close()
    with pytest.raises(UsageError, match="is closed"):
        program.run(feeds())
    assert prepared == [True]


class Own(np.ndarray):
    """A subclass of arrays."""


def test_feeds_of_other_memory_layouts(prepared):
    """Strided, at the end of a page, of a subclass, and of the other byte order."""
    proto = model(("y", "z"))
    wide = RNG.standard_normal((3, 16)).astype(np.float32)
    page = np.zeros(2 * 4096 + 96, np.uint8)
    start = -page.ctypes.data % 4096 + 4096 - 96
    edge = page[start : start + 96].view(np.float32).reshape(3, 8)
    edge[:] = wide[:, :8]
    with compile_model(proto) as program:
        for _ in range(3):
            check(program, proto, feeds())
        for x in (wide[:, ::2], wide.T[:8].T, edge):
            check(program, proto, feeds() | {"x": x})
        assert prepared == [True] * 4
        check(program, proto, feeds() | {"x": edge.view(Own)})
        assert prepared[-1] is False
        swapped = edge.astype(">f4")
        with pytest.raises(DataError, match="takes float32"):
            program.run(feeds() | {"x": swapped})


def test_results_that_are_feeds_are_copies(prepared):
    proto = model(("y", "x"))
    with compile_model(proto) as program:
        for _ in range(4):
            given = feeds()
            results = check(program, proto, given)
            assert not np.may_share_memory(results["x"], given["x"])
    assert prepared == []


def test_many_threads_run_it(prepared):
    proto = model(("y", "z"))
    errors = []
    with compile_model(proto) as program:
        expected = ReferenceEvaluator(proto)

        def work(seed):
            rng = np.random.default_rng(seed)
            for count in range(200):
                rows = 3 if count % 50 else 4
                given = {k: rng.standard_normal((rows, 8)).astype(np.float32) for k in ("x", "u")}
                found = program.run(given)
                if count % 20 == 0:
                    right = expected.run(None, given)
                    for one, other in zip(found.values(), right, strict=True):
                        if not np.allclose(one, other, rtol=0, atol=1e-5):
                            errors.append((seed, count))

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []
    assert any(prepared)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_process_runs_it_with_threads_of_its_own():
    proto = model(("y", "z"))
    with compile_model(proto, threads=2) as program:
        for _ in range(3):
            given = feeds()
            expected = program.run(given)
        child = os.fork()
        if child == 0:
            same = False
            try:
                found = program.run(given)
                same = all(np.array_equal(found[name], expected[name]) for name in expected)
            finally:
                os._exit(0 if same else 1)
        assert os.waitpid(child, 0)[1] == 0
