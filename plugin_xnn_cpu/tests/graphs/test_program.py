"""The program: feeds, outputs, changing shapes, kept values, threads, forks, errors."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import threading
import time
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from xnn_kit import check, close, compile_model, feeds_for, fully_connected, one_node

from narrowpass import Bundle, CompileOptions
from narrowpass.errors import BackendError, DataError, UsageError
from narrowpass_xnn_cpu.backend import XnnCpuBackend

RNG = np.random.default_rng(11)


def floats(*shape: int) -> np.ndarray:
    return np.asarray(RNG.standard_normal(shape), np.float32)


def network(batch: int | str = "N", side: int | str = "S") -> onnx.ModelProto:
    """Build a small CNN of dynamic size."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node("Conv", ["b", "d"], ["c"], "depthwise", group=6, strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["c"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "g"], ["y"], "gemm"),
    ]
    weights = {"w": floats(6, 3, 3, 3), "d": floats(6, 1, 3, 3), "g": floats(6, 4)}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, side, side])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 4])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def test_shapes_change_without_compiling_again():
    model = network()
    program = compile_model(model)
    for batch, side in [(1, 8), (3, 8), (2, 17), (1, 8), (1, 3)]:
        check(model, {"x": floats(batch, 3, side, side)}, program=program)


def test_an_empty_batch():
    program = compile_model(network())
    assert program.run({"x": floats(0, 3, 9, 9)})["y"].shape == (0, 4)
    close(program.run({"x": np.zeros((1, 3, 9, 9), np.float32)})["y"], np.zeros((1, 4), np.float32))


def test_symbolic_dimensions_are_checked():
    program = compile_model(network())
    with pytest.raises(DataError, match="dimension 'S' is 9 at axis 3, but 8 at axis 2"):
        program.run({"x": floats(1, 3, 8, 9)})


def test_a_shape_that_cannot_be_leaves_the_program_as_it_was():
    model = network()
    program = compile_model(model)
    with pytest.raises(BackendError, match=r"'depthwise'.*larger than the padded input"):
        program.run({"x": floats(1, 3, 2, 2)})
    check(model, {"x": floats(1, 3, 8, 8)}, program=program)
    with pytest.raises(BackendError, match="larger than the padded input"):
        program.run({"x": floats(1, 3, 2, 2)})
    check(model, {"x": floats(1, 3, 8, 8)}, program=program)


def test_outputs_are_fresh():
    program = compile_model(network())
    feeds = {"x": floats(1, 3, 8, 8)}
    first = program.run(feeds)["y"]
    kept = first.copy()
    program.run({"x": floats(1, 3, 8, 8)})
    np.testing.assert_array_equal(first, kept)
    assert first.flags.writeable


def test_outputs_are_written_into_given_arrays():
    program = compile_model(network())
    feeds = {"x": floats(2, 3, 8, 8)}
    expected = program.run(feeds)["y"]
    target = np.empty((2, 4), np.float32)
    assert program.run(feeds, out={"y": target})["y"] is target
    np.testing.assert_array_equal(target, expected)
    strided = np.zeros((2, 8), np.float32)[:, ::2]
    assert program.run(feeds, out={"y": strided})["y"] is strided
    np.testing.assert_array_equal(strided, expected)
    frozen = np.empty((2, 4), np.float32)
    frozen.flags.writeable = False
    for wrong in (np.empty((3, 4), np.float32), np.empty((2, 4)), frozen, [1.0]):
        with pytest.raises(DataError, match="`out` must hold a writeable array"):
            program.run(feeds, out={"y": wrong})
    with pytest.raises(UsageError, match="does not return"):
        program.run(feeds, out={"z": target})


def test_out_that_is_a_feed():
    model = one_node("Softmax", [[5, 7]])
    program = compile_model(model)
    feeds = feeds_for(model)
    expected = program.run(feeds)["y0"]
    array = feeds["x0"]
    program.run({"x0": array}, out={"y0": array})
    np.testing.assert_array_equal(array, expected)


def test_out_that_is_a_feed_and_an_output_too():
    """Views of feeds are saved before an array is written that lies there."""
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 18]>'
        " g (float[4] x, float[4] z) => (float[4] y, float[4] same, float[4] other)"
        " { y = Relu(z) same = Identity(x) other = Identity(z) }"
    )
    program = compile_model(model)
    x, z = floats(4), floats(4)
    feeds, expected = {"x": x.copy(), "z": z.copy()}, {"y": np.maximum(z, 0), "same": x, "other": z}
    program.run(feeds, out={"y": feeds["x"], "same": feeds["z"]})
    np.testing.assert_array_equal(feeds["x"], expected["y"])
    np.testing.assert_array_equal(feeds["z"], expected["same"])
    feeds = {"x": x.copy(), "z": z.copy()}
    results = program.run(feeds, out={"y": feeds["z"]})
    for name, array in expected.items():
        np.testing.assert_array_equal(results[name], array)


def test_out_that_is_an_element_of_a_sequence_that_is_fed():
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 18]>'
        " g (seq(float[4]) s, float[4] x) => (float[4] y, float[4] z)"
        " { zero = Constant <value = int64 {0}> () e = Abs(x) y = Relu(e)"
        " first = SequenceAt(s, zero) z = Neg(first) }"
    )
    x, first = floats(4), floats(4)
    array = first.copy()
    results = compile_model(model).run({"s": [array], "x": x}, out={"y": array})
    np.testing.assert_array_equal(results["z"], -first)
    np.testing.assert_array_equal(array, np.abs(x))


def test_arrays_for_results_must_not_overlap():
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 18]>'
        " g (float[2, 3] x) => (float[2, 3] y, float[2, 3] z) { y = Relu(x) z = Neg(x) }"
    )
    program = compile_model(model)
    x = floats(2, 3)
    memory = np.empty(20, np.float32)
    whole = memory[:6].reshape(2, 3)
    for other in (whole, memory[5:11].reshape(2, 3), memory[1:13:2].reshape(2, 3)):
        with pytest.raises(UsageError, match="'y' and 'z' overlap"):
            program.run({"x": x}, out={"y": whole, "z": other})
    apart = [(whole, memory[6:12].reshape(2, 3))]
    apart.append((memory[:12:2].reshape(2, 3), memory[1:13:2].reshape(2, 3)))
    for one, other in apart:
        program.run({"x": x}, out={"y": one, "z": other})
        np.testing.assert_array_equal(one, np.maximum(x, 0))
        np.testing.assert_array_equal(other, -x)


def test_feeds_in_any_memory():
    """Strided, read-only and misplaced arrays; ones that end where a page does."""
    import mmap

    model = one_node("Relu", [[33]])
    program = compile_model(model)
    wide = floats(66)
    frozen = floats(33)
    frozen.flags.writeable = False
    page = np.frombuffer(mmap.mmap(-1, 4096), np.float32)
    page[-33:] = wide[:33]
    shifted = np.frombuffer(bytearray(33 * 4 + 1), np.uint8)[1:].view(np.float32)
    shifted[:] = wide[:33]
    for array in (wide[::2], frozen, page[-33:], shifted, wide[::-2]):
        check(model, {"x0": array}, program=program)


def test_branches_run_natively():
    """An If's branches are compiled as methods are: weights from outside, values of both."""
    text = """<ir_version: 10, opset_import: ["": 18]>
        g (float[N, 4] x, bool c) => (float[N, 3] y, float[M] z)
        <float[4, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}> {
            a = Relu(x)
            y, z = If (c) <
                then_branch = t () => (float[N, 3] y1, float[P] z1) {
                    m = MatMul(a, w) y1 = Sigmoid(m) k = Constant<value = int64[1] {-1}>()
                    z1 = Reshape(a, k)
                },
                else_branch = e () => (float[N, 3] y2, float[P] z2) {
                    n = Neg(a) y2 = MatMul(n, w) k = Constant<value = int64[1] {-1}>()
                    z2 = Reshape(y2, k)
                }
            >
        }"""
    model = onnx.parser.parse_model(text)
    program = compile_model(model)
    assert not any(plan.reason for plan in program.explain())
    assert {plan.kernel for plan in program.explain()} >= {fully_connected(), "control flow"}
    for flag in (True, False, True):
        for batch in (1, 3):
            feeds = {"x": floats(batch, 4), "c": np.array(flag)}
            check(model, feeds, program=program, native=None)


def test_loops_run_natively():
    text = """<ir_version: 10, opset_import: ["": 18]>
        g (int64 n, float[2, 2] x) => (float[2, 2] y, float[T, 2] rows)
        <float[2, 2] w = {0.5, 0.1, -0.2, 0.3}, bool go = {1}> {
            y, rows = Loop (n, go, x) <body = b (int64 i, bool c, float[2, 2] s) =>
                (bool d, float[2, 2] t, float[2] r) {
                    d = Identity(c) m = MatMul(s, w) t = Add(m, x)
                    k = Constant<value = int64[1] {0}>() r = ReduceSum<keepdims = 0>(t, k)
                }>
        }"""
    model = onnx.parser.parse_model(text)
    program = compile_model(model)
    assert not any(plan.reason for plan in program.explain())
    for trips in (0, 1, 5):
        feeds = {"n": np.array(trips), "x": floats(2, 2)}
        check(model, feeds, program=program, native=None, oracle="onnxruntime")


def test_values_from_shapes_that_differ_in_shape_only():
    """Zeros of 2 x 3 and of 3 x 2 have the same bytes, and are not the same."""
    text = """<ir_version: 10, opset_import: ["": 18]>
        g (float[N, M] x, float z) => (float[A, B] y) {
            s = Shape(x) e = Erf(z) c = ConstantOfShape(s) y = Add(c, e)
        }"""
    model = onnx.parser.parse_model(text)
    program = compile_model(model)
    for shape in [(2, 3), (3, 2), (6, 1), (2, 3)]:
        feeds = {"x": floats(*shape), "z": np.asarray(floats())}
        check(model, feeds, program=program, native=None)


def test_the_same_value_twice_is_two_arrays():
    text = (
        '<ir_version: 10, opset_import: ["": 18]> g (float[3] x) => (float[3] y, float[3] z)'
        " { y = Relu(x) z = Identity(y) }"
    )
    results = compile_model(onnx.parser.parse_model(text)).run({"x": floats(3)})
    assert not np.shares_memory(results["y"], results["z"])


def test_an_output_that_is_an_input():
    text = (
        '<ir_version: 10, opset_import: ["": 18]> g (float[3] x) => (float[3] x, float[3] y)'
        " { y = Relu(x) }"
    )
    x = floats(3)
    results = compile_model(onnx.parser.parse_model(text)).run({"x": x})
    assert not np.shares_memory(results["x"], x)
    np.testing.assert_array_equal(results["x"], x)


def test_defaults_can_be_overridden():
    text = (
        '<ir_version: 3, opset_import: ["": 8]> g (float[2, 3] x, float[3] w) => (float[2, 3] y)'
        " <float[3] w = {1, 2, 3}> { y = Add(x, w) }"
    )
    program = compile_model(onnx.parser.parse_model(text))
    x, w = floats(2, 3), floats(3)
    close(program.run({"x": x})["y"], x + np.float32([1, 2, 3]))
    close(program.run({"x": x, "w": w})["y"], x + w)
    close(program.run({"x": x})["y"], x + np.float32([1, 2, 3]))


def test_defaults_of_what_the_evaluator_runs_can_be_overridden():
    """A kernel that may be fed is no constant: no kernel of ours takes it."""
    text = (
        '<ir_version: 10, opset_import: ["": 18]>'
        " g (float[1, 2, 3, 3] x, float[1, 2, 1, 1] w) => (float[1, 1, 3, 3] y)"
        " <float[1, 2, 1, 1] w = {1, 2}> { y = Conv(x, w) }"
    )
    program = compile_model(onnx.parser.parse_model(text))
    x, w = floats(1, 2, 3, 3), floats(1, 2, 1, 1)
    usual = x[:, :1] + 2 * x[:, 1:]
    close(program.run({"x": x, "w": w})["y"], (x * w).sum(1, keepdims=True))
    close(program.run({"x": x})["y"], usual)
    close(program.run({"x": x, "w": w})["y"], (x * w).sum(1, keepdims=True))


def test_feeds_out_of_records():
    """Fields of records, of which some end with a page of memory."""
    records = np.zeros(2000, [("x", "f4", (8,)), ("label", "u1")])
    records["x"] = floats(2000, 8)
    program = compile_model(one_node("Relu", [[1, 8]]))
    for number in range(2000):
        x = records["x"][number : number + 1]
        np.testing.assert_array_equal(program.run({"x0": x})["y0"], np.maximum(x, 0))


def test_kept_values():
    model = network()
    program = compile_model(model, keep=("a", "c"))
    feeds = {"x": floats(1, 3, 8, 8)}
    kept = program.run(feeds, outputs=["a", "c", "y"])
    assert kept["a"].shape == (1, 6, 8, 8)
    assert kept["a"].min() < 0  # before the activation
    close(kept["y"], compile_model(model).run(feeds)["y"])
    with pytest.raises(UsageError, match="was not kept"):
        program.run(feeds, outputs=["b"])
    with pytest.raises(UsageError, match="no method has a value 'zz'"):
        compile_model(model, keep=("zz",))


def test_methods_and_closing():
    relu = ir.from_proto(one_node("Relu", [[3]]))
    exp = ir.from_proto(one_node("Exp", [[3]]))
    bundle = Bundle({"one": relu, "two": exp})
    with XnnCpuBackend().compile(bundle, CompileOptions(threads=1)) as program:
        assert list(program.methods) == ["one", "two"]
        x = floats(3)
        close(program.run({"x0": x}, "two")["y0"], np.exp(x))
        with pytest.raises(UsageError, match="no method 'main'"):
            program.run({"x0": x})
    with pytest.raises(UsageError, match="closed"):
        program.run({"x0": x}, "two")
    program.close()


def test_profile_joins_nodes_partitions_and_kernels():
    model = network()
    program = compile_model(model)
    rows = program.profile({"x": floats(1, 3, 16, 16)}, runs=3)
    first = [row.kernel.removeprefix("xnn ") for row in rows[:2]]
    assert first == ["transpose", "convolution"]
    assert {row.partition for row in rows} == {0}
    assert all(row.seconds > 0 for row in rows)
    assert {row.node for row in rows} >= {"relu", "depthwise", "gemm"}
    with pytest.raises(UsageError, match="`runs` must be at least 1"):
        program.profile({"x": floats(1, 3, 16, 16)}, runs=0)


@pytest.mark.parametrize("threads", [0, -1, 4096, True])
def test_threads_out_of_range(threads):
    with pytest.raises(UsageError, match="threads must be"):
        compile_model(network(), threads=threads)


def test_pools_are_shared_and_freed():
    from narrowpass_xnn_cpu.native.runtime.pool import shared

    first, second = compile_model(network(), threads=3), compile_model(network(), threads=3)
    assert first._pool is second._pool is shared(3)
    before = len(list(Path("/proc/self/task").iterdir()))
    del first, second
    gc.collect()
    end = time.monotonic() + 10
    while len(list(Path("/proc/self/task").iterdir())) > before - 2:
        assert time.monotonic() < end, "the pool's threads did not end"
        time.sleep(0.001)
    assert shared(3).threads == 3


def test_spinning_workers_sleep_after_a_while():
    def workers() -> int:
        """Return the processor time that the threads of the pool have used, in ticks."""
        total = 0
        for thread in threading.enumerate():
            # One that could not begin has no number, and others may just have ended.
            if thread.name.startswith("narrowpass-") and thread.native_id is not None:
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    text = Path(f"/proc/self/task/{thread.native_id}/stat").read_text()
                    fields = text.rpartition(")")[2].split()
                    total += int(fields[11]) + int(fields[12])
        return total

    feeds = {"x": floats(3, 3, 33, 33)}
    model = network()
    single = compile_model(model).run(feeds)["y"]
    program = compile_model(model, threads=4, spin=True)
    assert program._pool is not compile_model(model, threads=4)._pool
    for _ in range(50):
        close(program.run(feeds)["y"], single, 1e-6)
        time.sleep(0.0005)
    # Each thread's time is rounded, and what others leave of a processor may delay the end.
    end, spun = time.monotonic() + 20, True
    while spun and time.monotonic() < end:
        before = workers()
        time.sleep(0.5)
        spun = workers() - before > 3
    assert not spun, "workers spin long after the last run"


def test_results_do_not_depend_on_the_number_of_threads():
    model = network()
    feeds = {"x": floats(3, 3, 33, 33)}
    single = compile_model(model).run(feeds)["y"]
    for threads in (2, 3, 5):
        close(compile_model(model, threads=threads).run(feeds)["y"], single, 1e-6)


def stress(rounds: int, threads: int, programs: int, seed: int) -> None:
    """Run programs from several Python threads; each result must be that of one thread alone."""
    rng = np.random.default_rng(seed)
    compiled = [compile_model(network(), threads=1 + index % 3) for index in range(programs)]
    feeds = [
        {"x": np.asarray(rng.standard_normal((1 + i % 3, 3, 7 + i, 7 + i)), np.float32)}
        for i in range(6)
    ]
    expected = [[program.run(feed)["y"] for feed in feeds] for program in compiled]
    failures: list[object] = []

    def work(index: int) -> None:
        choice = np.random.default_rng([seed, index])
        for _ in range(rounds):
            which, feed = int(choice.integers(programs)), int(choice.integers(len(feeds)))
            try:
                got = compiled[which].run(feeds[feed])["y"]
            except Exception as error:  # noqa: BLE001 - a thread hands it to the test
                failures.append(error)
                return
            if not np.array_equal(got, expected[which][feed]):
                failures.append((which, feed))

    workers = [threading.Thread(target=work, args=(index,)) for index in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures


def test_many_threads_and_programs():
    stress(rounds=40, threads=8, programs=4, seed=1)


@pytest.mark.long
def test_many_threads_and_programs_for_long():
    stress(rounds=5000, threads=8, programs=4, seed=2)


@pytest.mark.long
def test_a_million_runs_take_no_memory():
    program = compile_model(network(), threads=2)
    feeds = [{"x": floats(1 + i % 2, 3, 4 + i % 5, 4 + i % 5)} for i in range(10)]

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    for feed in feeds * 100:
        program.run(feed)
    before = resident()
    for index in range(1_000_000):
        # Mostly one shape; each change sizes the program anew.
        program.run(feeds[index // 50 % 10])
    assert resident() - before < 8 << 20


def _in_child(program, feed, queue) -> None:
    queue.put(program.run(feed)["y"])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_can_run(threads):
    program = compile_model(network(), threads=threads)
    feed = {"x": floats(2, 3, 32, 32)}
    expected = program.run(feed)["y"]
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(program, feed, queue))
    child.start()
    got = queue.get(timeout=60)
    child.join(60)
    assert child.exitcode == 0
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(program.run(feed)["y"], expected)


def test_a_body_in_a_function_whose_input_is_called_as_a_value_outside():
    """Inlining brings both into one model."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 18, "d": 1]>
    g (float[2,2] x) => (float[2,2] y) { v4 = Relu(x) h = d.H(v4) y = Add(h, v4) }
    <domain: "d", opset_import: ["": 18]> H (s) => (o) {
        t = Constant<value = bool {1}>() k = Constant<value = int64 {2}>()
        o = Loop(k, t, s) <body = fb (int64 v4, bool c, float[2,2] r) => (bool c2, float[2,2] r2)
        { c2 = Identity(c) r2 = Add(r, s) }> }""")
    got = compile_model(model).run({"x": np.ones((2, 2), np.float32)})["y"]
    np.testing.assert_array_equal(got, np.full((2, 2), 4, np.float32))
