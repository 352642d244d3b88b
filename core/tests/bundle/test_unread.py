"""Bundles whose models are built when somebody reads them."""

from __future__ import annotations

import hashlib
import json

import onnx
import onnx_ir as ir
import pytest
from onnx import parser

import narrowpass
from narrowpass import Bundle
from narrowpass.errors import BundleError, VerificationError
from narrowpass.runtime.backend import verify_structure
from narrowpass_ir.verify import fingerprint

TEXT = """<ir_version: 9, opset_import: ["" : 18]>
g (float[N, 2] x, float[N, P] past) => (float[N, 2] y, float[N, Q] present)
{ y = NAME(x) present = Concat <axis = 1> (past, x) }"""


@pytest.fixture
def path(tmp_path):
    models = {
        name: ir.from_proto(parser.parse_model(TEXT.replace("NAME", operator)))
        for name, operator in (("one", "Relu"), ("two", "Neg"))
    }
    Bundle(models, states=[narrowpass.State("past", "present", 1)]).save(tmp_path / "b.narrow")
    return tmp_path / "b.narrow"


def test_models_are_built_once_when_they_are_read(path):
    verified = []
    bundle = Bundle.load_unread(path, lambda model, what: verified.append(what))
    assert bundle.unread
    assert list(bundle.methods) == ["one", "two"]
    assert len(bundle.methods) == 2
    assert bundle.states == (narrowpass.State("past", "present", 1),)
    assert verified == []
    model = bundle.methods["two"]
    assert bundle.methods["two"] is model
    assert verified == ["method 'two'"]
    assert fingerprint(model) == fingerprint(Bundle.load(path).methods["two"])
    with pytest.raises(KeyError):
        bundle.methods["three"]


def test_what_is_loaded_as_ever_is_read(path):
    assert not Bundle.load(path).unread
    assert not Bundle({"main": Bundle.load(path).methods["one"]}).unread


def test_a_model_is_verified_before_it_is_used(path):
    """Its hash is that of the manifest, and its structure is not valid."""
    file = path / "one.onnx"
    model = onnx.load(file)
    model.graph.node[0].input[0] = "nothing"
    onnx.save(model, file)
    sign(path)
    unread = Bundle.load_unread(path, verify_structure)
    assert unread.methods["two"]
    with pytest.raises(VerificationError, match="method 'one'"):
        unread.methods["one"]


def sign(path):
    """Write to the manifest the hash that the file of a method has now."""
    manifest = json.loads((path / "manifest.json").read_bytes())
    for method in manifest["methods"]:
        data = (path / method["file"]["path"]).read_bytes()
        method["file"] |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (path / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input": "nothing"}, "no method has an input 'nothing'"),
        ({"output": "nothing"}, "no method has an output 'nothing'"),
        ({"axis": 2}, "the input has 2 axes"),
    ],
)
def test_states_are_checked_without_the_models(path, change, message):
    manifest = json.loads((path / "manifest.json").read_bytes())
    manifest["states"][0] |= change
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match=message):
        Bundle.load_unread(path, verify_structure)
    with pytest.raises(BundleError, match=message):
        Bundle.load(path)


def test_a_file_that_is_not_the_manifests_is_refused_at_once(path):
    (path / "two.onnx").write_bytes(b"nothing")
    with pytest.raises(BundleError, match=r"two\.onnx was changed"):
        Bundle.load_unread(path, verify_structure)
