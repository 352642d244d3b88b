"""Build the wheels of this repository's distributions, and install them from those files.

``wheels.py build FOLDER`` builds every distribution into FOLDER and pins all their names to
those files in ``FOLDER/constraints.txt``.

``wheels.py install [-c FILE] FOLDER NAME ...`` installs the named distributions, which may have
extras, into the Python that runs this, and uninstalls the repository's others (but the core, which
tox installs). Only what is not of this repository comes from an index; FILE has further
constraints.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = "narrowpass"
"""The distribution that depends on none of the others: tox can install it by itself."""


def projects() -> dict[str, Path]:
    """Return the folder of each distribution of this repository by its name."""
    found = {}
    for pattern in ("core", "core/alias", "plugins/*", "plugin_*"):
        for file in sorted(ROOT.glob(f"{pattern}/pyproject.toml")):
            project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
            found[project["name"]] = file.parent
    return found


def wheel_of(folder: Path, name: str) -> Path:
    """Return the wheel of a distribution; exit where there is not exactly one."""
    stem = re.sub(r"[-_.]+", "_", name).lower()
    wheels = list(folder.glob(f"{stem}-*.whl"))
    if len(wheels) != 1:
        sys.exit(f"{folder} has {len(wheels)} wheels of {name}, not one: run 'tox run -e wheels'")
    return wheels[0].resolve()


def run(*command: str | Path) -> None:
    """Run a command; exit with its code if it fails."""
    done = subprocess.run([*map(str, command)], check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        sys.exit(done.returncode)


def uv() -> str:
    """Return the path of uv; tox installs nothing for environments that build."""
    if importlib.util.find_spec("uv") is None:
        run(sys.executable, "-m", "ensurepip")
        run(sys.executable, "-m", "pip", "install", "--quiet", "uv")
    from uv import find_uv_bin

    return find_uv_bin()


def build(folder: Path) -> None:
    """Build every distribution into `folder`, which is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    run(uv(), "build", "--quiet", "--all-packages", "--wheel", "--out-dir", folder, ROOT)
    pins = [f"{name} @ {wheel_of(folder, name).as_uri()}\n" for name in projects()]
    (folder / "constraints.txt").write_text("".join(pins), encoding="utf-8")


def install(folder: Path, requirements: list[str], constraints: list[Path]) -> None:
    """Install wheels of this repository, and none of its other distributions.

    Args:
        folder: where `build` put them.
        requirements: names of distributions, with their extras.
        constraints: files with versions of what comes from an index.
    """
    ours = projects()
    names = [re.split(r"[^\w-]", text)[0] for text in requirements]
    unknown = [name for name in names if name not in ours]
    if unknown:
        sys.exit(f"{unknown[0]} is not a distribution of this repository: {', '.join(ours)}")
    present = [d.name for d in distributions() if d.name in ours and d.name != LIBRARY]
    pip = uv(), "pip"
    here = "--quiet", "--python", sys.executable
    if present:
        run(*pip, "uninstall", *here, *present)
    files = [folder / "constraints.txt", *constraints]
    pins = [part for file in files for part in ("--constraint", file)]
    wanted = [
        f"{text} @ {wheel_of(folder, name).as_uri()}"
        for name, text in zip(names, requirements, strict=True)
    ]
    run(*pip, "install", *here, *pins, *wanted)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build", help="build all wheels")
    building.add_argument("folder", type=Path)
    installing = commands.add_parser("install", help="install some of them")
    installing.add_argument("folder", type=Path)
    installing.add_argument("-c", "--constraint", type=Path, action="append", default=[])
    installing.add_argument("names", nargs="+", metavar="NAME")
    arguments = parser.parse_args()
    if arguments.command == "build":
        build(arguments.folder)
    else:
        install(arguments.folder, arguments.names, arguments.constraint)


if __name__ == "__main__":
    main()
