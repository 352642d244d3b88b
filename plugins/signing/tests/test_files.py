"""Which files a signature covers: all of them."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from model_signing import hashing, signing

from narrowpass.bundle import Bundle
from narrowpass.errors import BundleError
from narrowpass_signing import SIGNATURE, sign, verify_signature

FILES = (
    ".gitignore",
    "main.onnx",
    "manifest.json",
    "notes/card.md",
    "tokenizer.json",
    "weights.safetensors",
)
"""What the bundle of the tests has."""


def envelope(path):
    """Return the payload of a signature, and the bytes that sign it."""
    document = json.loads(path.read_text())["dsseEnvelope"]
    (only,) = document["signatures"]
    return base64.b64decode(document["payload"]), base64.b64decode(only["sig"])


def test_statement_has_the_hash_of_every_file(signed):
    bundle, public = signed
    payload, signature = envelope(bundle / SIGNATURE)
    # What DSSE signs: the type and the payload, each behind its length.
    kind = b"application/vnd.in-toto+json"
    message = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
    key = serialization.load_pem_public_key(public.read_bytes())
    key.verify(signature, message, ec.ECDSA(hashes.SHA256()))
    resources = json.loads(payload)["predicate"]["resources"]
    assert {item["name"]: item["digest"] for item in resources} == {
        name: hashlib.sha256((bundle / name).read_bytes()).hexdigest() for name in FILES
    }
    assert all(item["algorithm"] == "sha256" for item in resources)
    verify_signature(bundle, public)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("place", ["first", "last"])
def test_a_changed_byte(signed, name, place):
    bundle, public = signed
    data = bytearray((bundle / name).read_bytes())
    data[0 if place == "first" else -1] ^= 1
    (bundle / name).write_bytes(data)
    with pytest.raises(BundleError, match=f"the owner of .* signed: {name} was changed; get"):
        verify_signature(bundle, public)


@pytest.mark.parametrize("name", FILES)
def test_a_removed_file(signed, name):
    bundle, public = signed
    (bundle / name).unlink()
    with pytest.raises(BundleError, match=f"Missing files .*{name}"):
        verify_signature(bundle, public)


@pytest.mark.parametrize("name", ["more", ".git/config", ".gitattributes", "notes/model.sig"])
def test_an_added_file(signed, name):
    """Those of git, too, which the library leaves out by default."""
    bundle, public = signed
    (bundle / name).parent.mkdir(exist_ok=True)
    (bundle / name).write_bytes(b"")
    with pytest.raises(BundleError, match=f"Extra files .*{name}"):
        verify_signature(bundle, public)


def test_a_renamed_file(signed):
    bundle, public = signed
    (bundle / "tokenizer.json").rename(bundle / "tokens.json")
    with pytest.raises(BundleError, match=r"Extra files .*tokens\.json.*Missing .*tokenizer\.json"):
        verify_signature(bundle, public)


def test_a_signature_that_leaves_files_out(bundle, pair):
    """Its owner chose so; who verifies must still not take the file for a signed one."""
    private, public = pair()
    config = signing.Config().use_elliptic_key_signer(private_key=private)
    config.set_hashing_config(
        hashing.Config().set_ignored_paths(paths=["notes", SIGNATURE], ignore_git_paths=False)
    )
    config.sign(bundle, bundle / SIGNATURE)
    with pytest.raises(BundleError, match=r"Extra files .*notes/card\.md"):
        verify_signature(bundle, public)
    (bundle / "notes" / "card.md").unlink()
    verify_signature(bundle, public)


@pytest.mark.parametrize("target", ["tokenizer.json", "/etc/hostname", "nowhere", "."])
def test_symbolic_links(signed, pair, target):
    bundle, public = signed
    (bundle / "link").symlink_to(target)
    with pytest.raises(BundleError, match="link is a symbolic link"):
        verify_signature(bundle, public)
    private, _ = pair("again")
    with pytest.raises(BundleError, match="link is a symbolic link"):
        sign(bundle, private)


def test_a_file_replaced_by_a_link_to_the_same_bytes(signed, tmp_path):
    bundle, public = signed
    (bundle / "tokenizer.json").rename(tmp_path / "outside")
    (bundle / "tokenizer.json").symlink_to(tmp_path / "outside")
    with pytest.raises(BundleError, match=r"tokenizer\.json is a symbolic link"):
        verify_signature(bundle, public)


def test_a_pipe_is_not_waited_for(signed):
    bundle, public = signed
    os.mkfifo(bundle / "pipe")
    with pytest.raises(BundleError, match="pipe is not a regular file"):
        verify_signature(bundle, public)


def test_the_folder_may_be_renamed_and_linked_to(signed, tmp_path):
    bundle, public = signed
    bundle.rename(tmp_path / "other.narrow")
    (tmp_path / "current").symlink_to("other.narrow")
    verify_signature(tmp_path / "current", public)


def test_signing_again_replaces_the_signature(signed, pair):
    bundle, public = signed
    (bundle / "notes" / "card.md").write_text("changed")
    private, again = pair("again")
    sign(bundle, private)
    verify_signature(bundle, again)
    with pytest.raises(BundleError):
        verify_signature(bundle, public)
    assert sorted(file.name for file in bundle.iterdir() if "sig" in file.name) == [SIGNATURE]


def test_a_signature_beside_the_bundle(bundle, pair, tmp_path):
    private, public = pair()
    before = sorted(bundle.rglob("*"))
    sign(bundle, private, signature=tmp_path / "beside.sig")
    assert sorted(bundle.rglob("*")) == before
    verify_signature(bundle, public, signature=tmp_path / "beside.sig")
    with pytest.raises(BundleError, match="has no signature"):
        verify_signature(bundle, public)
    # Beside the bundle it may cover one that is inside.
    sign(bundle, private)
    sign(bundle, private, signature=tmp_path / "beside.sig")
    verify_signature(bundle, public, signature=tmp_path / "beside.sig")
    (bundle / SIGNATURE).write_bytes(b"")
    with pytest.raises(BundleError, match=r"signed: .*model.sig"):
        verify_signature(bundle, public, signature=tmp_path / "beside.sig")


def test_a_build_removes_the_signature(signed):
    bundle, public = signed
    Bundle.load(bundle).save(bundle)
    with pytest.raises(BundleError, match="has no signature"):
        verify_signature(bundle, public)


def test_a_signed_bundle_loads_as_before(signed):
    bundle, _ = signed
    assert list(Bundle.load(bundle).methods) == ["main"]


def test_a_damaged_bundle_is_not_signed(bundle, pair):
    private, _ = pair()
    weights = bundle / "weights.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(BundleError, match=r"'w' was changed after .*; it is not signed"):
        sign(bundle, private)
    assert not (bundle / SIGNATURE).exists()


def call_library(*arguments):
    """Run the command line of model-signing, which is not ours."""
    command = [sys.executable, "-m", "model_signing", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_library_verifies_what_is_signed_here(signed):
    bundle, public = signed
    arguments = ("verify", "key", bundle, "--signature", bundle / SIGNATURE, "--public_key", public)
    strict = ("--no-ignore-git-paths",)
    assert call_library(*arguments, *strict).returncode == 0
    (bundle / "notes" / "card.md").write_text("changed")
    assert call_library(*arguments, *strict).returncode == 1


def test_what_the_library_signs_is_verified_here(bundle, pair):
    private, public = pair()
    (bundle / ".gitignore").unlink()  # it would leave that out
    target: Path = bundle / SIGNATURE
    done = call_library("sign", "key", bundle, "--signature", target, "--private_key", private)
    assert done.returncode == 0, done.stderr
    verify_signature(bundle, public)
    (bundle / ".gitignore").write_text("")
    with pytest.raises(BundleError, match=r"Extra files .*\.gitignore"):
        verify_signature(bundle, public)
