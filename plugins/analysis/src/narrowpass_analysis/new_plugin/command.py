"""``narrowpass new-plugin``."""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
from pathlib import Path

import click

from narrowpass.cli.options import json_option
from narrowpass.cli.output import print_json
from narrowpass.cli.state import State, pass_state
from narrowpass.errors import UsageError

KINDS = ("pass", "backend", "importer")

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")

_LONGEST = 28
"""Characters of a name: lines of the templates then have 100 at most."""


@click.command("new-plugin")
@click.argument("name")
@click.option(
    "--kind", type=click.Choice(KINDS), default="pass", show_default=True, help="What it adds."
)
@click.option(
    "--into",
    metavar="FOLDER",
    default=".",
    show_default=True,
    help="Where the folder NAME is created.",
)
@json_option
@pass_state
def new_plugin(state: State, name: str, kind: str, into: str, as_json: bool) -> None:
    """Write a plugin that works: a package with its tests, ready to be changed.

    NAME is that of the distribution, of the plugin, and of what it registers: lower case, with
    hyphens. The package is typed, and passes `mypy --strict` and `ruff` with the settings of its
    pyproject.toml.

    The JSON document has the keys name, kind, folder and files (relative to the folder).
    """
    from narrowpass_analysis.new_plugin.files import plugin_files
    from narrowpass_ir.files import create_folder, replacing_file

    check_name(name)
    registry = state.registry
    taken = {"pass": registry.passes, "backend": registry.backends, "importer": registry.importers}
    if name in taken[kind]:
        owner = registry.owner(f"{kind}s" if kind != "pass" else "passes", name)
        raise UsageError(f"{name}: {owner} has {_with_article(kind)} of this name; choose another")
    folder = Path(into, name)
    if folder.exists():
        raise UsageError(f"{folder}: exists; choose another name, or another folder with --into")
    files = plugin_files(name, kind)
    for path, text in files.items():
        create_folder((folder / path).parent)
        with replacing_file(folder / path) as file:
            file.write(text.encode())
    if as_json:
        print_json({"name": name, "kind": kind, "folder": str(folder), "files": list(files)})
        return
    for path in files:
        click.echo(folder / path)
    install = f"pip install --group {folder}/pyproject.toml:test -e {folder}"
    state.note(f"install it, by pip 25.1 or later: {install}")
    state.note(f"test it: pytest {folder}")


def check_name(name: str) -> None:
    """Refuse a name that a distribution, a package and a pass cannot all have.

    Raises:
        UsageError: other characters, or a package that is there already.
    """
    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        raise UsageError(
            f"{name!r}: a plugin is named with lower-case letters, digits and single hyphens, a "
            f"letter first, {_LONGEST} at most, such as drop-dropout"
        )
    package = name.replace("-", "_")
    if keyword.iskeyword(package) or package in sys.stdlib_module_names:
        raise UsageError(f"{name}: Python has {package!r} itself; choose another name")
    found = importlib.util.find_spec(package)
    if found is not None and found.origin is not None:  # no mere folder on the path
        raise UsageError(f"{name}: the package {package} is installed already; choose another name")


def _with_article(kind: str) -> str:
    return f"an {kind}" if kind == "importer" else f"a {kind}"
