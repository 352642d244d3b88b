"""Install narrowpass and its plugins from this checkout: ``python3 install.py``.

It makes a virtual environment in ``.venv``, or in the folder that ``--into`` names, and installs
the distributions of the workspace into it with uv; the native backend is compiled for this
processor. ``--dev`` installs them editable, with what tests and checks need. What is missing is
said in one sentence, and an environment that could not be finished is removed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent


class MissingError(Exception):
    """Something that the installation needs is not there; the message says what to do."""


def check_requirements() -> None:
    """Check this Python and the C compiler.

    Raises:
        MissingError: one of them is not enough.
    """
    if sys.version_info < (3, 11):
        version = ".".join(map(str, sys.version_info[:2]))
        raise MissingError(
            f"narrowpass needs Python 3.11 or later, and this is {version}: start it with a "
            "newer one"
        )
    if importlib.util.find_spec("ensurepip") is None:
        raise MissingError("this Python has no ensurepip (Debian: apt-get install python3-venv)")
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(compiler) is None:
        raise MissingError(
            f"there is no C compiler {compiler!r}, which builds the native backend: install one "
            "(Debian: apt-get install build-essential), or name yours in CC"
        )
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        raise MissingError("Python.h is missing (Debian: apt-get install python3-dev)")


def run(otherwise: str, command: Sequence[str | Path]) -> None:
    """Run a command from the checkout; what it prints is seen.

    Raises:
        MissingError: it failed; the message is `otherwise`.
    """
    if subprocess.run(command, check=False, cwd=ROOT).returncode:
        raise MissingError(otherwise)


def install(place: Path, *, dev: bool) -> None:
    """Make the environment `place`, and install the distributions into it.

    Raises:
        MissingError: a step failed.
    """
    python, uv = place / "bin" / "python", place / "bin" / "uv"
    run(
        f"no environment can be made in {place}: name another folder with --into",
        [sys.executable, "-m", "venv", place],
    )
    run(
        "uv cannot be installed: is there a network, or an index in PIP_INDEX_URL?",
        [python, "-m", "pip", "install", "--disable-pip-version-check", "uv"],
    )
    wanted = ["--requirements", "pyproject.toml"]
    if dev:
        folders = sorted(file.parent for file in ROOT.glob("*/pyproject.toml"))
        folders += sorted(file.parent for file in ROOT.glob("plugins/*/pyproject.toml"))
        wanted = [word for folder in folders for word in ("--editable", str(folder))]
        wanted += ["--group", "dev"]
    run(
        "the distributions cannot be installed: the lines above say why",
        [uv, "pip", "install", "--python", python, *wanted],
    )


def main() -> None:
    """Install, or exit with what is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--into", type=Path, default=ROOT / ".venv", help="default: .venv")
    parser.add_argument("--dev", action="store_true", help="editable, and with the tools of tests")
    options = parser.parse_args()
    place = options.into.absolute()
    was_there = place.exists()
    finished = False
    try:
        check_requirements()
        install(place, dev=options.dev)
        finished = True
    except MissingError as missing:
        sys.exit(f"install.py: {missing}")
    finally:
        if not (finished or was_there):
            shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
