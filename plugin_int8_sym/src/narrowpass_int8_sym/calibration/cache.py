"""Files that hold clipping ranges, and the state of an interrupted calibration."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from narrowpass import Histogram
from narrowpass.errors import DataError, NarrowpassError, UsageError
from narrowpass_int8_sym.calibration.histogram import Array
from narrowpass_int8_sym.calibration.observers import Range
from narrowpass_ir.data.documents import parse_json
from narrowpass_ir.data.trust import create_own_folder, distrust_file, distrust_folder
from narrowpass_ir.files import TEMPORARY, is_left_behind, replacing_file

FORMAT = "narrowpass calibration 1"
SUFFIX = ".calibration.npz"

_log = logging.getLogger("narrowpass.int8-sym")

_BROKEN = (
    ArithmeticError,
    AttributeError,
    DataError,
    EOFError,
    LookupError,
    MemoryError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)
"""Exceptions that parsing a damaged or foreign file can raise."""


def default_folder() -> Path:
    """Return the folder of calibrations.

    It is in ``NARROWPASS_CACHE_DIR``, or in the user's cache directory as the system has it.
    """
    given = os.environ.get("NARROWPASS_CACHE_DIR")
    if given:
        return Path(given) / "calibration"
    import platformdirs

    return Path(platformdirs.user_cache_dir("narrowpass")) / "calibration"


@dataclass(frozen=True)
class PartialCalibration:
    """The state of an interrupted calibration.

    Attributes:
        names: of the values that are observed.
        round: the current pass over the samples, from 0.
        done: how many samples were observed in this round.
        extremes: from `Observer.state`; float64 of shape [names, 2].
        counts: from `Observer.state`; int64 of shape [names, counts].
    """

    names: tuple[str, ...]
    round: int
    done: int
    extremes: Array
    counts: Array

    def __post_init__(self) -> None:
        size = len(self.names)
        if self.extremes.dtype != np.float64 or self.extremes.shape != (size, 2):
            raise ValueError(f"extremes are {self.extremes.dtype}{list(self.extremes.shape)}")
        if self.counts.dtype != np.int64 or self.counts.shape[:1] != (size,):
            raise ValueError(f"counts are {self.counts.dtype}{list(self.counts.shape)}")
        if self.counts.ndim != 2 or self.round < 0 or self.done < 0:
            raise ValueError(f"round {self.round}, sample {self.done}")


@dataclass(frozen=True)
class CalibrationCache:
    """A folder of calibration results.

    A file that cannot be read, is damaged or has another format is ignored with a warning; so is a
    folder that cannot be written to. What other users may have written is neither read nor
    replaced. Several processes may use the folder at once: each file is replaced as a whole, and
    ranges that another one found meanwhile are kept.

    Attributes:
        folder: of the files; created when the first one is written.
        every: after how many samples the state is written.
    """

    folder: Path = field(default_factory=default_folder)
    every: int = 16

    def __post_init__(self) -> None:
        if self.every < 1:
            raise UsageError(f"every must be at least 1: {self.every}")

    def entry(self, key: str) -> CacheEntry:
        """Read the file of a calibration; the entry is empty where there is none.

        Args:
            key: a hash of the model, the data and the options; valid as a file name.
        """
        return CacheEntry(self.folder / f"{key}{SUFFIX}", key)


class CacheEntry:
    """One calibration's file.

    Attributes:
        path: of the file.
        ranges: by the name of the value.
        partial: the state of an interrupted calibration; None where there is none.
    """

    def __init__(self, path: Path, key: str) -> None:
        self.path, self._key = path, key
        self._writable = True
        self.ranges: dict[str, Range]
        self.partial: PartialCalibration | None
        self.ranges, self.partial = self._read()

    def save(self, ranges: Mapping[str, Range], partial: PartialCalibration | None) -> None:
        """Add ranges to the file, and replace the state of the interrupted calibration."""
        if not self._writable:
            return
        if ranges:
            known, _ = self._read()
            self.ranges = {**known, **self.ranges, **ranges}
        self.partial = partial
        self._replace()

    def _replace(self) -> None:
        if not self._writable:  # others could write to what was just read
            return
        try:
            create_own_folder(self.path.parent)
            self._sweep()
            self._write()
        except (NarrowpassError, OSError) as error:
            self._writable = False
            _log.warning(
                "the calibration is not kept, an interrupted one starts anew: %s; "
                "NARROWPASS_CACHE_DIR says where",
                str(error),
            )

    def _write(self) -> None:
        header: dict[str, object] = {
            "format": FORMAT,
            "key": self._key,
            "ranges": {name: _range_to_json(kept) for name, kept in self.ranges.items()},
        }
        arrays: dict[str, Any] = {}
        if self.partial is not None:
            header["partial"] = {
                "names": self.partial.names,
                "round": self.partial.round,
                "done": self.partial.done,
            }
            arrays = {"extremes": self.partial.extremes, "counts": self.partial.counts}
        arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
        with replacing_file(self.path, 0o644) as file:
            # Mostly zeros, but packing them would take longer than writing.
            np.savez(file, **arrays)

    def _read(self) -> tuple[dict[str, Range], PartialCalibration | None]:
        try:
            if reason := distrust_folder(self.path.parent):
                return self._distrust(reason)
            with open(self.path, "rb", opener=_unfollowed) as file:
                if reason := distrust_file(self.path, os.fstat(file.fileno())):
                    return self._distrust(reason)
                return self._parse(file.read())
        except FileNotFoundError:
            pass
        except OSError as error:
            _log.warning("%s cannot be read, so it is ignored: %s", self.path, str(error))
        except _BROKEN as error:
            _log.warning("%s is no calibration, so it is ignored: %s", self.path, repr(error))
        return {}, None

    def _distrust(self, reason: str) -> tuple[dict[str, Range], PartialCalibration | None]:
        self._writable = False
        _log.warning("clipping ranges are not read, and not kept: %s", reason)
        return {}, None

    def _parse(self, data: bytes) -> tuple[dict[str, Range], PartialCalibration | None]:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise ValueError(f"{damaged} is damaged")
        loaded = np.load(io.BytesIO(data), allow_pickle=False)
        header = parse_json(loaded["header"].tobytes(), infinite=True)
        if header["format"] != FORMAT or header["key"] != self._key:
            raise ValueError("it is of another version, or another model")
        ranges = {_text(name): _range_from_json(item) for name, item in header["ranges"].items()}
        partial = None
        if "partial" in header:
            state = header["partial"]
            partial = PartialCalibration(
                tuple(map(_text, state["names"])),
                _whole(state["round"]),
                _whole(state["done"]),
                loaded["extremes"],
                loaded["counts"],
            )
        return ranges, partial

    def _sweep(self) -> None:
        """Delete partial files that killed processes left behind."""
        for path in self.path.parent.glob(TEMPORARY):
            with contextlib.suppress(OSError):
                if is_left_behind(path):
                    path.unlink()


def _unfollowed(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _range_to_json(kept: Range) -> list[object]:
    ends: list[object] = [float(kept.low), float(kept.high)]
    return ends if kept.histogram is None else [*ends, kept.histogram.to_json()]


def _range_from_json(fields: Sequence[Any]) -> Range:
    low, high, *histogram = fields
    shown = Histogram.from_json(histogram[0]) if histogram else None
    return Range(_number(low), _number(high), shown)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no name")
    return value


def _number(value: object) -> float:
    if not isinstance(value, float):
        raise TypeError(f"{value!r} is no number")
    return value


def _whole(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is no count")
    return value


def stacked(states: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Stack the states of observers: extremes and counts."""
    return np.stack([state[0] for state in states]), np.stack([state[1] for state in states])
