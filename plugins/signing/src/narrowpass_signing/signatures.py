"""Bundles signed and verified with a pair of keys."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import sys
import tempfile
from pathlib import Path

from narrowpass.errors import BundleError, UsageError
from narrowpass_ir.arguments import path_of
from narrowpass_ir.files import replacing_file

SIGNATURE = "model.sig"
"""The file of the signature in the bundle's folder, as model-signing calls it."""

_HASHES = re.compile(r"^Hash mismatch for '(.*)': Expected .*$", re.DOTALL)

_LARGEST = 16 << 20
"""Bytes of a signature file at most; a file of the bundle takes some 200 of them."""

_PathLike = str | os.PathLike[str]


def sign(
    bundle: _PathLike,
    private_key: _PathLike,
    *,
    signature: _PathLike | None = None,
    password: bytes | None = None,
) -> Path:
    """Sign all files of a bundle, without a network.

    Args:
        bundle: a bundle's folder.
        private_key: a PEM file, of the curve P-256, P-384 or P-521.
        signature: the file to write, in one step; None for `SIGNATURE` in the bundle.
        password: of the private key, where it is encrypted.

    Returns:
        The path of the signature.

    Raises:
        UsageError: there is no bundle at `bundle`, or no such key at `private_key`.
        BundleError: the bundle is damaged, or holds something else than files and folders.
        OutputError: the signature cannot be written.
    """
    from narrowpass.bundle import is_bundle, verify

    shown, folder = _folder(bundle)
    if not is_bundle(folder):
        raise UsageError(f"{shown}: is not a bundle; `narrowpass build` writes one")
    for problem in verify(folder):
        raise BundleError(f"{problem}; it is not signed")

    from narrowpass_signing.folders import EveryFile, check_files
    from narrowpass_signing.keys import check_private_key

    key, target = Path(private_key), _signature(bundle, signature)
    check_private_key(key, password)
    check_files(folder, shown)
    from model_signing.signing import Config

    # The library says that a password is a str, and hands it on to where it must be bytes.
    config = Config().use_elliptic_key_signer(private_key=key, password=password)
    config.set_hashing_config(EveryFile(folder, target.resolve()))
    with tempfile.TemporaryDirectory() as name:
        written = Path(name, SIGNATURE)
        try:
            config.sign(folder, written)
        except (OSError, ValueError) as error:  # changed while it is read
            raise BundleError(f"{shown}: cannot be signed: {error}") from error
        data = written.read_bytes()
    with replacing_file(target) as file:
        file.write(data)
    return target


def verify_signature(
    bundle: _PathLike, public_key: _PathLike, *, signature: _PathLike | None = None
) -> None:
    """Check that every file of a bundle is as the owner of a key signed it, without a network.

    A folder that somebody else writes to at the same time may differ afterwards: verify a copy.

    Args:
        bundle: a bundle's folder.
        public_key: a PEM file, the counterpart of the private key.
        signature: the file of the signature; None for `SIGNATURE` in the bundle.

    Raises:
        UsageError: there is no folder at `bundle`, or no such key at `public_key`.
        BundleError: there is no signature; it is malformed or of another key; a file was changed,
            added or removed, or is not covered by the signature.
    """
    shown, folder = _folder(bundle)

    from narrowpass_signing.folders import EveryFile, check_files
    from narrowpass_signing.keys import check_public_key

    key, file = Path(public_key), _signature(bundle, signature)
    check_public_key(key)
    check_files(folder, shown)
    _check_size(file, shown)
    from model_signing.verifying import Config

    config = Config().use_elliptic_key_verifier(public_key=key)
    config.set_hashing_config(EveryFile(folder, file.resolve()))
    try:
        with contextlib.redirect_stdout(sys.stderr):  # the library prints warnings
            config.verify(folder, file)
    except MemoryError:
        raise
    # The library does not check the types of what it parses: any error is a refusal.
    except Exception as error:
        raise BundleError(f"{shown}: {_refusal(error, file, key)}") from error


def _folder(bundle: _PathLike) -> tuple[str, Path]:
    """Return what messages call a bundle, and its real path."""
    shown = path_of(bundle, "`bundle`")
    folder = Path(os.path.realpath(bundle))
    if not folder.is_dir():
        raise UsageError(f"{shown}: no such bundle; pass the path of a .narrow folder")
    return shown, folder


def _signature(bundle: _PathLike, signature: _PathLike | None) -> Path:
    return Path(bundle, SIGNATURE) if signature is None else Path(signature)


def _check_size(file: Path, shown: str) -> None:
    try:
        size = file.stat().st_size if file.is_file() else None
    except OSError as error:
        raise BundleError(f"{shown}: {file} cannot be read: {error.strerror}") from error
    if size is None:
        raise BundleError(f"{shown}: has no signature: there is no file {file}")
    if size > _LARGEST:
        raise BundleError(f"{shown}: {file} has {size} bytes, more than any signature of a bundle")


def _refusal(error: Exception, file: Path, key: Path) -> str:
    """Return why a signature is refused, from what the library raised."""
    from cryptography.exceptions import InvalidSignature

    if isinstance(error, InvalidSignature):
        return f"{file} was not written by the owner of {key}, or was changed since"
    if isinstance(error, OSError):
        return f"cannot be verified: {error}"
    # The library's own sentences are ValueErrors; parsers that it calls raise subclasses.
    if type(error) is ValueError:
        found = _differences(str(error))
        return f"is not what the owner of {key} signed: {found}; get the bundle from them again"
    found = type(error).__name__
    return f"{file} is not a signature by model-signing ({found}); sign the bundle again"


def _differences(text: str) -> str:
    """Return the files that differ, of the library's sentence: it prints lists, and raw digests."""
    kind, _, listed = text.partition(": ")
    try:
        parts = ast.literal_eval(listed) if kind == "Signature mismatch" else None
    except (SyntaxError, ValueError):
        parts = None
    if not isinstance(parts, list):
        return text.rstrip(". ")
    return "; ".join(_HASHES.sub(r"\1 was changed", str(part)) for part in parts)
