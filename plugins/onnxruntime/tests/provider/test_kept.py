"""Bundles that sessions keep on disk: how they are found, and when they are deleted."""

import hashlib
import json
import os
import stat
import time

import numpy as np
import onnx
import onnxruntime
import pytest
from click.testing import CliRunner
from provider_kit import CPU, bundles, check, cpu_session, drawn, our_session, perceptron, settings

import narrowpass_onnxruntime
from narrowpass_onnxruntime.provider import compiling, identities
from narrowpass_onnxruntime.provider.library import ffi, lib
from narrowpass_onnxruntime.provider.registration import NAME
from narrowpass_xnn_cpu.command import cache as cache_command

WIDTH, INNER = 64, 4096
BLOCK = 4096


def condensed(data, key):
    """NH of blocks, as in the paper, with exact integers; the second time 64 bytes further."""
    padded = np.frombuffer(data + bytes(-len(data) % BLOCK), "<u4").reshape(-1, BLOCK // 4)
    found = []
    for words in padded:
        for shift in (0, 16):
            keys = np.frombuffer(key, "<u4")[shift : shift + BLOCK // 4]
            added = [(int(w) + int(k)) % 2**32 for w, k in zip(words, keys, strict=True)]
            pairs = zip(added[::2], added[1::2], strict=True)
            found.append(sum(a * b for a, b in pairs) % 2**64)
    return found


@pytest.mark.parametrize("size", [0, 1, 63, 4095, 4096, 4097, 20000])
@pytest.mark.parametrize("start", [0, 3])
@pytest.mark.parametrize("level", range(lib.np_condense_levels()))
def test_blocks_are_condensed_as_in_the_paper(size, start, level):
    key = np.random.default_rng(1).bytes(lib.NP_CONDENSE_KEY)
    data = np.random.default_rng(2).bytes(start + size)
    pairs = np.full((-(-size // BLOCK), 2), 7, np.uint64)
    given = ffi.from_buffer(data)
    target = ffi.cast("uint64_t *", pairs.ctypes.data)
    lib.np_condense(given + start, size, ffi.from_buffer(key), target, level)
    assert pairs.reshape(-1).tolist() == condensed(data[start:], key)


@pytest.mark.parametrize("size", [1 << 16, 20 * BLOCK, 20 * BLOCK + 1, 21 * BLOCK - 1])
def test_threads_do_not_change_the_name_of_a_content(size):
    data = np.random.default_rng(3).integers(0, 256, size, np.uint8)
    names = {identities.Identities(b"secret", threads)._content(data) for threads in (1, 2, 3, 9)}
    key = hashlib.shake_256(b"secret").digest(lib.NP_CONDENSE_KEY)
    pairs = np.array(condensed(data.tobytes(), key), np.uint64)
    assert names == {f"{size} {hashlib.sha256(pairs.data).hexdigest()}"}


@pytest.fixture
def path(tmp_path):
    """A model whose weights are in a file beside it."""
    found = tmp_path / "model.onnx"
    save(perceptron(WIDTH, INNER), found)
    return found


def save(model, path):
    onnx.save(model, path, save_as_external_data=True, location="weights", size_threshold=1024)


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def reads_no_weight(monkeypatch):
    content = identities.Identities._content

    def small(self, memory):
        assert memory.nbytes < BLOCK * 16, "a large constant is read"
        return content(self, memory)

    monkeypatch.setattr(identities.Identities, "_content", small)
    monkeypatch.delattr(compiling.GroupCompiler, "_build")


def test_weights_in_files_are_not_read_again(path, cache, monkeypatch):
    expected, x = cpu_session(onnx.load(path)), {"x": drawn(2, WIDTH)}
    check(our_session(str(path), cache_dir=str(cache)), expected, x)
    assert len(bundles(cache)) == 1
    reads_no_weight(monkeypatch)
    check(our_session(str(path), cache_dir=str(cache)), expected, x)


def test_a_file_that_changes_has_another_bundle(path, cache):
    x = {"x": drawn(2, WIDTH)}
    for count in (1, 2):
        ours = our_session(str(path), cache_dir=str(cache))
        check(ours, cpu_session(onnx.load(path)), x)
        assert len(bundles(cache)) == count
        del ours
        with path.with_name("weights").open("r+b") as file:  # in place: the inode stays
            file.write(drawn(WIDTH).tobytes())
    save(perceptron(WIDTH, INNER), path)
    check(our_session(str(path), cache_dir=str(cache)), cpu_session(onnx.load(path)), x)


def test_memory_that_was_written_to_is_not_the_file(path, cache):
    """Mapped copy on write, and changed in this process: the file is as it was."""
    model, x = onnx.load(path), {"x": drawn(2, WIDTH)}
    check(our_session(str(path), cache_dir=str(cache)), cpu_session(model), x)
    (entry,) = (
        t for t in onnx.load(path, load_external_data=False).graph.initializer if t.name == "w"
    )
    offset = next(int(each.value) for each in entry.external_data if each.key == "offset")
    weights = path.with_name("weights")
    mapped = np.memmap(weights, np.float32, "c", offset, (WIDTH, INNER))
    mapped[3] = 2.0
    options = settings()
    value = onnxruntime.OrtValue.ortvalue_from_numpy(mapped)
    options.add_external_initializers(["w"], [value])
    narrowpass_onnxruntime.register()
    session = onnxruntime.InferenceSession(
        path, options, providers=[NAME, CPU], provider_options=[{"cache_dir": str(cache)}, {}]
    )
    assert session.get_providers() == [NAME, CPU]
    theirs = onnxruntime.InferenceSession(path, options, providers=[CPU]).run(None, x)[0]
    assert np.abs(theirs - cpu_session(model).run(None, x)[0]).max() > 0.1
    np.testing.assert_allclose(session.run(None, x)[0], theirs, rtol=2e-5, atol=1e-3)


def test_bytes_and_files_that_hold_weights_are_found_by_content(tmp_path, cache, monkeypatch):
    model, x = perceptron(WIDTH, INNER), {"x": drawn(2, WIDTH)}
    check(our_session(model, cache_dir=str(cache)), cpu_session(model), x)
    onnx.save(model, tmp_path / "whole.onnx")
    monkeypatch.delattr(compiling.GroupCompiler, "_build")
    check(our_session(str(tmp_path / "whole.onnx"), cache_dir=str(cache)), cpu_session(model), x)


def test_a_file_that_changes_while_it_is_read(path, cache, monkeypatch):
    """The session has the right weights, and no bundle of them is kept."""
    build = compiling.GroupCompiler._build

    def building(self, *arguments, copy):
        found = build(self, *arguments, copy=copy)
        if not copy:
            os.utime(path.with_name("weights"))
        return found

    monkeypatch.setattr(compiling.GroupCompiler, "_build", building)
    x = {"x": drawn(2, WIDTH)}
    check(our_session(str(path), cache_dir=str(cache)), cpu_session(onnx.load(path)), x)
    assert bundles(cache) == []


def test_bundles_that_nobody_uses_are_deleted(cache):
    for _ in range(2):
        our_session(perceptron(WIDTH, INNER), cache_dir=str(cache))
    old, other = bundles(cache)
    month = time.time() - 31 * 24 * 3600
    os.utime(old, (month, month))
    our_session(perceptron(WIDTH, INNER), cache_dir=str(cache))
    assert old not in bundles(cache)
    assert other in bundles(cache)
    assert len(bundles(cache)) == 2


def test_a_bundle_that_is_deleted_before_it_is_loaded(cache, monkeypatch):
    """By a process whose clock is a year ahead: for that one nobody uses it."""
    model = perceptron(WIDTH, INNER)
    our_session(model, cache_dir=str(cache))
    find = compiling.KeptBundles.find

    def deleting(self, name):
        found = find(self, name)
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda: found.stat().st_mtime + 365 * 24 * 3600)
            self.delete_unused()
        return found

    compile_, compiled = compiling.GroupCompiler.compile, []

    def compiling_(self, *arguments):
        compiled.append(compile_(self, *arguments))
        return compiled[-1]

    monkeypatch.setattr(compiling.KeptBundles, "find", deleting)
    monkeypatch.setattr(compiling.GroupCompiler, "compile", compiling_)
    check(our_session(model, cache_dir=str(cache)), cpu_session(model), {"x": drawn(2, WIDTH)})
    assert bundles(cache) == []
    assert compiled, "the group is not left to others"


def test_use_is_noted(cache):
    model = perceptron(WIDTH, INNER)
    our_session(model, cache_dir=str(cache))
    (bundle,) = bundles(cache)
    os.utime(bundle, (1e9, 1e9))
    our_session(model, cache_dir=str(cache))
    assert time.time() - bundle.stat().st_mtime < 3600


def test_a_folder_that_others_can_write_to(cache):
    """Another user could put weights there."""
    folder = cache / "onnxruntime"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    model = perceptron(WIDTH, INNER)
    check(our_session(model, cache_dir=str(cache)), cpu_session(model), {"x": drawn(2, WIDTH)})
    assert bundles(cache) == []


def test_the_secret_is_for_its_owner_alone(cache):
    our_session(perceptron(WIDTH, INNER), cache_dir=str(cache))
    key = cache / "onnxruntime" / "key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert len(key.read_bytes()) == 32
    assert identities.secret_of(key.parent) == key.read_bytes()


def test_the_command_lists_and_deletes_bundles(cache):
    """What is left is what was used last; a bundle of either kind of session counts."""
    model = perceptron(WIDTH, INNER)
    our_session(model, cache_dir=str(cache))
    given = [("NarrowpassExecutionProvider", {"cache_dir": str(cache)})]
    narrowpass_onnxruntime.InferenceSession(model.SerializeToString(), providers=given)
    (ours,) = bundles(cache)
    (other,) = (cache / "sessions").glob("*.narrow")
    os.utime(other, (1e9, 1e9))
    options = "--cache-dir", str(cache)
    listed = json.loads(command("list", "--json", *options))["files"]
    sizes = {row["path"]: row["bytes"] for row in listed}
    for bundle in (ours, other):
        files = [file for file in bundle.rglob("*") if file.is_file()]
        assert sizes[str(bundle)] >= sum(file.stat().st_size for file in files) > 4 * WIDTH * INNER
    assert listed[-1]["path"] == str(other)
    assert command("list", *options).count("bundle") == 2
    command("prune", "--max-size", str(sum(sizes.values()) - 1), *options)
    assert ours.exists()
    assert not other.exists()
    command("prune", "--max-size", "0", *options)
    assert bundles(cache) == []


def command(*arguments):
    done = CliRunner().invoke(cache_command, arguments)
    assert done.exit_code == 0, done.output
    return done.output
