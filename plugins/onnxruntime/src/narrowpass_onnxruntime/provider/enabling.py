"""A file in an environment of Python by which its programs find the provider."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from narrowpass.errors import UsageError

FILE = "narrowpass_onnxruntime_enabled.pth"
_LINE = "import narrowpass_onnxruntime_startup\n"
_ASK = (
    "import importlib.util, sysconfig; print(sysconfig.get_path('purelib'));"
    "print(importlib.util.find_spec('narrowpass_onnxruntime_startup') is not None)"
)
CURRENT = "current"


def enable(venv: str) -> Path:
    """Put the provider in front of others for all programs of an environment.

    Args:
        venv: the folder of a virtual environment; ``current`` for that of this process.

    Returns:
        The file that does it.

    Raises:
        UsageError: no environment is there, narrowpass-onnxruntime is not installed in it, or the
            file cannot be written.
    """
    folder, installed = _site(venv)
    if not installed:
        raise UsageError(
            f"narrowpass-onnxruntime is not installed in {venv}; "
            f"run `{_python(venv)} -m pip install narrowpass-onnxruntime` first"
        )
    file = folder / FILE
    try:
        file.write_text(_LINE, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}") from error
    return file


def disable(venv: str) -> Path | None:
    """Undo `enable`; return the file that was removed, None where there was none.

    Raises:
        UsageError: no environment is there, or the file cannot be removed.
    """
    file = _site(venv)[0] / FILE
    try:
        file.unlink()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{file} cannot be removed: {error.strerror}") from error
    return file


def _python(venv: str) -> Path:
    return Path(sys.executable) if venv == CURRENT else Path(venv) / "bin" / "python"


def _site(venv: str) -> tuple[Path, bool]:
    """Return the folder of an environment's packages, and whether the provider is installed."""
    python = _python(venv)
    if not python.exists():
        raise UsageError(f"{venv} is no virtual environment: there is no {python}")
    try:
        done = subprocess.run(
            [python, "-c", _ASK], check=True, capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(f"{python} does not run: {error}") from error
    folder, installed = done.stdout.splitlines()[-2:]
    return Path(folder), installed == "True"
