"""Bundles that sessions keep on disk: found again, and not where anything has changed."""

import errno
import json
import os
import subprocess
import sys
import time

import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail
from session_kit import ORIGINAL, OURS, RNG, external, model, node, perceptron, value

from narrowpass_onnxruntime.session import source, store

WIDTH = 512
X = np.linspace(-1, 1, 2 * WIDTH, dtype=np.float32).reshape(2, WIDTH)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, and the folder of its bundles."""
    monkeypatch.setenv("NARROWPASS_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "sessions"


@pytest.fixture
def path(tmp_path):
    """A model of 2 MB in one file."""
    file = tmp_path / "model.onnx"
    onnx.save(perceptron(WIDTH), file)
    return file


def kept(folder):
    return sorted(folder.glob("*.narrow"))


def check(given, session=None, **more):
    """Run a session; within 1e-5 of the largest: 512 elements accumulated in float32."""
    session = session or OURS(given, **more)
    (found,) = session.run(["y"], {"x": X})
    (expected,) = ORIGINAL(given).run(["y"], {"x": X})
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()
    return session


def test_a_second_session_packs_and_builds_nothing(cache, path, monkeypatch):
    pytest.importorskip("narrowpass_xnn_cpu")
    first = check(path)
    assert first._program.stats()["weights"]["packs"] == 2
    expected = [(arg.name, arg.type, arg.shape) for arg in first.get_outputs()]
    del first
    monkeypatch.setattr("narrowpass.build", None)
    monkeypatch.setattr("narrowpass_onnxruntime.session.source.load_model", None)
    again = check(path)
    weights = again._program.stats()["weights"]
    assert (weights["packs"], weights["hits"]) == (0, 2)
    assert [(arg.name, arg.type, arg.shape) for arg in again.get_outputs()] == expected
    assert len(kept(cache)) == 1


@pytest.mark.parametrize("umask", [0, 0o002])
def test_whatever_the_umask_bundles_are_found_again(cache, path, monkeypatch, umask):
    before = os.umask(umask)
    try:
        check(path)
        monkeypatch.setattr("narrowpass.build", None)
        check(path)
    finally:
        os.umask(before)
    (bundle,) = kept(cache)
    for file in (bundle, *bundle.rglob("*"), *cache.glob("*.json")):
        assert file.stat().st_mode & 0o022 == 0, file


def test_no_pass_is_imported_by_a_second_process(cache, path):
    pytest.importorskip("narrowpass_xnn_cpu")
    check(path)
    code = (
        "import sys, narrowpass_onnxruntime\n"
        f"session = narrowpass_onnxruntime.InferenceSession({str(path)!r})\n"
        "print(sorted(name for name in sys.modules if name.split('.')[0] in "
        "('onnxruntime', 'scipy', 'narrowpass_constant_folding', 'narrowpass_int8_sym')"
        " and name.count('.') > 0))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_a_model_that_changes_is_built_again(cache, path):
    check(path)
    onnx.save(perceptron(WIDTH), path)  # other weights
    check(path)
    assert len(kept(cache)) == 1  # that of the old model is gone


def test_external_data_that_changes(cache, tmp_path):
    path = external(tmp_path, width=WIDTH)
    check(path)
    data = np.fromfile(tmp_path / "weights.bin", np.float32)
    (2 * data).tofile(tmp_path / "weights.bin")
    check(path)
    assert len(kept(cache)) == 2


def test_models_that_the_system_says_nothing_of_are_no_one_model(cache, tmp_path, monkeypatch):
    """Where a disk fails, a file has no status; two of them are two models."""
    monkeypatch.setattr(source, "status_of", lambda _path: "")
    for name in ("one.onnx", "two.onnx"):
        onnx.save(perceptron(WIDTH), tmp_path / name)  # other weights
        check(tmp_path / name)
    assert kept(cache) == []


def test_a_file_that_cannot_be_looked_at(path, monkeypatch):
    stat = os.stat

    def failing(given, *more, **named):
        if str(given) == str(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(given))
        return stat(given, *more, **named)

    monkeypatch.setattr(os, "stat", failing)
    with pytest.raises(Fail, match="cannot be looked at: Input/output error"):
        OURS(path)


def test_a_model_that_changes_while_it_is_built(cache, path, monkeypatch):
    """It is built, and not kept: nobody knows which one was read."""
    import narrowpass

    build, other = narrowpass.build, perceptron(WIDTH).SerializeToString()

    def slow(model, pipeline, out, **more):
        bundle = build(model, pipeline, out, **more)
        if out is not None:
            path.write_bytes(other)
        return bundle

    monkeypatch.setattr(narrowpass, "build", slow)
    OURS(path).run(None, {"x": X})
    assert kept(cache) == []
    monkeypatch.undo()
    monkeypatch.setenv("NARROWPASS_CACHE_DIR", str(cache.parent))
    check(path)


def test_external_data_of_an_inner_graph_that_changes(cache, tmp_path):
    """A constant of a branch lies in a file of its own."""
    weight = RNG.standard_normal((WIDTH, WIDTH)).astype(np.float32)
    weight.tofile(tmp_path / "inner.bin")
    outside = onnx.TensorProto(data_type=1, dims=weight.shape, data_location=1, name="c")
    outside.external_data.add(key="location", value="inner.bin")
    inner = [
        onnx.helper.make_node("Constant", [], ["c"], value=outside),
        node("MatMul", ["x", "c"], ["m"]),
    ]
    branches = {
        "then_branch": onnx.helper.make_graph(inner, "t", [], [value("m", ("n", WIDTH))]),
        "else_branch": onnx.helper.make_graph(
            [node("Neg", ["x"], ["q"])], "e", [], [value("q", ("n", WIDTH))]
        ),
    }
    inputs = [value("x", ("n", WIDTH)), value("b", (), onnx.TensorProto.BOOL)]
    chosen = model([node("If", ["b"], ["y"], **branches)], inputs, [value("y", ("n", WIDTH))])
    (tmp_path / "model.onnx").write_bytes(chosen.SerializeToString())
    for factor in (1, 2):
        (factor * weight).tofile(tmp_path / "inner.bin")
        session = OURS(tmp_path / "model.onnx")
        (found,) = session.run(None, {"x": X, "b": np.array(True)})
        expected = X.astype(np.float64) @ (factor * weight)
        assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()
    assert len(kept(cache)) == 2


def test_samples_that_change(cache, path, tmp_path):
    """With samples in files a bundle is kept, with those of a function it is not."""
    samples = tmp_path / "samples"
    samples.mkdir()
    for scale in (1, 2):
        np.savez(samples / "a.npz", x=scale * X)
        check(path, **calibrated(str(samples)))
        check(path, **calibrated(str(samples)))
        assert len(kept(cache)) == scale
    check(path, **calibrated("session_kit:samples"))
    assert len(kept(cache)) == 2


def calibrated(samples):
    given = {"calibration": samples, "pipeline": ""}
    return {"providers": [("NarrowpassExecutionProvider", given)]}


def test_bytes_are_found_by_their_content(cache, path):
    data = path.read_bytes()
    check(data)
    check(bytes(bytearray(data)))
    assert len(kept(cache)) == 1
    check(perceptron(WIDTH).SerializeToString())
    assert len(kept(cache)) == 2


def test_what_is_asked_otherwise_is_another_bundle(cache, path):
    fixed = onnxruntime.SessionOptions()
    fixed.add_free_dimension_override_by_name("n", 2)
    plain = {"pipeline": ""}
    check(path)
    assert check(path, sess_options=fixed).get_inputs()[0].shape == [2, WIDTH]
    check(path, providers=[("NarrowpassExecutionProvider", plain)])
    assert len(kept(cache)) == 3
    check(path, sess_options=fixed)
    assert check(path).get_inputs()[0].shape == ["n", WIDTH]
    assert len(kept(cache)) == 3


def test_a_folder_that_is_named(cache, path, tmp_path):
    check(path, providers=[("NarrowpassExecutionProvider", {"cache_dir": str(tmp_path / "own")})])
    assert len(kept(tmp_path / "own" / "sessions")) == 1
    assert not cache.exists()


@pytest.mark.parametrize("given", ["0", "memory"])
def test_nothing_is_kept_where_the_cache_is_off(cache, path, given):
    check(path, providers=[("NarrowpassExecutionProvider", {"cache": given})])
    assert not cache.parent.exists()


def test_small_models_are_not_kept(cache, tmp_path):
    path = external(tmp_path, width=64)
    OURS(path).run(None, {"x": np.zeros((1, 64), np.float32)})
    assert not cache.exists()


def test_a_folder_that_cannot_be_written_to(tmp_path, path, monkeypatch, caplog):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("NARROWPASS_CACHE_DIR", str(tmp_path / "file"))
    check(path)
    assert "is built anew in each process" in caplog.text


def test_folders_that_others_may_write_to_are_not_read(cache, path):
    check(path)
    (bundle,) = kept(cache)
    bundle.chmod(0o777)
    before = bundle.stat().st_ino
    check(path)
    assert kept(cache)[0].stat().st_ino != before  # it was replaced
    cache.chmod(0o777)
    check(path)
    assert store.Store(cache, str(path), "").note() is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("classes", 3),
        ("classes", {"y": [[]]}),
        ("inputs", [{"name": 5, "type": "tensor(float)", "shape": []}]),
        ("inputs", [{"name": "x", "type": "tensor(float)", "shape": [0.5]}]),
        ("inputs", [None]),
        ("metadata", {}),
        ("initializers", "w"),
    ],
)
def test_a_note_of_other_types_is_not_used(cache, path, field, value):
    check(path)
    (note,) = cache.glob("*.json")
    document = json.loads(note.read_bytes())
    document["interface"][field] = value
    note.write_text(json.dumps(document))
    assert store.Store(cache, str(path), source.status_of(path)).note() is None
    note.write_text("[" * 100_000)
    assert store.Store(cache, str(path), source.status_of(path)).note() is None


@pytest.mark.parametrize("damage", ["note", "bundle"])
def test_what_is_damaged_is_built_again(cache, path, damage):
    check(path)
    (bundle,) = kept(cache)
    if damage == "note":
        next(cache.glob("*.json")).write_text('{"interface": {}}')
    else:
        (bundle / "manifest.json").write_text('{"format": "narrowpass bundle"}')
    check(path)
    check(path)
    assert len(kept(cache)) == 1


def test_models_that_are_gone_or_unused_are_deleted(cache, path, tmp_path):
    other = tmp_path / "other.onnx"
    onnx.save(perceptron(WIDTH), other)
    data = perceptron(WIDTH).SerializeToString()
    check(data)
    long_ago = time.time() - 40 * 24 * 3600
    for note in cache.glob("*.json"):
        os.utime(note, (long_ago, long_ago))
    check(other)
    assert len(kept(cache)) == 1  # that of the bytes was not used for long
    other.unlink()
    check(path)
    assert len(kept(cache)) == 1
    assert len([*cache.glob("*.json")]) == 1


def test_another_version_with_other_identities_keeps_its_bundles(cache, path, monkeypatch):
    """To each of them the other one's models look as if they had changed."""
    check(path)
    with monkeypatch.context() as patch:
        patch.setattr(store, "_VERSION", "2")
        patch.setattr(source, "status_of", lambda path: f"another {path}")
        patch.setattr(store, "status_of", lambda path: f"another {path}")
        check(path)
        before = kept(cache)
        assert len(before) == 2
        monkeypatch.setattr("narrowpass.build", None)
        check(path)
    check(path)
    assert kept(cache) == before


@pytest.mark.parametrize("years", [-50, 50])
def test_a_clock_that_jumps(cache, path, tmp_path, monkeypatch, years):
    """A session whose bundle is taken for unused runs; one of the future is in use."""
    session = check(path)
    other = tmp_path / "other.onnx"
    onnx.save(perceptron(WIDTH), other)
    now = time.time()
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: now + years * 365 * 24 * 3600)
        check(other)
    assert len(kept(cache)) == (2 if years < 0 else 1)
    check(path, session=session)
    check(path)
    assert len(kept(cache)) == 2


@pytest.mark.parametrize(("age", "left"), [(0, True), (4000, False)])
def test_a_note_that_a_killed_process_was_writing(cache, path, age, left):
    cache.mkdir(parents=True, mode=0o700)
    half = cache / ".narrowpass-0123.tmp"
    half.touch()
    os.utime(half, (0, time.time() - age))
    check(path)
    assert half.exists() == left


def test_notes_that_are_none_are_left_alone(cache, path):
    """Another process may have deleted one between the list of the folder and the look at it."""
    check(path)
    (note,) = cache.glob("*.json")
    others = {cache / "gone.json": None, cache / "text.json": b"text", cache / "list.json": b"[]"}
    others[cache / "empty.json"] = b"{}"
    others[cache / "deep.json"] = b"[" * 100_000
    others[cache / "number.json"] = b'{"path": 5, "identity": ""}'
    others[cache / "nul.json"] = b'{"path": "a\\u0000b", "identity": ""}'
    for other, content in others.items():
        if content is None:
            other.symlink_to("nowhere")
        else:
            other.write_bytes(content)
    ours = store.Store(cache, str(path), "identity")
    found = store.Store(cache, str(path), source.status_of(path)).note()
    ours.write_note(store.Note(found.interface, ()))
    assert note.is_file()
    assert all(os.path.lexists(other) for other in others)
    assert ours.note() is None  # its identity is not that of the model, so it is deleted at once


def test_a_folder_of_another_user_is_not_used(cache, path, monkeypatch):
    check(path)
    kept_by_us = store.Store(cache, str(path), source.status_of(path))
    note = kept_by_us.note()
    assert note is not None
    user = os.geteuid()
    if user == 0:
        os.chown(cache, 1, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    assert kept_by_us.note() is None
    with pytest.raises(PermissionError, match=r"belongs to user \d+, .*; set another folder"):
        kept_by_us.write_note(note)
