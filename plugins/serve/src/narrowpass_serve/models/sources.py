"""Where the bundles of a server are, and whether their files were replaced."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from narrowpass.bundle import is_bundle
from narrowpass.errors import UsageError

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
_MANIFEST = "manifest.json"

Identity = tuple[int, int, int, int]
"""Device, file number, time of change and size: of a file that was replaced, another one."""


@dataclass(frozen=True)
class Source:
    """A bundle, or an ONNX file, under the name that clients ask for.

    Attributes:
        name: letters, digits, ``_``, ``.`` and ``-``.
        path: of the folder or file.
    """

    name: str
    path: Path

    def identity(self) -> Identity | None:
        """Return what changes when the model is replaced; None where it is not there."""
        for file in (self.path / _MANIFEST, self.path):
            try:
                found = file.stat()
            except OSError:
                continue
            return (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)
        return None


def find_sources(texts: Sequence[str]) -> dict[str, Source]:
    """Return the models that the arguments of the command name, by name.

    Args:
        texts: each ``NAME=PATH``, a path, or a folder of bundles and ONNX files.

    Raises:
        UsageError: nothing is there, a name that URLs cannot have, or a name twice.
    """
    found: dict[str, Source] = {}
    for text in texts:
        for source in _expand(text):
            other = found.setdefault(source.name, source)
            if other is not source:
                raise UsageError(
                    f"{other.path} and {source.path} would both be served as {source.name!r}; "
                    "name one: NAME=PATH"
                )
    return found


def _expand(text: str) -> Iterator[Source]:
    name, equals, given = text.partition("=")
    if equals and _NAME.fullmatch(name):
        yield _source(name, Path(given))
        return
    folder = Path(text)
    if not folder.is_dir() or is_bundle(folder):
        yield _source(_name_of(folder), folder)
        return
    inside = [path for path in sorted(folder.iterdir()) if is_bundle(path) or _is_onnx(path)]
    if not inside:
        raise UsageError(
            f"{text}: is no bundle, and has no bundle or ONNX file in it; pass what "
            "`narrowpass build` writes, or a folder of these"
        )
    for path in inside:
        yield _source(_name_of(path), path)


def _source(name: str, path: Path) -> Source:
    if not path.exists():
        raise UsageError(f"{path}: no such bundle or ONNX file; pass [NAME=]PATH")
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{path}: clients cannot ask for the name {name!r}; pass NAME={path}, with letters, "
            "digits, '_', '.' and '-' only"
        )
    return Source(name, path)


def _name_of(path: Path) -> str:
    path = path.resolve() if path.name in ("", ".", "..") else path
    return path.stem if path.suffix in (".narrow", ".onnx") else path.name


def _is_onnx(path: Path) -> bool:
    return path.suffix == ".onnx" and path.is_file()
