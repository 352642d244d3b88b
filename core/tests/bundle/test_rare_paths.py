"""Bundles: names that are none, values without types, tensors of other files, odd assets."""

from __future__ import annotations

import hashlib
import json

import onnx
import onnx_ir as ir
import pytest
from bundle_models import linear, read

from narrowpass.bundle import Bundle, publish
from narrowpass.bundle._files import value_info
from narrowpass.errors import BundleError, UsageError


def rewrite(path, change):
    """Change the manifest."""
    file = path / "manifest.json"
    document = json.loads(file.read_text())
    change(document)
    file.chmod(0o644)
    file.write_text(json.dumps(document))


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b"])
def test_names_that_no_file_can_have(tmp_path, name):
    with pytest.raises(UsageError, match="not a path"):
        Bundle.load(f"{tmp_path}/{name}")
    with pytest.raises(UsageError, match="not a path"):
        Bundle({"main": read(linear(0, 17))}).save(f"{tmp_path}/{name}")


@pytest.mark.parametrize("name", ["-notes.txt", "notes.", "NOTES.onnx"])
def test_assets_of_names_that_no_bundle_has(saved, name):
    def rename(document):
        (asset,) = document["assets"]
        asset["path"] = name

    (saved / "notes.txt").rename(saved / name)
    rewrite(saved, rename)
    with pytest.raises(BundleError, match=r"manifest\.json: asset"):
        Bundle.load(saved)


def test_weights_of_another_file_are_not_read(saved):
    """With right hashes: whoever writes a bundle can have them."""
    (saved / "other.bin").write_bytes(b"s" * 4096)
    proto = onnx.load(saved / "main.onnx", load_external_data=False)
    outside = [t for t in proto.graph.initializer if t.external_data]
    assert outside
    for entry in outside[0].external_data:
        if entry.key == "location":
            entry.value = "other.bin"
    data = proto.SerializeToString()
    (saved / "main.onnx").chmod(0o644)
    (saved / "main.onnx").write_bytes(data)

    def sign(document):
        text = json.dumps(document)
        before = next(file for file in _files(document) if file.get("path") == "main.onnx")
        before["bytes"], before["sha256"] = len(data), hashlib.sha256(data).hexdigest()
        assert json.dumps(document) != text

    rewrite(saved, sign)
    with pytest.raises(BundleError, match=r"is in \{'other\.bin'\}, which is not of the bundle"):
        Bundle.load(saved).methods["main"].graph  # noqa: B018  # read when asked for


def _files(node):
    if isinstance(node, dict):
        if "sha256" in node and "path" in node:
            yield node
        for value in node.values():
            yield from _files(value)
    elif isinstance(node, list):
        for value in node:
            yield from _files(value)


def test_a_value_may_have_no_shape():
    assert value_info(ir.Value(name="v")).shape is None


def test_what_was_set_aside_and_is_no_bundle_is_left_there(tmp_path, monkeypatch):
    aside = tmp_path / "aside"
    aside.mkdir()
    monkeypatch.setattr(publish, "list_siblings", lambda *_: [aside])
    assert not publish.repair(tmp_path / "b.narrow")
    assert aside.is_dir()
