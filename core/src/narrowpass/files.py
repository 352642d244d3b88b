"""What all writers of files share."""

from __future__ import annotations

from pathlib import Path

from narrowpass.errors import OutputError


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, where they are missing.

    Raises:
        OutputError: something else is there, or the file system refuses.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"{path}: the folder cannot be made: {error.strerror}; give another place"
        ) from error
