"""Calibration and comparison data: feeds, one sample after the other, as often as asked."""

from __future__ import annotations

import importlib
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from narrowpass.errors import DataError, UsageError
from narrowpass.framework.boundary import translate_errors
from narrowpass_ir.arguments import path_of
from narrowpass_ir.data.arrays import is_fed, plain_array
from narrowpass_ir.data.npz import read_npz

if TYPE_CHECKING:
    from narrowpass.runtime.arrays import Feeds

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
            yield self._checked(feeds, count)
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

    def _checked(self, feeds: object, count: int) -> Feeds:
        """Return a sample as plain arrays."""
        where = f"sample {count} of {self.source}"
        if not isinstance(feeds, dict):
            raise DataError(
                f"{where} is {type(feeds).__name__}, not a dict of arrays by input name"
            )
        feeds = {name: plain_array(value, f"{where}: {name!r}") for name, value in feeds.items()}
        for name, value in feeds.items():
            if not is_fed(value):
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
        return feeds

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
            return cls(text, lambda: map(read_npz, files))
        if _is(path, stat.S_ISREG):
            return cls(text, lambda: iter([read_npz(path)]))
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
