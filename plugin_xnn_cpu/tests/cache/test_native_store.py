"""The table of packed blocks in C: what is not there, and memory that runs out."""

from __future__ import annotations

import numpy as np
import pytest

from narrowpass.errors import BackendError
from narrowpass_planning.memory.allocator import HEAP
from narrowpass_planning.weights.entry import Entry
from narrowpass_planning.weights.weight import Weight
from narrowpass_xnn_cpu.native import weights_cache
from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.problems.matmul import Matmul
from narrowpass_xnn_cpu.native.weights_cache import NativeStore, WeightsCache
from narrowpass_xnn_cpu.native.xnnpack import matmul as xnn_matmul


class Failing:
    """The extension, of which one function finds no memory while it `fails`.

    C says so by NULL, or by false.
    """

    def __init__(self, function: str) -> None:
        module = extension()
        nothing = False if function == "np_session_offer" else module.ffi.NULL
        self.ffi, self.fails = module.ffi, True

        class Library:
            def __getattr__(_, name):  # noqa: N805  # `self` is the extension's
                fails = self.fails and name == function
                return (lambda *given: nothing) if fails else getattr(module.lib, name)

        self.lib = Library()


@pytest.fixture
def failing(request, monkeypatch):
    """Put an extension in place whose function, the test's parameter, finds no memory."""
    found = Failing(request.param)
    monkeypatch.setattr(weights_cache, "extension", lambda: found)
    return found


def packs(cache):
    """Pack a matrix in a new session; return how many blocks that took."""
    array = np.eye(16, dtype=np.float32)
    with cache.begin() as session:
        xnn_matmul.create(Matmul(Weight.of(array, "a"), None), session)
    return session.counts.packs


@pytest.mark.parametrize("failing", ["np_cache_new"], indirect=True)
def test_a_cache_without_memory(failing):
    with pytest.raises(BackendError, match="out of memory for a weights cache"):
        WeightsCache()
    failing.fails = False
    assert packs(WeightsCache()) == 1


@pytest.mark.parametrize("failing", ["np_session_begin"], indirect=True)
def test_a_session_without_memory_lets_others_begin(failing):
    cache = WeightsCache()
    for _ in range(2):
        with pytest.raises(BackendError, match="out of memory for a session"):
            cache.begin()
    failing.fails = False
    assert packs(cache) == 1


class Mapping:
    """Memory that stands for that of a file."""

    memory = np.zeros(64, np.uint8)


@pytest.mark.parametrize("failing", ["np_session_offer"], indirect=True)
def test_an_index_without_memory_ends_the_session(failing):
    cache = WeightsCache()
    entry = Entry(32 * "ab", 0, 0, Mapping.memory.ctypes.data, 64, "mapped")

    def offer():
        with cache.begin() as session:
            session.offer([entry], Mapping())

    with pytest.raises(BackendError, match="out of memory for the index"):
        offer()
    assert packs(cache) == 1


def test_a_block_that_is_too_large_says_how_large():
    """XNNPACK's and ours are allocated by one function of C, which finds no memory here."""
    cache = WeightsCache()
    weight = Weight.of(np.ones(4, np.float32), "a")
    size = 1 << 62

    def pack():
        with cache.begin() as session:
            session.pack_own("kind", "", weight, None, None, 1, size, lambda *given: None)

    with pytest.raises(BackendError, match=f"out of memory for {size} bytes of packed weights"):
        pack()
    assert packs(cache) == 1


def test_an_empty_session_has_no_last_block():
    cache = WeightsCache()
    with cache.begin() as session:
        assert session.last_block() is None
        array = np.eye(16, dtype=np.float32)
        operator = xnn_matmul.create(Matmul(Weight.of(array, "a"), None), session)
        block = session.last_block()
        (entry,) = session.entries()
        assert block.size == entry.size
        assert int(extension().ffi.cast("uintptr_t", block.address)) == entry.address
    del operator


def test_one_session_is_open_at_a_time():
    """C has one open session of a cache; sessions of Python take turns before they ask for it."""
    store = NativeStore()
    blocks = store.begin(HEAP)
    with pytest.raises(BackendError, match="out of memory for a session"):
        store.begin(HEAP)
    blocks.end()
    store.begin(HEAP).end()
