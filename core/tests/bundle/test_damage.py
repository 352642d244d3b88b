"""Damaged bundles: loading refuses what it can see at no cost, `verify` finds all the rest."""

from __future__ import annotations

import hashlib
import json
import os
import shutil

import numpy as np
import pytest
from bundle_models import branches, linear, read, typed

from narrowpass.bundle import Bundle, MethodReport, Report, verify
from narrowpass.errors import BundleError

FILES = ["manifest.json", "main.onnx", "two.onnx", "weights.safetensors", "reports/00-fold.json"]


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
    path = tmp_path_factory.mktemp("intact") / "b"
    Bundle(
        {"main": read(branches()), "two": read(typed("INT4")), "x": read(linear(0, 17))},
        pipeline="fold",
        plugins={"p": "1"},
        reports=[Report("fold", {"main": MethodReport([{"node": "n"}], {"folded": 1})})],
    ).save(path)
    assert verify(path) == []
    return path


@pytest.fixture
def damaged(intact, tmp_path):
    path = tmp_path / "b"
    shutil.copytree(intact, path)
    return path


@pytest.mark.parametrize("name", FILES)
def test_any_changed_byte_is_found(damaged, name):
    file = damaged / name
    original = file.read_bytes()
    places = np.linspace(0, len(original) - 1, 150).astype(int)
    for place in sorted(set(places.tolist())):
        changed = bytearray(original)
        changed[place] ^= 1 << place % 8
        file.write_bytes(changed)
        problems = verify(damaged)
        assert problems, f"byte {place} of {name}"
        assert all(str(damaged) in problem for problem in problems)
    file.write_bytes(original)
    assert verify(damaged) == []


def test_every_byte_of_the_padding_is_looked_at(damaged):
    file = damaged / "weights.safetensors"
    data = bytearray(file.read_bytes())
    length = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:length])
    pads = [entry["data_offsets"] for name, entry in header.items() if name.startswith("__pad.")]
    assert pads
    for start, stop in pads:
        for place in (start, stop - 1):
            data[length + place] = 1
            file.write_bytes(data)
            assert any("padding" in problem for problem in verify(damaged))
            data[length + place] = 0


def test_each_changed_tensor_is_named(damaged):
    manifest = Bundle.load(damaged).manifest
    with (damaged / "weights.safetensors").open("r+b") as file:
        for info in manifest.tensors.values():
            file.seek(info.offset)
            file.write(b"\xa5\x5a")
    problems = " ".join(verify(damaged))
    assert all(repr(key) in problems for key in manifest.tensors)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(damaged, name):
    (damaged / name).unlink()
    with pytest.raises(BundleError, match=name.replace(".", r"\.")):
        Bundle.load(damaged)
    (problem,) = verify(damaged)
    assert name in problem


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("keep", [0.0, 0.01, 0.5, 0.99])
def test_a_file_that_is_cut_short_is_refused(damaged, name, keep):
    file = damaged / name
    os.truncate(file, int(file.stat().st_size * keep))
    with pytest.raises(BundleError, match=name.replace(".", r"\.")):
        Bundle.load(damaged)
    assert verify(damaged)


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_grew_is_refused_or_found(damaged, name):
    with (damaged / name).open("ab") as file:
        file.write(b"\n")
    assert verify(damaged)
    if name != "manifest.json":
        with pytest.raises(BundleError, match=name.replace(".", r"\.")):
            Bundle.load(damaged)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["folder", "fifo"])
def test_what_is_no_file_is_refused(damaged, name, kind):
    (damaged / name).unlink()
    (damaged / name).mkdir() if kind == "folder" else os.mkfifo(damaged / name)
    with pytest.raises(BundleError, match=name.replace(".", r"\.")):
        Bundle.load(damaged)


def edit(path, change):
    manifest = json.loads((path / "manifest.json").read_text())
    change(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))


def set_in(*path):
    *places, last, value = path

    def change(raw):
        for place in places:
            raw = raw[place]
        raw[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_in("version", 2), "format version 2"),
        (set_in("format", "else"), "not the manifest of a bundle"),
        (set_in("methods", 0, "file", "path", "../x.onnx"), "unknown file"),
        (set_in("methods", 0, "file", "path", "two.onnx"), "unknown file"),
        (set_in("methods", 0, "file", "sha256", "0" * 64), "main.onnx was changed"),
        (set_in("methods", 0, "name", "../main"), "unknown file"),
        (set_in("methods", 0, "initializers", []), "not the tensor"),
        (set_in("methods", 0, "initializers", 0, "key", "absent"), "not the tensor"),
        (set_in("methods", 0, "initializers", 0, "scope", "z/"), "not the tensor"),
        (set_in("weights", "path", "/etc/passwd"), "unknown file"),
        (set_in("weights", "bytes", 5), "has .* bytes where the manifest says 5"),
        (set_in("weights", "header_sha256", "0" * 64), "header is not"),
        (set_in("tensors", "w", "offset", 64), "'w' is not where and what"),
        (set_in("tensors", "w", "dtype", "int32"), "'w' is not where and what"),
        (set_in("tensors", "w", "dtype", "floaty"), "unknown element type"),
        (set_in("tensors", "w", "shape", [1, 256]), "'w' is not where and what"),
        (set_in("tensors", "w", "bytes", 4), "'w' is not where and what"),
        (set_in("tensors", "more", {}), "lacks the field"),
        (set_in("reports", 0, "path", "reports/../main.onnx"), "unknown file"),
        (set_in("reports", 0, "path", "reports/.."), "unknown file"),
        (set_in("reports", 0, "path", "main.onnx"), "unknown file"),
        (lambda raw: raw["tensors"].pop("w"), "only in the manifest or only in"),
        (lambda raw: raw["methods"].append(raw["methods"][0]), "two methods of the same name"),
    ],
)
def test_a_manifest_that_says_otherwise_is_refused(damaged, change, message):
    edit(damaged, change)
    with pytest.raises(BundleError, match=message) as caught:
        Bundle.load(damaged)
    assert str(damaged) in str(caught.value)
    assert verify(damaged)


@pytest.mark.parametrize(
    "change",
    [
        set_in("pipeline", "fold,fold"),
        set_in("plugins", "p", "2"),
        set_in("methods", 0, "inputs", 0, "name", "other"),
        set_in("methods", 0, "checker", "fine"),
        set_in("tensors", "w", "sha256", "0" * 64),
        set_in("sha256", "0" * 64),
        lambda raw: raw.pop("sha256"),
    ],
)
def test_what_loading_does_not_see_verify_finds(damaged, change):
    edit(damaged, change)
    Bundle.load(damaged)
    assert verify(damaged)


def test_weights_of_another_bundle_are_refused(damaged, tmp_path):
    Bundle({"main": read(branches(7, 8)), "two": read(typed("INT4", seed=4))}).save(tmp_path / "o")
    shutil.copy(tmp_path / "o/weights.safetensors", damaged / "weights.safetensors")
    with pytest.raises(BundleError, match=r"weights\.safetensors"):
        Bundle.load(damaged)


HARD = {
    "nested": b"[" * 100_000,
    "nested a little less": b"[" * 900 + b"]" * 900,
    "digits": b"9" * 10_000,
    "not a number": b"NaN",
    "half of a pair": b'"\\ud800"',
    "true": b"true",
    "a fraction": b"1.0",
    "huge": b"9" * 4000,
    "negative": b"-1",
}


@pytest.mark.parametrize("name", HARD)
@pytest.mark.parametrize("field", ["bytes", "offset", "shape"])
def test_a_manifest_that_is_hard_to_read(damaged, name, field):
    manifest = json.loads((damaged / "manifest.json").read_text())
    manifest["tensors"]["w"][field] = "@"
    text = json.dumps(manifest).encode().replace(b'"@"', HARD[name])
    (damaged / "manifest.json").write_bytes(text)
    with pytest.raises(BundleError, match="manifest"):
        Bundle.load(damaged)
    assert verify(damaged)


def test_a_manifest_that_says_something_twice(damaged):
    text = (damaged / "manifest.json").read_text()
    (damaged / "manifest.json").write_text(text.replace("{", '{"version": 1,', 1))
    with pytest.raises(BundleError, match="'version' stands twice"):
        Bundle.load(damaged)


@pytest.mark.parametrize("name", HARD)
@pytest.mark.parametrize("field", ["data_offsets", "shape", "dtype"])
def test_a_header_that_is_hard_to_read(damaged, name, field):
    """With the checksum that fits: whoever writes a bundle can add it."""
    file = damaged / "weights.safetensors"
    data = file.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header["w"][field] = ["@", "@"] if field == "data_offsets" else "@"
    signed(damaged, json.dumps(header).encode().replace(b'"@"', HARD[name]), data[start:])
    with pytest.raises(BundleError, match=r"weights\.safetensors"):
        Bundle.load(damaged)
    assert verify(damaged)


@pytest.mark.parametrize("text", [b"[]", b"null", b'{"w": 1}', b'{"w": {}, "w": {}}', b"\xff"])
def test_a_header_of_something_else(damaged, text):
    signed(damaged, text, b"")
    with pytest.raises(BundleError, match=r"weights\.safetensors: its header is damaged"):
        Bundle.load(damaged)


def signed(path, text, rest):
    """Write a weights file with this header, and a manifest that says so."""
    first = len(text).to_bytes(8, "little") + text
    (path / "weights.safetensors").write_bytes(first + rest)

    def change(raw):
        digest = hashlib.sha256(first).hexdigest()
        raw["weights"] |= {"bytes": len(first + rest), "header_bytes": len(first)}
        raw["weights"]["header_sha256"] = digest

    edit(path, change)


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"pass": "\\ud800", "methods": {}}', b"[]"])
def test_a_report_that_is_hard_to_read(damaged, text):
    raw = json.loads((damaged / "manifest.json").read_text())
    (damaged / raw["reports"][0]["path"]).write_bytes(text)
    info = {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()}
    edit(damaged, lambda raw: raw["reports"][0].update(info))
    with pytest.raises(BundleError, match=r"reports/"):
        Bundle.load(damaged)


def test_a_damaged_bundle_does_not_become_a_whole_one(damaged, tmp_path):
    """Hashes are taken anew when it is written: of what the manifest says, or not at all."""
    bundle = Bundle.load(damaged)
    info = bundle.manifest.tensors["w"]
    file = damaged / "weights.safetensors"
    data = bytearray(file.read_bytes())
    data[info.offset + 1] ^= 1
    file.unlink()
    file.write_bytes(data)
    with pytest.raises(BundleError, match=r"weights\.safetensors: tensor 'w' was changed"):
        Bundle.load(damaged).save(tmp_path / "new.narrow")
    assert not (tmp_path / "new.narrow").exists()
    bundle.save(tmp_path / "new.narrow")  # it has the file that was there
    assert verify(tmp_path / "new.narrow") == []
