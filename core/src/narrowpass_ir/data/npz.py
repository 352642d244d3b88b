"""Archives of arrays, as `numpy.savez` writes them; files may be damaged, and come from anybody."""

from __future__ import annotations

import struct
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from narrowpass_ir.errors import DataError

READ_ERRORS = (
    EOFError,
    KeyError,
    MemoryError,
    NotImplementedError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What numpy and zipfile raise on damaged files: their headers are parsed as Python."""


def read_npz(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Return the arrays of an ``.npz`` file by name.

    Raises:
        DataError: it cannot be read, or is no archive of arrays.
    """
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise DataError(f"{path} is not an .npz file, but a single array")
            with archive:
                return {name: archive[name] for name in archive.files}
    except READ_ERRORS as error:
        raise DataError(f"{path} cannot be read as an .npz file: {error}") from error
