"""The two commands: what they print, and their exit codes."""

from __future__ import annotations

import subprocess
import sys

import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption

from narrowpass_signing import SIGNATURE


def test_sign_and_verify(narrowpass_cli, bundle, pair):
    private, public = pair()
    done = narrowpass_cli("sign", bundle, "--private-key", private)
    assert (done.exit_code, done.stdout) == (0, f"wrote {bundle / SIGNATURE}\n"), done.stderr
    arguments = ("verify-signature", bundle, "--public-key", public)
    done = narrowpass_cli(*arguments)
    assert (done.exit_code, done.stdout, done.stderr) == (
        0,
        f"{bundle}: is what the owner of {public} signed\n",
        "",
    )
    (bundle / "tokenizer.json").write_bytes(b"[]")
    done = narrowpass_cli(*arguments)
    assert (done.exit_code, done.stdout) == (1, "")
    assert f"error: {bundle}: is not what the owner of {public} signed: " in done.stderr
    assert "tokenizer.json" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("content", "code"),
    [(b"open sesame\n", 0), (b"open sesame\r\nand more\n", 0), (b"open barley\n", 2), (b"\n", 2)],
)
def test_password_file(narrowpass_cli, bundle, pair, tmp_path, content, code):
    private, public = pair(encryption=BestAvailableEncryption(b"open sesame"))
    (tmp_path / "password").write_bytes(content)
    arguments = ("--private-key", private, "--password-file", tmp_path / "password")
    done = narrowpass_cli("sign", bundle, *arguments)
    assert done.exit_code == code, done.stderr
    if code == 0:
        assert narrowpass_cli("verify-signature", bundle, "--public-key", public).exit_code == 0


def test_calls_at_fault(narrowpass_cli, bundle, pair, tmp_path):
    private, public = pair()
    missing = tmp_path / "missing"
    for arguments in (
        ("sign", bundle),
        ("sign", bundle, "--private-key", missing),
        ("sign", bundle, "--private-key", private, "--password-file", missing),
        ("sign", missing, "--private-key", private),
        ("verify-signature", bundle),
        ("verify-signature", missing, "--public-key", public),
    ):
        done = narrowpass_cli(*arguments)
        assert (done.exit_code, done.stdout) == (2, ""), arguments
    done = narrowpass_cli("verify-signature", bundle, "--public-key", public)
    assert done.exit_code == 1
    assert "has no signature" in done.stderr


def test_the_library_is_imported_for_these_commands_only():
    code = (
        "import sys, narrowpass_signing\n"
        "narrowpass_signing.narrowpass_commands()\n"
        "assert not {'model_signing', 'cryptography', 'numpy', 'onnx'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
