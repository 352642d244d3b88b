"""Decoders that are fed their own caches, which grow in each run."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from xnn_kit import compile_model

from narrowpass.errors import BackendError, DataError
from narrowpass_planning.memory.caching_allocator import CachingAllocator
from narrowpass_xnn_cpu.native.runtime.tape import EXECUTOR

WIDTH, HEADS, HEAD = 24, 3, 8

TEXT = """
<ir_version: 9, opset_import: ["" : 18]>
layer (float[1, 1, 24] x, float[1, 3, P, 8] past_k, float[1, 3, P, 8] past_v, float[1, T] mask)
    => (float[1, 1, 24] y, float[1, 3, T, 8] k, float[1, 3, T, 8] v)
    <int64[4] heads = {0, 0, 3, 8}, int64[3] joined = {0, 0, 24}, float scale = {0.35355338}> {
    q0 = MatMul(x, wq)
    q1 = Reshape(q0, heads)
    q = Transpose <perm = [0, 2, 1, 3]> (q1)
    k0 = MatMul(x, wk)
    k1 = Reshape(k0, heads)
    k2 = Transpose <perm = [0, 2, 1, 3]> (k1)
    k = Concat <axis = 2> (past_k, k2)
    v0 = MatMul(x, wv)
    v1 = Reshape(v0, heads)
    v2 = Transpose <perm = [0, 2, 1, 3]> (v1)
    v = Concat <axis = 2> (past_v, v2)
    t = Transpose <perm = [0, 1, 3, 2]> (k)
    s0 = MatMul(q, t)
    s1 = Mul(s0, scale)
    s2 = Add(s1, mask)
    p = Softmax <axis = -1> (s2)
    a0 = MatMul(p, v)
    a1 = Transpose <perm = [0, 2, 1, 3]> (a0)
    a2 = Reshape(a1, joined)
    o = MatMul(a2, wo)
    y = Add(x, o)
}
"""


def decoder() -> onnx.ModelProto:
    """Return a layer with caches."""
    model = onnx.parser.parse_model(TEXT)
    rng = np.random.default_rng(0)
    for name in ("wq", "wk", "wv", "wo"):
        matrix = (rng.standard_normal((WIDTH, WIDTH)) * WIDTH**-0.5).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(matrix, name))
    return model


def first(past: int, seed: int = 1) -> dict[str, np.ndarray]:
    """Return feeds with caches of random rows."""
    rng = np.random.default_rng(seed)
    caches = rng.standard_normal((2, 1, HEADS, past, HEAD)).astype(np.float32)
    x = rng.standard_normal((1, 1, WIDTH)).astype(np.float32)
    mask = np.zeros((1, past + 1), np.float32)
    return {"x": x, "past_k": caches[0], "past_v": caches[1], "mask": mask}


def next_feeds(outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the feeds of the next step: its past is this step's present."""
    mask = np.zeros((1, outputs["k"].shape[2] + 1), np.float32)
    x = outputs["y"] / np.abs(outputs["y"]).max()
    return {"x": x, "past_k": outputs["k"], "past_v": outputs["v"], "mask": mask}


def assert_close(outputs: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    for name, value in wanted.items():
        np.testing.assert_allclose(outputs[name], value, rtol=0, atol=1e-5 * np.abs(value).max())


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("past", [0, 5, 400])
def test_a_loop_of_growing_caches(past, threads):
    """Each loop reads its own outputs: after 24 steps, rounding differs by some 1e-6."""
    model = decoder()
    reference = ReferenceEvaluator(model)
    names = [value.name for value in model.graph.output]
    with compile_model(model, threads=threads) as program:
        ours = theirs = first(past)
        for _ in range(24):
            outputs = program.run(ours)
            wanted = dict(zip(names, reference.run(None, theirs), strict=True))
            assert_close(outputs, wanted)
            ours, theirs = next_feeds(outputs), next_feeds(wanted)


def test_shapes_that_grow_shrink_and_fail():
    """Each run is as if it were the first one, also after one that could not be."""
    model = decoder()
    reference = ReferenceEvaluator(model)
    names = [value.name for value in model.graph.output]
    with compile_model(model) as program:
        for past in (3, 4, 0, 1, 700, 2, 2, 3):
            feeds = first(past, past)
            assert_close(
                program.run(feeds), dict(zip(names, reference.run(None, feeds), strict=True))
            )
            with pytest.raises((BackendError, DataError)):
                program.run({**feeds, "mask": np.zeros((1, past + 7), np.float32)})


def test_a_growing_kv_cache_resizes_its_readers_only():
    with compile_model(decoder()) as program:
        (partition,) = program._methods["main"].partitions
        outputs = program.run(first(40))
        before = partition._bound
        program.run(next_feeds(outputs))
        assert partition._bound is before
        runs = {step: run for step, (_, run) in partition._runs.items()}
        program.run(first(60))
        kept = [step for step, (_, run) in partition._runs.items() if runs[step] is run]
        assert len(kept) > len(runs) / 2


def test_arrays_that_are_referenced_are_not_reused():
    """Outputs of 38 KB lie in memory that is used again, once nobody holds a part of it."""
    with compile_model(decoder()) as program:
        held, copies = [], []
        for seed in range(12):
            outputs = program.run(first(400, seed))
            part = outputs["k"][0, 1, 3:, ::2]  # a view: its own base is not the output
            held.append(part)
            copies.append(part.copy())
            if seed % 3 == 2:
                del held[-2], copies[-2]
        for part, copy in zip(held, copies, strict=True):
            np.testing.assert_array_equal(part, copy)


def test_memory_is_taken_again():
    allocator = CachingAllocator(EXECUTOR.address_of)
    dtype = np.dtype(np.float32)
    shape = (1 << 14,)
    allocator.begin()
    one, two = allocator.take(shape, dtype), allocator.take(shape, dtype)
    places = {one.ctypes.data, two.ctypes.data}
    assert len(places) == 2
    view = one[3:].reshape(1, -1)
    del one, two
    allocator.begin()
    three, four = allocator.take(shape, dtype), allocator.take(((1 << 14) + 100,), dtype)
    assert (three.ctypes.data in places) != (four.ctypes.data in places)
    assert not np.shares_memory(view, three)
    assert not np.shares_memory(view, four)


def test_memory_that_is_not_taken_again_is_freed():
    allocator = CachingAllocator(EXECUTOR.address_of)
    allocator.begin()
    allocator.take((1 << 20,), np.dtype(np.uint8))
    small = allocator.take((3,), np.dtype(np.uint8))
    assert small.base is None
    assert allocator.size >= 1 << 20
    for _ in range(8):
        allocator.begin()
    assert allocator.size == 0
