"""From a bundle to its session: the cache of the process, the file, and who writes it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from array_cache_kit import LAYOUT, Packer, entries, floats, model_of, pack

from narrowpass import Bundle
from narrowpass.errors import UsageError
from narrowpass.runtime.backend import CompileOptions
from narrowpass_planning.weights import Weight, array_cache, packing
from narrowpass_planning.weights.folder import CacheFile
from narrowpass_planning.weights.names import key_of

pytestmark = pytest.mark.anywhere
ONE, TWO = floats(4, 4), floats(5, 4)
PACKER = Packer()


@pytest.fixture
def bundle(tmp_path):
    """Return a bundle on disk."""
    Bundle({"main": model_of(w=floats(40, 40))}).save(tmp_path / "b.narrow")
    return Bundle.load(tmp_path / "b.narrow")


def packed(bundle: Bundle, folder: Path, *arrays: np.ndarray, cache=None, mode=True):
    """Pack matrices in a session of a bundle; return its counts of hits and of packs.

    Args:
        bundle: whose file they are in.
        folder: of the file.
        arrays: the matrices, each named by its rows.
        cache: of the process; None for a new one.
        mode: `CompileOptions.cache`.
    """
    options = CompileOptions(cache=mode, cache_dir=folder)
    with packing(bundle, options, cache or array_cache(), PACKER) as session:
        for array in arrays:
            block = pack(session, array, f"{len(array)}")
            np.testing.assert_array_equal(
                block.view(np.float32).reshape(array.shape[::-1]), array.T
            )
    return session.counts.hits, session.counts.packs


def path_of(bundle: Bundle, folder: Path) -> Path:
    return CacheFile(folder, key_of(bundle) or "", PACKER).path


def test_a_bundle_finds_what_it_has_packed(bundle, tmp_path):
    folder = tmp_path / "c"
    assert packed(bundle, folder, ONE, TWO) == (0, 2)
    before = path_of(bundle, folder).stat()
    assert packed(bundle, folder, ONE, TWO) == (2, 0)
    assert packed(bundle, folder, TWO) == (1, 0)  # a part of it: the file stays
    assert path_of(bundle, folder).stat() == before


def test_what_is_missing_is_added_to_the_file(bundle, tmp_path):
    folder = tmp_path / "c"
    packed(bundle, folder, ONE)
    assert packed(bundle, folder, TWO) == (0, 1)
    assert packed(bundle, folder, ONE, TWO) == (2, 0)
    assert {entry.size for entry in entries(path_of(bundle, folder))} == {64, 80}


def test_a_block_of_another_size_is_added(bundle, tmp_path):
    """As when the size of a layout follows from more than its name says."""
    folder = tmp_path / "c"
    packed(bundle, folder, ONE)
    with packing(bundle, CompileOptions(cache_dir=folder), array_cache(), PACKER) as session:
        weight = Weight.of(ONE, "4")
        session.pack_own("matmul", (), weight, None, None, LAYOUT, 128, lambda *_: None)
    assert [entry.size for entry in entries(path_of(bundle, folder))] == [128]


def test_another_process_that_writes_meanwhile_is_not_waited_for(bundle, tmp_path):
    """Where only blocks are missing: the next load adds them."""
    folder = tmp_path / "c"
    packed(bundle, folder, ONE)
    before = path_of(bundle, folder).read_bytes()
    with CacheFile(folder, key_of(bundle) or "", PACKER).writing():
        assert packed(bundle, folder, TWO) == (0, 1)
    assert path_of(bundle, folder).read_bytes() == before


def test_what_another_process_has_written_meanwhile_is_found(bundle, tmp_path, monkeypatch):
    """Where this one waited for it."""
    folder = tmp_path / "c"
    writing = CacheFile.writing

    def written_meanwhile(self, *given, **more):
        monkeypatch.undo()
        packed(bundle, folder, ONE)
        return writing(self, *given, **more)

    monkeypatch.setattr(CacheFile, "writing", written_meanwhile)
    assert packed(bundle, folder, ONE) == (1, 0)


def test_a_process_that_gave_up_waiting_writes_nothing(bundle, tmp_path, monkeypatch):
    folder = tmp_path / "c"
    writing = CacheFile.writing
    with CacheFile(folder, key_of(bundle) or "", PACKER).writing():
        monkeypatch.setattr(CacheFile, "writing", lambda self, patience=0: writing(self, 0))
        assert packed(bundle, folder, ONE) == (0, 1)
    assert not path_of(bundle, folder).exists()


def test_unnamed_blocks_are_not_written(bundle, tmp_path):
    folder = tmp_path / "c"
    options = CompileOptions(cache_dir=folder)
    with packing(bundle, options, array_cache(), PACKER) as session:
        pack(session, ONE, "")
    assert not path_of(bundle, folder).exists()


@pytest.mark.parametrize("found", [False, True])
def test_an_error_writes_nothing(bundle, tmp_path, found):
    folder = tmp_path / "c"
    if found:
        packed(bundle, folder, ONE)
    before = sorted(folder.iterdir()) if found else []
    cache = array_cache()
    options = CompileOptions(cache_dir=folder)

    def fail() -> None:
        with packing(bundle, options, cache, PACKER) as session:
            pack(session, TWO, "5")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert cache.packed_count == 0
    left = [path for path in folder.iterdir() if path.suffix not in (".lock", ".checked")]
    assert left == [path for path in before if path.suffix not in (".lock", ".checked")]


@pytest.mark.parametrize("mode", ["memory", True])
def test_what_has_no_file_is_shared_in_memory(bundle, tmp_path, mode):
    folder, cache = tmp_path / "c", array_cache()
    given = bundle if mode == "memory" else Bundle({"main": model_of(w=floats(40, 40))})
    options = CompileOptions(cache=mode, cache_dir=folder)
    with packing(given, options, cache, PACKER) as held:
        pack(held, ONE, "4")
    assert packed(given, folder, ONE, cache=cache, mode=mode) == (1, 0)
    assert not folder.exists()


def test_without_a_cache_there_is_no_session(bundle, tmp_path):
    options = CompileOptions(cache=False, cache_dir=tmp_path / "c")
    with packing(bundle, options, array_cache(), PACKER) as session:
        assert session is None
    assert not (tmp_path / "c").exists()


def test_another_kind_of_cache_is_an_error(bundle):
    options = CompileOptions()
    object.__setattr__(options, "cache", "disk")
    with (
        pytest.raises(UsageError, match="cache must be True, False or 'memory', not 'disk'"),
        packing(bundle, options, array_cache(), PACKER),
    ):
        pass
