"""``narrowpass sign`` and ``narrowpass verify-signature``."""

from __future__ import annotations

from pathlib import Path

import click

from narrowpass.errors import UsageError

_signature_option = click.option(
    "--signature",
    metavar="FILE",
    help="The file of the signature.  [default: model.sig in the bundle]",
)


@click.command()
@click.argument("bundle")
@click.option(
    "--private-key", metavar="FILE", required=True, help="PEM, of the curve P-256, P-384 or P-521."
)
@click.option(
    "--password-file",
    metavar="FILE",
    help="Its first line decrypts the key, where it is encrypted.",
)
@_signature_option
def sign(bundle: str, private_key: str, password_file: str | None, signature: str | None) -> None:
    """Sign all files of a bundle with a private key.

    The signature covers the name and the SHA-256 of every file in the bundle's folder, those that
    narrowpass does not read among them. A bundle that is damaged or has symbolic links is not
    signed. Building the bundle again removes a signature in it.

    The format is that of model-signing: `model_signing verify key` reads it, too.
    """
    from narrowpass_signing import signatures

    password = None if password_file is None else _first_line(password_file)
    file = signatures.sign(bundle, private_key, signature=signature, password=password)
    click.echo(f"wrote {file}")


@click.command("verify-signature")
@click.argument("bundle")
@click.option("--public-key", metavar="FILE", required=True, help="PEM; whom you trust.")
@_signature_option
def verify_signature(bundle: str, public_key: str, signature: str | None) -> None:
    """Check that a bundle is what the owner of a key signed.

    Fails where a file was changed, added or removed since, where it is a symbolic link, where
    another key signed it, or where there is no signature. Reads every file once, and runs nothing.

    The signature says who signed the bundle, not that its results are right.
    """
    from narrowpass_signing import signatures

    signatures.verify_signature(bundle, public_key, signature=signature)
    click.echo(f"{bundle}: is what the owner of {public_key} signed")


def _first_line(path: str) -> bytes:
    try:
        lines = Path(path).read_bytes().splitlines()
    except (OSError, ValueError) as error:
        raise UsageError(f"--password-file {path}: cannot be read: {error}") from error
    if not lines or not lines[0]:
        raise UsageError(
            f"--password-file {path}: its first line is empty; write the password there"
        )
    return lines[0]
