"""Writing a file so that a reader finds the old one whole or the new one whole."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from narrowpass.errors import OutputError, UsageError


@contextlib.contextmanager
def replacing_file(path: Path) -> Iterator[IO[bytes]]:
    """Give a file to write; it takes the place of `path` where the block ends.

    Where the block raises, it is deleted and what was at `path` stays.

    Raises:
        UsageError: `path` is a folder, or the folder around it does not exist.
        OutputError: the file system refuses to write.
    """
    if path.is_dir():
        raise UsageError(f"{path}: is a folder; give the name of a file to write")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: the folder {path.parent} does not exist; make it first")
    temporary = ""
    try:
        with tempfile.NamedTemporaryFile(
            dir=path.parent, prefix=f".{path.name[:100]}.", delete=False
        ) as file:
            temporary = file.name
            yield file
            file.flush()
            os.fsync(file.fileno())
        _take_mode(temporary)
        Path(temporary).replace(path)
        temporary = ""
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(
            f"{path}: cannot be written: {reason}; free space there, or give another place"
        ) from error
    finally:
        if temporary:
            Path(temporary).unlink(missing_ok=True)


def _take_mode(path: str) -> None:
    """Give a temporary file, which only its owner may read, the mode of an ordinary one."""
    mask = os.umask(0)
    os.umask(mask)
    Path(path).chmod(0o666 & ~mask)
