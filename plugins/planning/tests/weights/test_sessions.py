"""Sessions of the weights cache: their states, counts, unpacked weights, and forked children."""

from __future__ import annotations

import dataclasses
import gc
import os
import threading

import numpy as np
import onnx_ir as ir
import pytest
from array_cache_kit import LAYOUT, entries, floats, model_of, pack, stored

from narrowpass import Bundle
from narrowpass.bundle import NamedData
from narrowpass.errors import BackendError, BundleError, UsageError
from narrowpass_planning.weights import ProcessCache, Weight, array_cache
from narrowpass_planning.weights.cache import WeightsCache
from narrowpass_planning.weights.entry import Block, Entry, reasons
from narrowpass_planning.weights.session import Session, packed_name
from narrowpass_planning.weights.store import ArrayStore
from narrowpass_planning.weights.weight import digest

pytestmark = pytest.mark.anywhere


def test_the_states_of_a_session():
    session = array_cache().begin()
    with pytest.raises(UsageError, match="is open, not committed"):
        session.release()
    assert list(session.entries()) == []
    session.commit()
    assert list(session.entries()) == []
    for act in (session.commit, session.abort, lambda: session.offer([], None)):
        with pytest.raises(UsageError, match="is committed, not open"):
            act()
    with pytest.raises(UsageError, match="is committed, not open"):
        pack(session, floats(2, 2), "a")
    session.release()
    with pytest.raises(UsageError, match="is released, not committed"):
        session.release()
    with pytest.raises(UsageError, match="is released, not open or committed"):
        list(session.entries())


def test_a_block_of_code_commits_or_aborts():
    cache = array_cache()
    with cache.begin() as session:
        pack(session, floats(2, 2), "a")
    assert cache.packed_count == 1
    aborted = cache.begin()

    def fail() -> None:
        with aborted:
            pack(aborted, floats(2, 2), "b")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    with pytest.raises(UsageError, match="is released"):
        list(aborted.entries())
    with cache.begin() as early:
        early.commit()
        early.release()
    assert cache.packed_count == 1


def test_a_block_of_code_may_commit_itself():
    with array_cache().begin() as session:
        session.commit()
    session.release()


def test_counts_can_be_kept():
    counts = array_cache().begin().counts
    before = dataclasses.replace(counts)
    counts.hits += 1
    assert counts != before
    assert dataclasses.asdict(before) == dict.fromkeys(dataclasses.asdict(counts), 0)


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_sessions_are_open_one_after_the_other(end):
    cache, begun = array_cache(), threading.Event()
    first = cache.begin()

    def begin() -> None:
        cache.begin().commit()
        begun.set()

    thread = threading.Thread(target=begin)
    thread.start()
    assert not begun.wait(0.05)
    getattr(first, end)()
    thread.join(timeout=30)
    assert begun.is_set()


def test_a_session_that_does_not_begin_leaves_the_turn_to_others():
    class Full(ArrayStore):
        def begin(self, allocator):
            raise BackendError("out of memory")

    cache = WeightsCache(Full(), Session)
    for _ in range(2):
        with pytest.raises(BackendError, match="out of memory"):
            cache.begin()


def test_a_session_that_is_let_go_frees_its_blocks():
    cache = array_cache()
    with cache.begin() as session:
        pack(session, floats(2, 2), "a")
    del session
    gc.collect()
    assert cache.packed_count == 0


def test_counts_and_names_by_label():
    cache, array = array_cache(), floats(4, 4)
    with cache.begin() as session:
        session.label = "one"
        pack(session, array, "a")
        pack(session, array, "")
        session.label = "two"
        pack(session, array, "a")
        pack(session, array, "b")
    counts = session.counts
    assert (counts.hits, counts.misses, counts.packs) == (1, 3, 3)
    a, b = session.packed_names
    assert session.packed_for("one") == {a}
    assert session.packed_for("two") == {a, b}
    assert session.packed_for("three") == frozenset()
    assert reasons(session.entries()) == {"its content has no name": 1}


def test_a_name_follows_from_all_that_is_packed():
    weight, other = Weight.of(floats(2, 2), "w"), Weight.of(floats(2, 2), "v")
    unnamed = Weight.of(floats(2, 2))
    plain = packed_name("matmul", (1,), weight, None)
    parts = ("w", (2, 2), "float32")
    assert plain == digest("matmul", (1,), parts, "")
    found = {
        plain,
        packed_name("conv", (1,), weight, None),
        packed_name("matmul", (2,), weight, None),
        packed_name("matmul", (1,), other, None),
        packed_name("matmul", (1,), weight.reshape(4), None),
        packed_name("matmul", (1,), weight, other),
        packed_name("matmul", (1,), weight, None, other),
        packed_name("matmul", (1,), weight, None, None),
    }
    assert len(found) == 8
    for given in ((unnamed, None), (weight, unnamed), (weight, None, unnamed)):
        assert packed_name("matmul", (1,), *given) == ""


def test_elements_are_kept_until_they_are_freed():
    computed, dropped = [], []
    session = array_cache().begin()

    def weight(name):
        def compute():
            computed.append(name)
            return np.full(2, len(computed), np.float32)

        dtype = np.dtype(np.float32)
        return Weight((2,), dtype, name, compute, drop=lambda: dropped.append(name))

    one = session.load_unpacked("one", weight("one"))
    assert session.load_unpacked("one", weight("one")) is one
    session.load_unpacked("two", weight("two"))
    assert (computed, session.unpacked_names) == (["one", "two"], ["one", "two"])
    session.free_unpacked("one", "unknown")
    assert (dropped, session.unpacked_names) == (["one"], ["two"])
    session.load_unpacked("one", weight("one"))
    session.commit()
    assert sorted(dropped) == ["one", "one", "two"]
    assert session.unpacked_names == []


@pytest.mark.parametrize("fails", [False, True])
def test_packing_frees_what_it_has_loaded(fails):
    dropped = []
    session = array_cache().begin()

    def weight(name):
        array = floats(2, 2)
        return Weight((2, 2), array.dtype, name, lambda: array, drop=lambda: dropped.append(name))

    def write(block, kernel, bias, scales):
        assert kernel.shape == bias.shape == scales.shape == (2, 2)
        assert len(session.unpacked_names) == 3
        if fails:
            raise BackendError("cannot")

    given = weight("kernel"), weight("bias"), weight("scales")
    if fails:
        with pytest.raises(BackendError, match="cannot"):
            session.pack_own("matmul", (), *given, LAYOUT, 16, write)
        assert list(session.entries()) == []
        assert session.counts.packs == 0
    else:
        session.pack_own("matmul", (), *given, LAYOUT, 16, write)
    assert sorted(dropped) == ["bias", "kernel", "scales"]
    session.abort()


def test_named_data_of_a_bundle(tmp_path):
    array = floats(40, 40)
    Bundle({"main": model_of(w=array)}).save(tmp_path / "b.narrow")
    data = Bundle.load(tmp_path / "b.narrow").data
    inner = ir.tensor(np.ones(3, np.float32), name="x")
    memory = NamedData(ir.DataType.FLOAT, (3,), 12, None, inner)
    session = array_cache().begin({**data, "x": memory})
    np.testing.assert_array_equal(session.load_unpacked("w"), array)
    np.testing.assert_array_equal(session.load_unpacked("x"), np.ones(3))
    with pytest.raises(UsageError, match="no data 'v'"):
        session.load_unpacked("v")
    session.commit()
    file = tmp_path / "b.narrow" / "weights.safetensors"
    whole = file.read_bytes()
    file.unlink()
    file.write_bytes(whole[:-1] + b"\x7f")
    other = array_cache().begin(Bundle.load(tmp_path / "b.narrow").data)
    with pytest.raises(BundleError, match="was changed"):
        other.load_unpacked("w")
    other.abort()


def test_records_of_blocks():
    """Two of one block are equal, whatever keeps it alive, and nobody changes them."""
    entry = Entry("a", 1, 2, 3, 4, "packed")
    assert (entry.mapped, entry.owner) == (False, None)
    kept = dataclasses.replace(entry, owner=bytes(7))
    assert kept == entry
    assert len({kept, entry}) == 1
    assert repr(kept) == repr(entry)
    assert Block(3, 4) == Block(3, 4) != Block(3, 5)
    for record in (entry, Block(3, 4)):
        with pytest.raises(dataclasses.FrozenInstanceError):
            record.size = 5


# The store


def test_a_mapped_block_is_shared_and_freed_as_others_are(tmp_path):
    array = floats(4, 4)
    path = stored(tmp_path, array).path
    cache = array_cache()
    found = entries(path)
    with cache.begin() as first:
        first.offer(found, found[0].owner)
        one = pack(first, array, "0")
        unused = pack(first, array, "other")
    assert len(cache.mappings) == 1
    with cache.begin() as second:
        two = pack(second, array, "0")
    assert np.shares_memory(one, two)
    (entry,) = second.entries()
    assert (entry.origin, entry.mapped) == ("shared", True)
    assert not np.shares_memory(one, unused)
    name = entry.name
    assert cache.users(name) == 2
    second.release()
    first.release()
    assert (cache.users(name), cache.packed_count) == (0, 0)


@pytest.mark.parametrize("change", ["name", "layout", "size"])
def test_a_block_is_found_by_name_layout_and_size(change):
    cache = array_cache()
    blocks = cache.begin().blocks
    block = blocks.allocate(8)
    blocks.keep("a" * 64, 1, block, 8)
    key = {"name": "a" * 64, "layout": 1, "size": 8}
    assert blocks.find(**key) is block
    assert blocks.find(**{**key, change: "b" * 64 if change == "name" else 9}) is None
    blocks.commit()
    other = ArrayStore.begin(cache._store)
    assert other.find(**{**key, change: "b" * 64 if change == "name" else 9}) is None
    assert other.find(**key) is block
    assert other.find("", 1, 8) is None
    assert len(other) == 1


def test_offers_end_with_the_commit():
    block = np.zeros(8, np.uint8)
    blocks = array_cache().begin().blocks
    blocks.offer(Entry("a" * 64, 1, 2, block.ctypes.data, 8, "mapped", mapped=True, owner=block))
    blocks.commit()
    assert blocks.find("a" * 64, 1, 8) is None


def test_an_empty_block():
    blocks = array_cache().begin().blocks
    assert blocks.allocate(0).shape == (0,)
    block = blocks.allocate(200)
    assert (block.shape, block.ctypes.data % 128) == ((200,), 0)


def test_unnamed_blocks_are_no_ones_else():
    cache = array_cache()
    with cache.begin() as session:
        pack(session, floats(2, 2), "")
    assert (cache.packed_count, session.packed_names) == (0, [])
    session.release()


# Processes


def test_the_cache_of_a_process():
    created = []

    def create():
        created.append(array_cache())
        return created[-1]

    cache = ProcessCache(create)
    assert created == []
    assert cache.get() is cache.get() is created[0]


def in_child(work) -> bool:
    """Return whether a function returns true in a forked child."""
    child = os.fork()
    if not child:
        code = 1
        try:
            code = not work()
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def test_a_forked_child_has_a_cache_of_its_own():
    cache = ProcessCache(array_cache)
    held = cache.get()
    with cache._lock:  # as another thread of the parent may hold it
        assert in_child(lambda: cache.get() is not held and cache.get() is cache.get())
    assert cache.get() is held


def test_a_forked_child_frees_no_blocks_of_its_parent():
    cache = array_cache()
    with cache.begin() as session:
        pack(session, floats(2, 2), "a")

    def release() -> bool:
        session.release()
        return cache.packed_count == 1

    with cache._store._lock:  # nobody in the child will ever release it
        assert in_child(release)
    session.release()
    assert cache.packed_count == 0


def test_what_a_session_held_when_a_process_forked_stays(monkeypatch):
    """As the test before, in this process."""
    cache = array_cache()
    with cache.begin() as session:
        pack(session, floats(2, 2), "a")
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: 1)
        session.release()
    assert cache.packed_count == 1
