"""Calibration and comparison data: feeds, one sample after the other, as often as asked."""

from __future__ import annotations

import importlib
import os
import stat
import struct
import sys
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from narrowpass.errors import DataError, UsageError
from narrowpass.framework.boundary import translate_errors
from narrowpass_ir.arguments import path_of

if TYPE_CHECKING:
    from narrowpass.runtime.arrays import Feeds

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

_END: Any = object()
"""What stands for the end of the samples."""


@dataclass(frozen=True)
class Samples:
    """Samples that can be gone through several times. None of them is kept in memory.

    Attributes:
        source: where they come from, for messages and reports.
        open: starts a new round: returns an iterable of feeds (arrays by input name).
    """

    source: str
    open: Callable[[], Iterable[Feeds]]

    def __iter__(self) -> Iterator[Feeds]:
        """Yield the samples from the first on.

        Raises:
            DataError: there is none, or one that cannot be read, or none of whose arrays has an
                element.
        """
        count = 0
        for count, feeds in enumerate(self._opened(), start=1):
            self._check(feeds, count)
            yield feeds
        if count == 0:
            raise DataError(f"{self.source} holds no samples")

    def _opened(self) -> Iterator[Feeds]:
        """Iterate over what `open` returns: code of the user, which may do anything."""
        count = 0
        with translate_errors(f"{self.source} failed", DataError):
            given: object = self.open()
            if not isinstance(given, Iterable):
                raise DataError(
                    f"{self.source} gave {type(given).__name__}, and not an iterable of samples, "
                    "each a dict of arrays by input name"
                )
            samples = iter(given)
        while True:
            count += 1
            with translate_errors(f"sample {count} of {self.source} failed", DataError):
                feeds = next(samples, _END)
            if feeds is _END:
                return
            yield feeds

    def _check(self, feeds: object, count: int) -> None:
        where = f"sample {count} of {self.source}"
        if not isinstance(feeds, dict):
            raise DataError(
                f"{where} is {type(feeds).__name__}, not a dict of arrays by input name"
            )
        for name, value in feeds.items():
            if not _is_fed(value):
                raise DataError(
                    f"{where}: {name!r} is {type(value).__name__}, not a numpy array; convert it "
                    "with np.asarray, in the dtype of the input"
                )
        arrays = {name: value for name, value in feeds.items() if getattr(value, "ndim", 0)}
        if arrays and not any(value.size for value in arrays.values()):
            shapes = ", ".join(f"{name!r} has shape {list(a.shape)}" for name, a in arrays.items())
            raise DataError(
                f"{where} has no elements: input {shapes}, and nothing can be measured on it; "
                "leave the sample out, or add at least one row"
            )

    @classmethod
    def parse(cls, text: str) -> Samples:
        """Read what ``--calibration`` and ``--data`` take.

        Args:
            text: a folder of ``.npz`` files, one sample each, taken in the order of their names;
                or one ``.npz`` file, one sample (keys are input names); or ``module:function``,
                a function without arguments that yields feeds.

        Raises:
            UsageError: it is none of these.
            DataError: a folder without ``.npz`` files.
        """
        path = Path(path_of(text, "the place of the samples"))
        if _is(path, stat.S_ISDIR):
            files = sorted(path.glob("*.npz"))
            if not files:
                raise DataError(f"{path} has no .npz files; each is one sample, keys input names")
            return cls(text, lambda: map(_read, files))
        if _is(path, stat.S_ISREG):
            return cls(text, lambda: iter([_read(path)]))
        module, colon, function = text.partition(":")
        if not colon or os.sep in text:
            raise UsageError(
                f"no data at {text!r}: pass a folder of .npz files, one .npz file, "
                "or module:function"
            )
        return cls(text, _import(module, function))

    @classmethod
    def of(cls, samples: SamplesLike | None) -> Samples | None:
        """Return samples from whatever the Python interface was given.

        Raises:
            UsageError: it is nothing that samples can be created from.
        """
        if samples is None or isinstance(samples, Samples):
            return samples
        if isinstance(samples, (str, os.PathLike)):
            return cls.parse(path_of(samples, "`calibration`"))
        if callable(samples):
            return cls(getattr(samples, "__name__", "the function"), samples)
        if isinstance(samples, Mapping | bytes) or not isinstance(samples, Iterable):
            raise UsageError(
                f"calibration cannot be {type(samples).__name__}: pass a list of samples (each a "
                "dict of arrays by input name), a function that returns one, or a path"
            )
        kept = list(samples)
        return cls(f"{len(kept)} samples in memory", lambda: kept)


SamplesLike: TypeAlias = (
    "Samples | Iterable[Feeds] | Callable[[], Iterable[Feeds]] | str | os.PathLike[str]"
)
"""What samples may be given as; a function is called anew for each round."""


def _is(path: Path, kind: Callable[[int], bool]) -> bool:
    """Return what is at a path; nothing is at one that cannot be accessed."""
    try:
        return kind(path.stat().st_mode)
    except OSError:
        return False


def _is_fed(value: object) -> bool:
    """Return whether a value can be fed: an array, several for a sequence, None for an optional."""
    import numpy as np

    if isinstance(value, list | tuple):
        return all(map(_is_fed, value))
    return value is None or isinstance(value, np.ndarray)


def _read(path: Path) -> Feeds:
    import numpy as np

    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise DataError(f"{path} is not an .npz file, but a single array")
            with archive:
                return {name: archive[name] for name in archive.files}
    except READ_ERRORS as error:
        raise DataError(f"{path} cannot be read as an .npz file: {error}") from error


def _import(module: str, function: str) -> Callable[[], Iterable[Feeds]]:
    # The command line is started as a script: modules beside the caller must be found, too.
    here = str(Path.cwd())
    if "" not in sys.path and here not in sys.path:
        sys.path.insert(0, here)
    with translate_errors(f"{module}:{function} cannot be imported", UsageError):
        found = getattr(importlib.import_module(module), function)
    if not callable(found):
        raise UsageError(f"{module}:{function} is not a function")
    result: Callable[[], Iterable[Feeds]] = found
    return result
