"""The weights cache on numpy arrays: what is shared, how long it lives, files, allocators."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
from array_cache_kit import Packer, floats, pack, stored

from narrowpass.errors import BackendError, UsageError
from narrowpass_planning.memory.allocator import HEAP, allocate_bytes, allocating
from narrowpass_planning.weights import UnusableError, array_cache
from narrowpass_planning.weights.file import PackedFile
from narrowpass_planning.weights.folder import listed, prune

pytestmark = pytest.mark.anywhere


class Pages:
    """Anonymous mappings: what a caller would take huge pages from."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def allocate(self, size: int, alignment: int) -> np.ndarray:
        self.sizes.append(size)
        return np.frombuffer(mmap.mmap(-1, size), np.uint8)


def test_sessions_share_what_has_one_name():
    cache, array = array_cache(), floats(4, 8)
    first = cache.begin()
    one = pack(first, array, "a")
    assert cache.packed_count == 0  # nobody finds what is not committed
    first.commit()
    with cache.begin() as second:
        two = pack(second, array, "a")
        again = pack(second, array, "a")
    (name,) = first.packed_names
    assert second.packed_names == [name]
    assert np.shares_memory(one, two)
    assert np.shares_memory(two, again)
    np.testing.assert_array_equal(two.view(np.float32).reshape(8, 4), array.T)
    assert (second.counts.packs, second.counts.hits) == (0, 2)
    assert [entry.origin for entry in second.entries()] == ["shared"]
    assert cache.users(name) == 2
    first.release()
    assert (cache.packed_count, cache.users(name)) == (1, 1)
    second.release()
    assert (cache.packed_count, cache.users(name)) == (0, 0)


def test_another_layout_or_no_name_is_another_block():
    cache, array = array_cache(), floats(4, 8)
    with cache.begin() as session:
        blocks = [pack(session, array, "a"), pack(session, array, "a", layout=8)]
        blocks += [pack(session, array, ""), pack(session, array, "")]
    assert len({block.ctypes.data for block in blocks}) == 4
    assert cache.packed_count == 2
    origins = [entry.origin for entry in session.entries()]
    assert origins == ["packed", "packed", *["its content has no name"] * 2]


def test_an_aborted_session_leaves_nothing():
    cache = array_cache()
    session = cache.begin()
    pack(session, floats(2, 2), "a")
    session.abort()
    assert cache.packed_count == 0
    with pytest.raises(UsageError, match="is released"):
        session.commit()


def test_a_file_is_found_by_the_packer_that_wrote_it(tmp_path):
    array = floats(4, 8)
    file = stored(tmp_path, array)
    found = file.open()
    with array_cache().begin() as session:
        session.offer(found.addressed(), found)
        block = pack(session, array, "0")
    assert session.counts.hits == 1
    assert [entry.mapped for entry in session.entries()] == [True]
    np.testing.assert_array_equal(block.view(np.float32).reshape(8, 4), array.T)
    with pytest.raises(UnusableError, match="another build"):
        PackedFile(file.path, Packer(2))
    (item,) = listed(tmp_path, Packer(2))
    assert (item.is_foreign, "another version" in item.problem) == (True, True)
    assert [deleted.path for deleted in prune(tmp_path, 0, Packer())] == [file.path]


def test_a_mapped_block_outlives_its_session(tmp_path):
    array = floats(4, 8)
    found = stored(tmp_path, array).open()
    session = array_cache().begin()
    session.offer(found.addressed(), found)
    block = pack(session, array, "0")
    session.abort()
    del session, found
    np.testing.assert_array_equal(block.view(np.float32).reshape(8, 4), array.T)


def test_blocks_lie_in_memory_of_a_callers_allocator():
    cache, pages = array_cache(), Pages()
    array = floats(4, 8)
    with allocating(pages), cache.begin() as session:
        block = pack(session, array, "a")
    assert pages.sizes == [array.nbytes]
    assert isinstance(block.base, np.ndarray | mmap.mmap)
    with cache.begin() as other:
        pack(other, floats(3, 3), "b")
    assert len(pages.sizes) == 1  # only within the block


class Wrong:
    """An allocator that returns something else."""

    def __init__(self, array):
        self._array = array

    def allocate(self, size, alignment):
        if self._array is None:
            raise MemoryError("no huge pages are reserved")
        return self._array


READ_ONLY = np.zeros(64, np.uint8)
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (None, "no huge pages are reserved"),
        (np.zeros(63, np.uint8), r"did not return uint8\[64\]"),
        (np.zeros(64, np.int8), r"did not return uint8\[64\]"),
        (np.zeros(128, np.uint8)[::2], "must return dense"),
        (READ_ONLY, "must return dense"),
        (allocate_bytes(HEAP, 128)[1:65], "multiple of 64"),
    ],
)
def test_an_allocator_that_breaks_its_promise_is_named(array, message):
    with pytest.raises(BackendError, match=f"Wrong .*{message}"):
        allocate_bytes(Wrong(array), 64)
