"""Packed weights in memory of a caller's allocator: XNNPACK's blocks and our own."""

from __future__ import annotations

import gc
import mmap

import numpy as np
import pytest
from cache_kit import INPUT, compiled, network, result, saved, weights

from narrowpass.errors import BackendError
from narrowpass_planning.memory.allocator import allocating
from narrowpass_planning.weights.weight import Weight
from narrowpass_xnn_cpu.native.problems.matmul import Matmul
from narrowpass_xnn_cpu.native.weights_cache import WeightsCache
from narrowpass_xnn_cpu.native.xnnpack import matmul as xnn_matmul

RNG = np.random.default_rng(20)


class Pages:
    """Anonymous mappings, that know how many are in use."""

    def __init__(self) -> None:
        self.mapped: list[mmap.mmap] = []

    def allocate(self, size: int, alignment: int) -> np.ndarray:
        self.mapped.append(mmap.mmap(-1, size))
        return np.frombuffer(self.mapped[-1], np.uint8)

    def free(self) -> int:
        """Unmap what nobody uses; return how many are in use."""
        used = []
        for item in self.mapped:
            try:
                item.close()
            except BufferError:
                used.append(item)
        self.mapped = used
        return len(used)


class Empty:
    """Has no memory."""

    def allocate(self, size: int, alignment: int) -> np.ndarray:
        raise MemoryError("the node is full")


def test_blocks_are_released_with_the_last_session():
    cache, pages = WeightsCache(), Pages()
    array = RNG.standard_normal((8, 16)).astype(np.float32)
    with cache.begin(allocator=pages) as first:
        one = xnn_matmul.create(Matmul(Weight.of(array, "a"), None), first)
    assert pages.free() == 1
    with cache.begin() as second:
        two = xnn_matmul.create(Matmul(Weight.of(array, "a"), None), second)
    assert second.counts.hits == 1
    del one
    first.release()
    assert pages.free() == 1  # the other session has the block
    del two
    second.release()
    assert pages.free() == 0


def test_a_program_computes_the_same(tmp_path):
    bundle = saved(tmp_path / "b.narrow", main=network())
    right = result(compiled(bundle, cache=False), INPUT)
    gc.collect()
    pages = Pages()
    with allocating(pages):
        program = compiled(bundle, cache="memory")
    packs = weights(program)["packs"]
    assert packs >= 3
    assert pages.free() >= packs
    np.testing.assert_array_equal(result(program, INPUT), right)
    program.close()
    del program
    gc.collect()
    assert pages.free() == 0


def test_an_allocator_without_memory_is_named(tmp_path):
    bundle = saved(tmp_path / "b.narrow", main=network())
    with allocating(Empty()), pytest.raises(BackendError, match=r"Empty .*the node is full"):
        compiled(bundle, cache="memory")
