"""Signatures and keys that are refused."""

from __future__ import annotations

import base64
import json

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from narrowpass.errors import BundleError, UsageError
from narrowpass_signing import SIGNATURE, sign, verify_signature


def edited(change):
    """Return a function that changes the JSON document of a signature."""

    def apply(data):
        document = json.loads(data)
        change(document)
        return json.dumps(document).encode()

    return apply


def payload(change):
    """Return a function that changes what is signed, and leaves the bytes that sign it."""

    def apply(document):
        statement = json.loads(base64.b64decode(document["dsseEnvelope"]["payload"]))
        change(statement)
        text = json.dumps(statement).encode()
        document["dsseEnvelope"]["payload"] = base64.b64encode(text).decode()

    return edited(apply)


def without_hint(document):
    """Leave out which key it is: then only the signature itself can say."""
    del document["verificationMaterial"]["publicKey"]["hint"]


def flipped(document):
    """Change a bit of the bytes that sign."""
    (only,) = document["dsseEnvelope"]["signatures"]
    raw = bytearray(base64.b64decode(only["sig"]))
    raw[-1] ^= 1
    only["sig"] = base64.b64encode(raw).decode()


MALFORMED = {
    "empty": lambda _: b"",
    "not JSON": lambda _: b"signed, honestly",
    "not UTF-8": lambda data: b"\xff" + data,
    "cut": lambda data: data[: len(data) // 2],
    "nested": lambda _: b"[" * 200_000,
    "a list": lambda _: b"[]",
    "null": lambda _: b"null",
    "an empty object": lambda _: b"{}",
    "no material": edited(lambda document: document.update(verificationMaterial={})),
    "material of a certificate": edited(
        lambda document: document.update(
            verificationMaterial={"certificate": {"rawBytes": "AAAA"}, "tlogEntries": []}
        )
    ),
    "no envelope": edited(lambda document: document.pop("dsseEnvelope")),
    "no signatures": edited(lambda document: document["dsseEnvelope"].update(signatures=[])),
    "another format": edited(lambda document: document.update(mediaType="text/plain")),
}

FORGED = {
    "a bit of the signature": edited(flipped),
    "no hint and another bit": lambda data: edited(flipped)(edited(without_hint)(data)),
    "no payload": edited(lambda document: document["dsseEnvelope"].update(payload="")),
    "another digest": payload(
        lambda statement: statement["predicate"]["resources"][0].update(digest="00" * 32)
    ),
    "a file less": payload(lambda statement: statement["predicate"]["resources"].pop()),
    "an ignored path": payload(
        lambda statement: statement["predicate"]["serialization"].update(ignore_paths=["."])
    ),
    "the type of the first versions": payload(
        lambda statement: statement.update(predicateType="https://model_signing/Digests/v0.1")
    ),
}


NO_SIGNATURE = r"is not a signature by model-signing .*sign the bundle"
NOT_THE_OWNERS = r"was not written by the owner of .*, or was changed"
REFUSED = {
    **{name: (change, NO_SIGNATURE) for name, change in MALFORMED.items()},
    **{name: (change, NOT_THE_OWNERS) for name, change in FORGED.items()},
}


@pytest.mark.parametrize(("change", "said"), REFUSED.values(), ids=REFUSED)
def test_malformed_and_forged(signed, change, said):
    bundle, public = signed
    file = bundle / SIGNATURE
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(BundleError, match=said):
        verify_signature(bundle, public)


def test_every_byte_counts(signed):
    """No bit of the signature's text may be changed so that other files pass."""
    bundle, public = signed
    file = bundle / SIGNATURE
    data = file.read_bytes()
    (bundle / "tokenizer.json").write_bytes(b"[]")
    for place in range(0, len(data), max(1, len(data) // 200)):
        changed = bytearray(data)
        changed[place] ^= 1
        file.write_bytes(changed)
        with pytest.raises(BundleError):
            verify_signature(bundle, public)


def test_another_key(signed, pair):
    bundle, _ = signed
    _, other = pair("other")
    with pytest.raises(BundleError, match=r"Key mismatch"):
        verify_signature(bundle, other)
    file = bundle / SIGNATURE
    file.write_bytes(edited(without_hint)(file.read_bytes()))
    with pytest.raises(BundleError, match="was not written by the owner of"):
        verify_signature(bundle, other)


def test_no_signature(bundle, pair):
    _, public = pair()
    with pytest.raises(BundleError, match="has no signature: there is no file"):
        verify_signature(bundle, public)
    (bundle / SIGNATURE).mkdir()
    with pytest.raises(BundleError, match="has no signature: there is no file"):
        verify_signature(bundle, public)


def test_a_signature_that_would_fill_the_memory(signed):
    bundle, public = signed
    with (bundle / SIGNATURE).open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(BundleError, match="1099511627776 bytes, more than any signature"):
        verify_signature(bundle, public)


@pytest.mark.parametrize("curve", [ec.SECP256R1, ec.SECP384R1, ec.SECP521R1])
def test_curves(bundle, pair, curve):
    private, public = pair(curve=curve)
    sign(bundle, private)
    verify_signature(bundle, public)


@pytest.mark.parametrize(
    "key",
    [
        rsa.generate_private_key(65537, 2048),
        ed25519.Ed25519PrivateKey.generate(),
        ec.generate_private_key(ec.SECP256K1()),
    ],
    ids=["RSA", "Ed25519", "secp256k1"],
)
def test_other_kinds_of_keys(signed, tmp_path, key):
    bundle, _ = signed
    private, public = tmp_path / "other.pem", tmp_path / "other.pub"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    with pytest.raises(UsageError, match="the curve P-256, P-384 or P-521"):
        sign(bundle, private)
    with pytest.raises(UsageError, match="the curve P-256, P-384 or P-521"):
        verify_signature(bundle, public)


def test_files_that_are_no_keys(signed, pair, tmp_path):
    bundle, public = signed
    private, _ = pair("again")
    text = tmp_path / "text"
    text.write_text("secret")
    for path in (public, text):
        with pytest.raises(UsageError, match=r"no private key in PEM form.*openssl"):
            sign(bundle, path)
    for path in (private, text):
        with pytest.raises(UsageError, match=r"no public key in PEM form.*openssl"):
            verify_signature(bundle, path)
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(UsageError, match="the key cannot be read"):
            sign(bundle, path)
        with pytest.raises(UsageError, match="the key cannot be read"):
            verify_signature(bundle, path)


def test_passwords(bundle, pair):
    private, public = pair(encryption=BestAvailableEncryption(b"open sesame"))
    with pytest.raises(UsageError, match="pass its password"):
        sign(bundle, private)
    with pytest.raises(UsageError, match=r"[Pp]assword"):
        sign(bundle, private, password=b"open barley")
    sign(bundle, private, password=b"open sesame")
    verify_signature(bundle, public)
    plain, _ = pair("plain")
    with pytest.raises(UsageError, match="pass no password"):
        sign(bundle, plain, password=b"open sesame")


def test_what_is_no_bundle(tmp_path, pair):
    private, public = pair()
    with pytest.raises(UsageError, match="is not a bundle"):
        sign(tmp_path, private)
    for call, key in ((sign, private), (verify_signature, public)):
        with pytest.raises(UsageError, match="no such bundle"):
            call(tmp_path / "missing", key)
        with pytest.raises(UsageError, match="no such bundle"):
            call(private, key)


def test_a_signature_that_cannot_be_written(bundle, pair, tmp_path):
    private, _ = pair()
    with pytest.raises(UsageError, match="does not exist"):
        sign(bundle, private, signature=tmp_path / "missing" / "model.sig")
    with pytest.raises(UsageError, match="is a folder"):
        sign(bundle, private, signature=tmp_path)
