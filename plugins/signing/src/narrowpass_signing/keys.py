"""Key files, checked before model-signing reads them: it assumes that they are of its curves."""

from __future__ import annotations

from pathlib import Path

from narrowpass.errors import UsageError

CURVES = {"secp256r1": "P-256", "secp384r1": "P-384", "secp521r1": "P-521"}
"""Curves that model-signing signs with, by their names in X.509, with those of NIST."""

_CREATE = "create one: openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out key.pem"


def check_private_key(path: Path, password: bytes | None) -> None:
    """Check that a file holds a private key that can sign.

    Raises:
        UsageError: it cannot be read or decrypted, or is no private key of one of `CURVES`.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(_read(path), password)
    except TypeError as error:  # a password that is missing, or one too many
        advice = "pass no password" if password is not None else "pass its password"
        raise UsageError(f"{path}: {error}; {advice}") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UsageError(f"{path}: no private key in PEM form: {error}; {_CREATE}") from error
    if not isinstance(key, EllipticCurvePrivateKey) or key.curve.name not in CURVES:
        raise UsageError(f"{path}: a key that signs is of {_curves()}; {_CREATE}")


def check_public_key(path: Path) -> None:
    """Check that a file holds a public key that can verify.

    Raises:
        UsageError: it cannot be read, or is no public key of one of `CURVES`.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    advice = "`openssl pkey -in key.pem -pubout -out key.pub` writes that of a private key"
    try:
        key = load_pem_public_key(_read(path))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UsageError(f"{path}: no public key in PEM form: {error}; {advice}") from error
    if not isinstance(key, EllipticCurvePublicKey) or key.curve.name not in CURVES:
        raise UsageError(f"{path}: a key that verifies is of {_curves()}; {advice}")


def _curves() -> str:
    *most, last = CURVES.values()
    return f"the curve {', '.join(most)} or {last}"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: the key cannot be read: {error.strerror}") from error
