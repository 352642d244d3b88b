"""The manifest says the same in both directions, and reads nothing that it would not write."""

from __future__ import annotations

import json

import pytest

from narrowpass.bundle import (
    FileInfo,
    InitializerInfo,
    Manifest,
    MethodInfo,
    StateInfo,
    TensorInfo,
    ValueInfo,
    WeightsInfo,
)
from narrowpass.bundle.manifest import is_manifest
from narrowpass.errors import BundleError

SHA = "0123456789abcdef" * 4

MANIFEST = Manifest(
    pipeline='fold,fp16{red=["a b"]}',
    plugins={"narrowpass-fp16": "0.1.0", "äö": "1"},
    methods=(
        MethodInfo(
            "main",
            FileInfo("main.onnx", 10, SHA),
            None,
            (ValueInfo("x", "float", ("N", None, 3)), ValueInfo("s", "sequence(float)", None)),
            (ValueInfo("y", None, ()),),
            (InitializerInfo("y.then_branch/", "w", "w@main"),),
        ),
        MethodInfo("also", FileInfo("also.onnx", 0, SHA), "odd but usable", (), (), ()),
    ),
    weights=WeightsInfo("weights.safetensors", 4096, 64, SHA),
    tensors={"w@main": TensorInfo("bfloat16", (3, 4), 24, 64, SHA)},
    reports=(FileInfo("reports/00-fold.json", 3, SHA),),
    states=(StateInfo("past", "present", 2), StateInfo("h", "hn", None)),
    assets=(FileInfo("tokenizer.json", 2, SHA),),
)


def test_reading_returns_what_was_written():
    assert Manifest.from_json(MANIFEST.to_json().encode()) == MANIFEST


def test_bundles_of_earlier_versions_have_no_states():
    assert Manifest.from_json(change(["states"], None)).states == ()


def test_bundles_of_earlier_versions_have_no_assets():
    assert Manifest.from_json(change(["assets"], None)).assets == ()


def test_the_order_of_fields_and_keys_changes_no_byte():
    raw = json.loads(MANIFEST.to_json())
    turned = {key: raw[key] for key in reversed(raw)}
    turned["plugins"] = dict(reversed(raw["plugins"].items()))
    assert Manifest.from_json(json.dumps(turned).encode()).to_json() == MANIFEST.to_json()


def change(path, value):
    raw = json.loads(MANIFEST.to_json())
    *places, last = path
    inner = raw
    for place in places:
        inner = inner[place]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    return json.dumps(raw).encode()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["version"], 2, "version 2"),
        (["version"], "1", "version '1'"),
        (["version"], None, "version None"),
        (["format"], "other", "not the manifest"),
        (["format"], None, "not the manifest"),
        (["methods"], None, "lacks the field 'methods'"),
        (["methods"], {}, "manifest.methods is not"),
        (["methods"], [3], r"methods\[0\] is not"),
        (["methods", 0, "file", "sha256"], "xyz", r"methods\[0\].file.sha256 is not a SHA-256"),
        (["methods", 0, "file", "sha256"], SHA.upper(), "not a SHA-256"),
        (["methods", 0, "file", "bytes"], -1, r"methods\[0\].file.bytes"),
        (["methods", 0, "file", "bytes"], 1.5, r"methods\[0\].file.bytes"),
        (["methods", 0, "file", "bytes"], True, r"methods\[0\].file.bytes"),
        (["methods", 0, "inputs", 0, "shape"], ["N", 1.5], r"shape\[1\]"),
        (["methods", 0, "inputs", 0, "shape"], "N", r"shape is not"),
        (["methods", 0, "inputs", 0, "more"], 1, "unknown field 'more'"),
        (["methods", 0, "initializers", 0, "key"], 5, r"initializers\[0\].key"),
        (["tensors"], [], "tensors is not"),
        (["tensors", "w@main"], [], r"tensors\['w@main'\] is not"),
        (["tensors", "w@main", "shape"], [3, "N"], r"shape\[1\]"),
        (["tensors", "w@main", "offset"], "64", "offset is not"),
        (["weights", "header_sha256"], None, "lacks the field 'header_sha256'"),
        (["weights", "header_sha256"], "", "not a SHA-256"),
        (["plugins"], {"a": 1}, r"plugins\['a'\]"),
        (["pipeline"], 7, "pipeline is not"),
        (["timestamp"], "now", "unknown field 'timestamp'"),
    ],
)
def test_odd_fields_are_named(path, value, message):
    with pytest.raises(BundleError, match=message):
        Manifest.from_json(change(path, value))


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"\xff\xfe", b"null", b"[" * 100_000, b'{"format": 3}']
)
def test_anything_else_is_not_ours(data):
    assert not is_manifest(data)
    with pytest.raises(BundleError, match="not the manifest"):
        Manifest.from_json(data)


def test_a_manifest_of_another_version_is_still_ours():
    assert is_manifest(change(["version"], 99))
