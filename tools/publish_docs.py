"""Add the built documentation to those of other versions, on the branch that is served.

``python tools/publish_docs.py BUILT REF [--push]``: BUILT is the folder of HTML, REF the tag or the
branch that it was built from. The branch ``gh-pages`` gets a commit, in which

- ``0.1/`` is the documentation of the tags ``v0.1.*``, and ``main/`` that of a branch;
- ``versions.json`` lists the folders, in the form of Sphinx's themes, for the list in the sidebar:
  pages of old versions read it when they are looked at, and so know of those that came later;
- ``index.html`` leads to the newest release.

Versions are never built again: what they are generated from, their code, is not installed any more.
``--push`` takes the branch from ``origin`` before, and pushes it afterwards.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

BRANCH = "gh-pages"
_RELEASE = re.compile(r"v(\d+\.\d+)\.\d+")
_AUTHOR = ("-c", "user.name=narrowpass", "-c", "user.email=narrowpass@users.noreply.github.com")


def folder_of(ref: str) -> str:
    """Return the folder of a version: ``0.1`` for the tag ``v0.1.2``; branches have their names.

    Exits for other names: tags of previews, say, are not published.
    """
    release = _RELEASE.fullmatch(ref)
    if release is None and not re.fullmatch(r"[a-z][a-z-]*", ref):
        sys.exit(f"{ref} is neither a release, such as v0.1.2, nor the name of a branch")
    return release[1] if release else ref


def add(site: Path, built: Path, folder: str) -> None:
    """Put a version into the site, in place of the one of that folder, and list all."""
    if not (built / "index.html").is_file():
        sys.exit(f"{built} has no index.html: build the documentation first")
    shutil.rmtree(site / folder, ignore_errors=True)
    shutil.copytree(built, site / folder, ignore=shutil.ignore_patterns(".doctrees", ".buildinfo"))
    listed = versions(path.parent.name for path in site.glob("*/index.html"))
    (site / "versions.json").write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")
    first = next(entry for entry in listed if entry["preferred"])["version"]
    (site / "index.html").write_text(
        f'<!doctype html>\n<meta charset="utf-8">\n<title>narrowpass</title>\n'
        f'<meta http-equiv="refresh" content="0; url={first}/">\n<a href="{first}/">{first}</a>\n',
        encoding="utf-8",
    )
    (site / ".nojekyll").touch()  # Sphinx's folders begin with an underscore


def versions(folders: Iterable[str]) -> list[dict[str, str | bool]]:
    """Return the entries of ``versions.json``: releases, the newest first, then branches.

    ``url`` is relative to the site; ``preferred`` is the newest release, or else a branch.
    """
    known = sorted(folders)
    releases = [folder for folder in known if folder[0].isdigit()]
    releases.sort(key=lambda folder: [int(part) for part in folder.split(".")], reverse=True)
    ordered = [*releases, *(folder for folder in known if folder not in releases)]
    return [
        {"name": folder, "version": folder, "url": f"{folder}/", "preferred": not index}
        for index, folder in enumerate(ordered)
    ]


def publish(repository: Path, built: Path, ref: str, *, push: bool) -> None:
    """Commit a version to the branch of a repository; see the module."""
    folder = folder_of(ref)

    def git(*command: str | Path, cwd: Path = repository) -> str:
        words = ["git", *_AUTHOR, *map(str, command)]
        done = subprocess.run(words, cwd=cwd, check=False, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(words)}\n{done.stderr}")
        return done.stdout

    if push and git("ls-remote", "--heads", "origin", BRANCH):
        git("fetch", "--quiet", "origin", f"+refs/heads/{BRANCH}:refs/heads/{BRANCH}")
    with tempfile.TemporaryDirectory() as temporary:
        site = Path(temporary)
        git("init", "--quiet", "--initial-branch", BRANCH, cwd=site)
        if git("branch", "--list", BRANCH):
            git("pull", "--quiet", repository.resolve(), BRANCH, cwd=site)
        add(site, built, folder)
        git("add", "--all", cwd=site)
        git("commit", "--quiet", "--allow-empty", "-m", f"Publish {ref} as {folder}", cwd=site)
        git("push", "--quiet", repository.resolve(), BRANCH, cwd=site)
    if push:
        git("push", "--quiet", "origin", BRANCH)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("built", type=Path, help="the folder of HTML")
    parser.add_argument("ref", help="the tag or branch that it was built from")
    parser.add_argument("--push", action="store_true", help="take the branch from origin, push it")
    arguments = parser.parse_args()
    publish(Path.cwd(), arguments.built, arguments.ref, push=arguments.push)


if __name__ == "__main__":
    main()
