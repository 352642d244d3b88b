"""Packed weights: what is shared, what never is, how long it lives, and what is counted."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import numpy as np
import pytest
from cache_kit import RNG, compiled, linear, model, network, result, saved, weights
from onnx import TensorProto, helper, numpy_helper

from narrowpass.errors import BackendError, UsageError
from narrowpass_planning.weights.weight import Weight, digest
from narrowpass_xnn_cpu.native.problems.matmul import Matmul
from narrowpass_xnn_cpu.native.weights_cache import WeightsCache, shared
from narrowpass_xnn_cpu.native.xnnpack import matmul as xnn_matmul


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def operator(session, array, identity, **options):
    return xnn_matmul.create(Matmul(Weight.of(array, identity), None, **options), session)


def test_two_sessions_share_one_matmul():
    cache = WeightsCache()
    array = floats(8, 16)
    first = cache.begin()
    operators = [operator(first, array, "a")]
    assert cache.packed_count == 0  # nobody finds what is not committed
    first.commit()
    second = cache.begin()
    operators.append(operator(second, array, "a"))
    second.commit()
    (name,) = first.packed_names
    assert second.packed_names == [name]
    assert first.unpacked_names == second.unpacked_names == []
    assert cache.packed_count == 1
    assert cache.users(name) == 2
    assert (first.counts.packs, second.counts.packs, second.counts.hits) == (1, 0, 1)
    operators.clear()
    first.release()
    assert (cache.packed_count, cache.users(name)) == (1, 1)
    second.release()
    assert (cache.packed_count, cache.users(name)) == (0, 0)
    with pytest.raises(UsageError, match="is released"):
        second.release()


def test_an_aborted_session_leaves_no_trace():
    cache = WeightsCache()
    session = cache.begin()
    operator(session, floats(4, 4), "a")
    session.abort()
    assert cache.packed_count == 0
    with pytest.raises(UsageError, match="is released, not open"):
        session.commit()

    def fail() -> None:
        with cache.begin() as other:
            operator(other, floats(4, 4), "a")
            raise ValueError("oh")

    with pytest.raises(ValueError, match="oh"):
        fail()
    assert cache.packed_count == 0
    with cache.begin() as last:
        operator(last, floats(4, 4), "a")
    assert cache.packed_count == 1


def test_a_hit_neither_computes_nor_reads_a_weight():
    cache = WeightsCache()
    array, bias = floats(8, 16), floats(8)
    with cache.begin() as first:
        one = xnn_matmul.create(Matmul(Weight.of(array, "a"), Weight.of(bias, "b")), first)

    def unreadable():
        raise AssertionError("the weight was read")

    with cache.begin() as second:
        kernel = Weight((8, 16), np.dtype(np.float32), "a", unreadable)
        other = Weight((8,), np.dtype(np.float32), "b", unreadable)
        two = xnn_matmul.create(Matmul(kernel, other), second)
    assert second.counts.hits == 1
    del one, two


def test_unpacked_weights_are_held_until_freed():
    dropped = []
    array = floats(3, 4)
    weight = Weight((3, 4), np.dtype(np.float32), "a", array.copy, lambda: dropped.append(1))
    with WeightsCache().begin() as session:
        held = session.load_unpacked("mine", weight)
        assert session.load_unpacked("mine", weight) is held
        assert session.unpacked_names == ["mine"]
        session.free_unpacked("mine")
        session.free_unpacked("mine")
        assert session.unpacked_names == []
    assert dropped == [1]


def test_data_of_a_bundle_is_loaded_by_name(tmp_path):
    weight = floats(32, 16)
    bundle = saved(tmp_path / "b.narrow", main=linear(weight, floats(32)))
    cache = WeightsCache()
    with cache.begin(bundle.data) as session:
        np.testing.assert_array_equal(session.load_unpacked("w"), weight)
        assert session.unpacked_names == ["w"]
        with pytest.raises(UsageError, match="no data 'W'"):
            session.load_unpacked("W")
        session.free_unpacked("w")
        assert session.unpacked_names == []


@pytest.mark.parametrize(
    ("inputs", "outputs", "size"),
    [(512, 512, 1_050_624), (512, 2048, 4_202_496), (2048, 512, 4_196_352)],
)
def test_packed_sizes(inputs, outputs, size):
    with WeightsCache().begin() as session:
        packed = operator(session, floats(outputs, inputs), "a")
    (entry,) = session.entries()
    assert entry.size == size
    assert entry.address % 64 == 0
    del packed


def call(session, kernel, bias, *, seed=1):
    """Ask a session's provider for weights by their addresses, as XNNPACK does."""
    from narrowpass_xnn_cpu.native.library import extension

    ffi, lib = extension().ffi, extension().lib
    provider = lib.np_session_provider(session.blocks.handle)
    key = ffi.new("struct xnn_weights_cache_look_up_key *")
    key.seed, key.kernel, key.bias = seed, kernel, bias
    return provider, key, (1 << 64) - 1


def test_the_provider_as_xnnpack_calls_it():
    from narrowpass_xnn_cpu.native.library import extension

    ffi, lib = extension().ffi, extension().lib
    cache = WeightsCache()
    session = cache.begin()
    kernel, other = ffi.new("char[8]"), ffi.new("char[8]")
    provider, key, missing = call(session, kernel, ffi.NULL)
    context = provider.context
    lib.np_session_next(session.blocks.handle, kernel, ffi.NULL, bytes(32), False)
    assert not provider.is_finalized(context)
    assert provider.look_up(context, key) == missing
    # What is inserted is found again, and an insertion without a block after that is a hit.
    space = provider.reserve_space(context, 100)
    assert int(ffi.cast("uintptr_t", space)) % 64 == 0
    ffi.memmove(space, b"x" * 100, 100)
    offset = provider.look_up_or_insert(context, key, space, 100)
    assert offset == provider.look_up(context, key) != missing
    assert provider.look_up_or_insert(context, key, ffi.NULL, 0) == offset
    assert bytes(ffi.buffer(provider.offset_to_addr(context, offset), 100)) == b"x" * 100
    # Another seed, bias or kernel is another block; unknown addresses are private.
    _, seeded, _ = call(session, kernel, ffi.NULL, seed=2)
    _, biased, _ = call(session, kernel, other)
    assert provider.look_up(context, seeded) == provider.look_up(context, biased) == missing
    again = provider.reserve_space(context, 64)
    assert provider.look_up_or_insert(context, biased, again, 64) not in (missing, offset)
    assert provider.look_up(context, biased) == missing
    origins = [entry.origin for entry in session.entries()]
    assert origins == ["packed", "XNNPACK has a private copy of its weights"]
    # Where weights are only to be found, nothing can be packed; nor what is too large.
    lib.np_session_next(session.blocks.handle, kernel, ffi.NULL, bytes(32), True)
    assert provider.reserve_space(context, 64) == ffi.NULL
    lib.np_session_next(session.blocks.handle, kernel, ffi.NULL, bytes(32), False)
    assert provider.reserve_space(context, (1 << 64) - 1) == ffi.NULL
    assert provider.reserve_space(context, 1 << 62) == ffi.NULL
    # A block that was not reserved here is not taken.
    assert provider.look_up_or_insert(context, seeded, kernel, 8) == missing
    assert provider.alias_data(context, kernel, other) == 0
    session.commit()
    assert provider.is_finalized(context)
    assert provider.delete_cache(context) == 0
    assert cache.packed_count == 1
    session.release()
    assert cache.packed_count == 0


def test_an_operator_does_not_run_before_its_session_is_committed():
    from narrowpass_planning.plan.executor import Entry
    from narrowpass_xnn_cpu.native.runtime.pool import shared as pools
    from narrowpass_xnn_cpu.native.runtime.tape import Tape, aligned

    session = WeightsCache().begin()
    packed = operator(session, np.eye(16, dtype=np.float32), "a")
    pool = pools(1)
    given = aligned(4 * 16)[: 4 * 16].view(np.float32)
    given[...] = np.arange(16)
    result = np.zeros(16, np.float32)
    tape = Tape([Entry(packed.call, (0,), 1, packed, packed.reshape(1, pool), True, "fc")], 2)
    tape.bind(0, given)
    tape.bind(1, result)
    with pytest.raises(BackendError, match=r"node .fc. failed: .*state"):
        tape.run(pool)
    session.commit()
    tape.run(pool)
    np.testing.assert_array_equal(result, np.arange(16))


def test_sessions_take_turns():
    cache = WeightsCache()
    first = cache.begin()
    begun = threading.Event()

    def other() -> None:
        with cache.begin():
            begun.set()

    thread = threading.Thread(target=other)
    thread.start()
    assert not begun.wait(0.05)
    first.commit()
    assert begun.wait(10)
    thread.join()


def test_digests_of_different_lists_differ():
    assert digest("ab", "c") != digest("a", "bc")
    assert digest("a") != digest("a", "")
    assert digest("1,1:ab") != digest("a", "b")


# Programs


def test_methods_share(tmp_path):
    weight, other, bias = floats(32, 16), floats(8, 16), floats(32)
    bundle = saved(
        tmp_path / "b.narrow",
        one=linear(weight, bias),
        two=linear(weight, bias),
        three=linear(other),
    )
    program = compiled(bundle, cache="memory")
    found = weights(program)
    assert (found["misses"], found["hits"], found["packs"]) == (2, 1, 2)
    sizes = {name: row["packed_bytes"] for name, row in found["methods"].items()}
    assert sizes["one"] == sizes["two"] > sizes["three"] > 0
    assert found["heap_bytes"] == sizes["one"] + sizes["three"]
    assert found["private"] == {}
    x = floats(3, 16)
    exact = x @ weight.T + bias
    for method in ("one", "two"):
        np.testing.assert_allclose(result(program, x, method), exact, rtol=1e-4, atol=1e-4)


def test_methods_that_share_two_matmuls_have_four_tensors(tmp_path):
    constants = {name: floats(16, 16) for name in ("w0", "b0", "w1", "b1")}
    nodes = [
        helper.make_node("Gemm", ["x", "w0", "b0"], ["h"]),
        helper.make_node("Gemm", ["h", "w1", "b1"], ["y"]),
    ]
    proto = model(nodes, 16, constants)
    bundle = saved(tmp_path / "b.narrow", one=proto, two=proto)
    assert len(bundle.data) == 4
    found = weights(compiled(bundle, cache="memory"))
    assert (found["packs"], found["hits"]) == (2, 2)


def test_programs_share_and_the_last_frees(tmp_path):
    bundle = saved(tmp_path / "b.narrow", main=network())
    x = floats(2, 48)
    gc.collect()  # programs of earlier tests
    before = shared().packed_count
    first = compiled(bundle, cache="memory")
    held = shared().packed_count
    second = compiled(bundle, cache="memory")
    assert held == shared().packed_count == before + 3
    assert weights(second)["packs"] == 0
    right = result(first, x)
    first.close()
    del first
    gc.collect()
    assert shared().packed_count == held
    np.testing.assert_array_equal(result(second, x), right)
    second.close()
    del second
    gc.collect()
    assert shared().packed_count == before


def test_without_a_cache_nothing_is_shared(tmp_path):
    bundle = saved(tmp_path / "b.narrow", one=network(), two=network())
    gc.collect()  # programs of earlier tests
    before = shared().packed_count
    program = compiled(bundle, tmp_path / "cache", cache=False)
    assert shared().packed_count == before
    assert not (tmp_path / "cache").exists()
    assert weights(program)["hits"] == weights(program)["heap_bytes"] == 0
    with pytest.raises(UsageError, match="cache must be True, False or 'memory'"):
        compiled(bundle, cache="disk")


def test_a_bundle_in_memory_shares_between_its_methods_only():
    import onnx_ir as ir

    from narrowpass import Bundle

    bundle = Bundle({"one": ir.from_proto(network()), "two": ir.from_proto(network())})
    program = compiled(bundle)
    assert (weights(program)["packs"], weights(program)["hits"]) == (3, 3)
    # Only the small convolution, which stays in the model's file, is named by its content.
    assert weights(compiled(bundle))["packs"] == 2
    assert weights(program)["mapped_bytes"] == 0


def quantized(weight, scale, zero, bias):
    """Build x times an int8 matrix that is dequantized, plus a bias."""
    constants = {"q": weight, "s": scale, "z": zero, "b": bias}
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"], axis=0),
        helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=1),
    ]
    return model(nodes, weight.shape[1], constants)


def test_equal_bytes_with_other_parameters_are_never_shared(tmp_path):
    raw = RNG.integers(-127, 128, 32 * 64).astype(np.int8)
    scales = [np.full(64, value, np.float32) for value in (0.5, 0.25)]
    zeros = [np.full(64, value, np.int8) for value in (0, 3)]
    biases = [np.full(64, value, np.float32) for value in (0, 1)]
    square = raw.reshape(64, 32)
    given = {
        "plain": (square, scales[0], zeros[0], biases[0]),
        "scale": (square, scales[1], zeros[0], biases[0]),
        "zero": (square, scales[0], zeros[1], biases[0]),
        "bias": (square, scales[0], zeros[0], biases[1]),
    }
    methods = {name: quantized(*parts) for name, parts in given.items()}
    program = compiled(saved(tmp_path / "b.narrow", **methods), cache="memory")
    assert weights(program)["packs"] == 4
    x = floats(5, 32)
    for name, (weight, scale, zero, bias) in given.items():
        wide = (weight.astype(np.float32) - zero[:, None]) * scale[:, None]
        exact = x.astype(np.float64) @ wide.T.astype(np.float64) + bias
        np.testing.assert_allclose(result(program, x, name), exact, rtol=1e-4, atol=1e-3)


def test_equal_bytes_of_another_shape_are_never_shared(tmp_path):
    raw = floats(512)
    shapes = {"wide": (16, 32), "tall": (32, 16), "square": (512 // 16, 16)}
    methods = {name: linear(raw.reshape(shape)) for name, shape in shapes.items()}
    program = compiled(saved(tmp_path / "b.narrow", **methods), cache="memory")
    assert weights(program)["packs"] == 2  # the last two are one
    for name, shape in shapes.items():
        x = floats(3, shape[1])
        exact = x @ raw.reshape(shape).T
        np.testing.assert_allclose(result(program, x, name), exact, rtol=1e-4, atol=1e-4)


def test_one_matrix_in_two_layouts_is_two_blocks(tmp_path):
    weight = floats(24, 24)
    plain = model([helper.make_node("MatMul", ["x", "w"], ["y"])], 24, {"w": weight})
    bundle = saved(tmp_path / "b.narrow", matmul=plain, gemm=linear(weight))
    program = compiled(bundle, cache="memory")
    x = floats(2, 24)
    np.testing.assert_allclose(result(program, x, "matmul"), x @ weight, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(result(program, x, "gemm"), x @ weight.T, rtol=1e-4, atol=1e-4)


def test_raw_weights_leave_memory(tmp_path):
    weight = floats(2048, 1024)  # 8 MB
    bundle = saved(tmp_path / "b.narrow", main=linear(weight))
    for value in bundle.data.values():
        value.tensor.numpy().sum()  # all pages are in memory
    before = file_pages()
    program = compiled(bundle, cache="memory")
    assert before - file_pages() > 0.9 * weight.nbytes
    np.testing.assert_allclose(
        result(program, np.ones((1, 1024), np.float32))[0], weight.sum(1), rtol=1e-3, atol=1e-3
    )
    np.testing.assert_array_equal(bundle.data["w"].tensor.numpy(), weight)  # and come again


def file_pages() -> int:
    """Return the bytes of files that are in this process's memory."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (line,) = [line for line in lines if line.startswith("RssFile")]
    return 1024 * int(line.split()[1])


# Workspace


@pytest.mark.parametrize("shared_memory", [False, True])
def test_methods_can_share_their_workspace(tmp_path, shared_memory):
    bundle = saved(tmp_path / "b.narrow", one=network(0), two=network(1, 96))
    program = compiled(bundle, cache="memory", share_workspace=shared_memory)
    for rows in (3, 40, 1, 17):
        for method, width in (("one", 48), ("two", 96)):
            x = floats(rows, width)
            alone = compiled(saved(tmp_path / method, main=network(width // 96, width)))
            np.testing.assert_array_equal(result(program, x, method), result(alone, x))
    stats = program.stats()
    each = [row["scratch_bytes"] for row in stats["weights"]["methods"].values()]
    assert stats["scratch_bytes"] == (max(each) if shared_memory else sum(each))


@pytest.mark.parametrize("cache", [False, "memory", True])
@pytest.mark.parametrize("share_workspace", [False, True])
def test_many_threads(tmp_path, cache, share_workspace):
    bundle = saved(tmp_path / "b.narrow", one=network(0), two=network(1))
    inputs = [floats(rows, 48) for rows in (1, 5, 16)]
    single = compiled(bundle, cache=False)
    right = {
        (method, i): result(single, x, method)
        for method in ("one", "two")
        for i, x in enumerate(inputs)
    }
    options = {"cache": cache, "share_workspace": share_workspace, "threads": 2}
    common = compiled(bundle, tmp_path / "cache", **options)
    failures: list[object] = []

    def work(number: int) -> None:
        try:
            own = compiled(bundle, tmp_path / "cache", **options) if number % 4 == 0 else common
            for turn in range(12):
                method, i = ("one", "two")[(number + turn) % 2], (number * 7 + turn) % 3
                got = result(own, inputs[i], method)
                if not np.array_equal(got, right[method, i]):
                    failures.append((number, turn))
        except Exception as error:  # noqa: BLE001 - a thread hands it to the test
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_weights_of_subgraphs_are_shared_too(tmp_path):
    """Those of a branch, and those that a branch reads from outside."""
    own, outer = floats(16, 16), floats(16, 16)
    branches = {}
    for name, matrix in (("then_branch", "own"), ("else_branch", "outer")):
        branches[name] = helper.make_graph(
            [helper.make_node("MatMul", ["x", matrix], ["z"])],
            name,
            [],
            [helper.make_tensor_value_info("z", TensorProto.FLOAT, ["N", 16])],
            [numpy_helper.from_array(own, "own")] if matrix == "own" else [],
        )
    graph = helper.make_graph(
        [helper.make_node("If", ["c"], ["y"], **branches)],
        "g",
        [
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 16]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 16])],
        [numpy_helper.from_array(outer, "outer")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    bundle = saved(tmp_path / "b.narrow", main=proto)
    x = floats(3, 16)
    for packs in (2, 0):
        program = compiled(bundle, tmp_path / "cache")
        found = weights(program)
        assert (found["packs"], found["hits"], found["private"]) == (packs, 2 - packs, {})
        for condition, matrix in ((True, own), (False, outer)):
            got = program.run({"c": np.array(condition), "x": x})["y"]
            np.testing.assert_allclose(got, x @ matrix, rtol=1e-4, atol=1e-4)
        program.close()
        del program
        gc.collect()
