"""A bundle with every kind of file, keys, and no network."""

from __future__ import annotations

import socket

import pytest

pytest.importorskip("model_signing")

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from narrowpass.bundle import Bundle
from narrowpass_signing import sign
from narrowpass_testing import model_from_text
from narrowpass_testing.fixtures import narrowpass_cli

__all__ = ["narrowpass_cli"]

MODEL = """g (float[N, 64] x) => (float[N, 64] y) <float[64, 64] w = {%s}> { y = MatMul(x, w) }"""


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    """Whatever connects fails: keys need no service."""

    def refuse(*_):
        raise AssertionError("something connects")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture
def bundle(tmp_path):
    """Return the path of a bundle with a tokenizer, a file of the user and a hidden one."""
    model = model_from_text(MODEL % ", ".join(str(n % 7) for n in range(64 * 64)))
    path = tmp_path / "model.narrow"
    Bundle({"main": model}, assets={"tokenizer.json": b"{}"}).save(path)
    (path / "notes").mkdir()
    (path / "notes" / "card.md").write_text("by hand")
    (path / ".gitignore").write_text("*.tmp")
    return path


@pytest.fixture
def pair(tmp_path):
    """Return a function that writes a pair of keys and returns the two paths."""

    def write(name="key", curve=ec.SECP256R1, encryption=None):
        key = ec.generate_private_key(curve())
        private, public = tmp_path / f"{name}.pem", tmp_path / f"{name}.pub"
        private.write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption or NoEncryption())
        )
        public.write_bytes(
            key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        )
        return private, public

    return write


@pytest.fixture
def signed(bundle, pair):
    """Return a bundle that is signed, and the public key."""
    private, public = pair()
    sign(bundle, private)
    return bundle, public
