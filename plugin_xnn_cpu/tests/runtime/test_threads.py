"""Steps that are worth dividing, and those that the thread of the run computes alone."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from xnn_kit import compile_model, compile_with

from narrowpass import Bundle
from narrowpass.errors import UsageError
from narrowpass.runtime.backend import Program
from narrowpass_ir.state import State
from narrowpass_xnn_cpu.native.runtime import pool

T = TypeVar("T")
Array = np.ndarray[Any, Any]

RNG = np.random.default_rng(3)


def chain() -> onnx.ModelProto:
    return onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 18]>
        g (float[n, 64] x) => (float[n, 64] y) <int64[1] last = {-1}> {
            a = Abs(x)
            b = Add(a, x)
            s = Softmax <axis = -1> (b)
            m = ReduceMax(s, last)
            y = Mul(s, m)
        }
    """)


def test_rows_that_grow_and_shrink():
    """From steps of 1 KiB, which nobody is woken for, to 4 MiB and back, in one program."""
    model = chain()
    session = onnx.reference.ReferenceEvaluator(model)
    with compile_model(model, threads=2) as program, compile_model(model, threads=1) as single:
        for rows in (4, 100, 20_000, 84, 85, 86, 4):
            x = RNG.standard_normal((rows, 64)).astype(np.float32)
            (got,) = program.run({"x": x}).values()
            (alone,) = single.run({"x": x}).values()
            np.testing.assert_array_equal(got, alone)
            if rows <= 100:
                (expected,) = session.run(None, {"x": x})
                np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def attention_free_layer() -> onnx.ModelProto:
    """Own kernels (the normalization, mostly the matmuls too) beside some of XNNPACK."""
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 18]>
        g (float[n, 96] x) => (float[n, 96] y) {
            p = MatMul(x, w)
            s = Softmax <axis = -1> (p)
            t = Add(s, x)
            z = LayerNormalization(t, scale)
            q = MatMul(z, w)
            y = Relu(q)
        }
    """)
    w = (RNG.standard_normal((96, 96)) / 10).astype(np.float32)
    for name, value in {"w": w, "scale": np.ones(96, np.float32)}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    return model


@pytest.mark.parametrize("pause", [0.0, 0.002], ids=["spinning", "sleeping"])
def test_runs_at_the_same_time_share_the_workers(pause):
    """More threads than processors, and runs that find the workers at another job."""
    model = attention_free_layer()
    session = onnx.reference.ReferenceEvaluator(model)
    feeds = [RNG.standard_normal((rows, 96)).astype(np.float32) for rows in (40, 300, 700, 1500)]
    wanted = [session.run(None, {"x": x})[0] for x in feeds]
    with compile_model(model, threads=4) as first, compile_model(model, threads=4) as second:

        def work(program: Program, number: int) -> None:
            for turn in range(30):
                x, right = feeds[(turn + number) % 4], wanted[(turn + number) % 4]
                got = program.run({"x": x})["y"]
                np.testing.assert_allclose(got, right, rtol=1e-4, atol=1e-5)
                time.sleep(pause)

        with ThreadPoolExecutor(4) as runs:
            list(runs.map(work, (first, second, first, second), range(4)))


def in_a_thread(work: Callable[[], T]) -> T:
    """Do the work in a thread that ends with it."""
    results: list[T] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join()
    (result,) = results
    return result


def right_for(model: onnx.ModelProto, x: Array) -> Array:
    right: Array = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})[0]
    return right


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("cached", [False, True], ids=["alone", "with a cache"])
def test_the_thread_that_loads_ends(tmp_path, threads, cached):
    """Others run the program, load a second one that shares its weights, and close both."""
    model = attention_free_layer()
    x = RNG.standard_normal((300, 96)).astype(np.float32)
    right = right_for(model, x)
    Bundle({"main": ir.from_proto(model)}).save(tmp_path / "b.narrow")

    def load() -> Program:
        bundle = Bundle.load(tmp_path / "b.narrow")
        place = {"cache_dir": tmp_path / "cache"} if cached else {"cache": False}
        return compile_with(bundle, {"threads": threads, **place})

    def run(program: Program) -> None:
        np.testing.assert_allclose(program.run({"x": x})["y"], right, rtol=1e-4, atol=1e-5)

    first = in_a_thread(load)
    gc.collect()
    for _ in range(3):
        in_a_thread(lambda: run(first))
    second = in_a_thread(load)
    in_a_thread(first.close)
    gc.collect()
    run(second)
    in_a_thread(lambda: run(second))
    second.close()


@pytest.mark.parametrize("threads", [1, 3])
def test_many_threads_that_run_once(threads):
    """200 threads, eight at once, that end while others run: no run waits for one that is gone."""
    model = attention_free_layer()
    feeds = [RNG.standard_normal((rows, 96)).astype(np.float32) for rows in (3, 40, 300)]
    wanted = [right_for(model, x) for x in feeds]
    problems: list[BaseException] = []
    places = threading.Semaphore(8)

    with compile_model(model, threads=threads) as program:

        def run(number: int) -> None:
            try:
                got = program.run({"x": feeds[number % 3]})["y"]
                np.testing.assert_allclose(got, wanted[number % 3], rtol=1e-4, atol=1e-5)
            except BaseException as problem:  # noqa: BLE001  # the thread of the test has it
                problems.append(problem)
            finally:
                places.release()

        before = threading.active_count()
        started = []
        for number in range(200):
            places.acquire()
            thread = threading.Thread(target=run, args=(number,), daemon=True)
            thread.start()
            started.append(thread)
        for thread in started:
            thread.join()
        assert problems == []
        assert threading.active_count() <= before + threads
        run(2)
    assert problems == []


def test_a_session_outlives_the_threads_that_step_it():
    """Each step of a cumulative sum is another thread's, which ends."""
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 18]>
        g (float[1, 4] x, float[1, past, 4] before)
            => (float[1, 4] y, float[1, total, 4] after)
        <int64[1] one = {1}> {
            row = Unsqueeze(x, one)
            after = Concat <axis = 1> (before, row)
            y = ReduceSum <keepdims = 0> (after, one)
        }
    """)
    states = [State("before", "after", 1)]
    rows = RNG.standard_normal((20, 1, 4)).astype(np.float32)
    bundle = Bundle({"main": ir.from_proto(model)}, states=states)
    with in_a_thread(lambda: compile_with(bundle, {"threads": 2})) as program:
        session = in_a_thread(program.session)
        for count in range(1, 21):
            got = in_a_thread(lambda: session.run({"x": rows[count - 1]})["y"])  # noqa: B023
            np.testing.assert_allclose(got, rows[:count].sum(0), rtol=1e-5, atol=1e-5)
        in_a_thread(session.close)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("late", [False, True])
def test_a_thread_that_does_not_begin_ends_with_an_error(monkeypatch, late):
    """As where it lacks memory for what Python does first; or where it begins after that."""
    begin, waiting = threading.Thread._bootstrap_inner, threading.Event()

    def lacking(thread):
        if thread.name != "narrowpass-2":
            begin(thread)
        elif late:
            waiting.wait()
            begin(thread)
        else:
            raise MemoryError

    monkeypatch.setattr(pool, "_PATIENCE", 0.2)
    monkeypatch.setattr(threading.Thread, "_bootstrap_inner", lacking)
    with pytest.raises(UsageError, match="could not be started"):
        pool.ThreadPool(3, spin=False)
    gc.collect()
    waiting.set()
    monkeypatch.undo()
    assert pool.ThreadPool(3, spin=False).threads == 3


def test_a_thread_that_cannot_leave_a_condition_is_waited_for_all_the_same(monkeypatch):
    """CPython lacks memory there for the arguments of ``__exit__``: the lock stays taken."""
    before, leave = {thread.ident for thread in threading.enumerate()}, threading.Condition.__exit__

    def leaves(condition, *args):
        if threading.get_ident() not in before:
            raise MemoryError
        return leave(condition, *args)

    monkeypatch.setattr(threading.Condition, "__exit__", leaves)
    monkeypatch.setattr(pool, "_PATIENCE", 5)
    assert pool.ThreadPool(3, spin=False).threads == 3
