"""Folders of files: on a disk or in an object store, through Arrow's file systems."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.fs as pafs

from narrowpass.errors import DataError, OutputError, UsageError
from narrowpass.framework.boundary import message
from narrowpass_ir.files import create_folder, replacing_file, temporary

_PLACES = "pass a path, or a URI such as s3://bucket/folder"


@dataclass(frozen=True)
class Found:
    """A file.

    Attributes:
        path: as Arrow's file system has it.
        name: relative to the folder, with slashes; the last part of `path` for a single file.
        size: in bytes.
        changed: its time of modification, in nanoseconds; 0 where the store has none.
    """

    path: str
    name: str
    size: int
    changed: int


@dataclass(frozen=True)
class Place:
    """A folder or a file; pickled and sent to workers.

    Attributes:
        files: Arrow's file system.
        path: on it.
    """

    files: pafs.FileSystem
    path: str

    @classmethod
    def of(cls, text: str) -> Self:
        """Return the place of a path, or of a URI such as ``s3://bucket/folder``.

        Raises:
            UsageError: a URI that neither Arrow nor fsspec has a file system for.
        """
        if "://" not in text:
            # Not pathlib: its `absolute` leaves "..", and `resolve` follows links.
            return cls(pafs.LocalFileSystem(), os.path.abspath(text))  # noqa: PTH100
        try:
            return cls(*pafs.FileSystem.from_uri(text))
        except pa.ArrowInvalid:
            return cls._by_fsspec(text)
        except OSError as error:
            raise UsageError(f"{text}: {message(error)}; {_PLACES}") from error

    @classmethod
    def _by_fsspec(cls, text: str) -> Self:
        """Return the place of a URI that Arrow does not know."""
        import fsspec

        try:
            files, path = fsspec.core.url_to_fs(text)
        except (ImportError, OSError, ValueError) as error:
            raise UsageError(f"{text}: {message(error)}; {_PLACES}") from error
        return cls(pafs.PyFileSystem(pafs.FSSpecHandler(files)), path)

    @property
    def is_local(self) -> bool:
        """Whether it lies on a file system of the machine."""
        return isinstance(self.files, pafs.LocalFileSystem)

    def inside(self, name: str) -> Self:
        """Return the place of a file in the folder."""
        return type(self)(self.files, f"{self.path}/{name}")

    def exists(self) -> bool:
        """Return whether something is there."""
        kind = self.files.get_file_info(self.path).type
        return bool(kind != pafs.FileType.NotFound)

    def listed(self) -> list[Found]:
        """Return the files below the folder, or the file, in the order of their names.

        Those whose name, or that of a folder on the way, begins with a dot or an underscore are
        left out, as other readers of such folders do.

        Raises:
            DataError: nothing is there, or it cannot be listed.
        """
        try:
            info = self.files.get_file_info(self.path)
            if info.type == pafs.FileType.NotFound:
                raise DataError(
                    f"{self.path}: there is no such file or folder; pass one that all nodes "
                    "can read"
                )
            if info.type == pafs.FileType.File:
                return [_found(info, info.base_name)]
            selector = pafs.FileSelector(self.path, recursive=True)
            infos = self.files.get_file_info(selector)
        except OSError as error:
            raise DataError(f"{self.path}: cannot be listed: {message(error)}") from error
        return sorted(self._visible(infos), key=lambda found: found.name)

    def _visible(self, infos: list[Any]) -> Iterator[Found]:
        for info in infos:
            name = info.path[len(self.path) :].lstrip("/")
            if info.type == pafs.FileType.File and not any(
                part.startswith((".", "_")) for part in name.split("/")
            ):
                yield _found(info, name)

    def read(self) -> bytes | None:
        """Return the contents of a file; None where there is none.

        Raises:
            DataError: it cannot be read.
        """
        try:
            with self.files.open_input_stream(self.path) as stream:
                return bytes(stream.read())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read: {message(error)}") from error

    def write(self, data: bytes | pa.Buffer, *, durable: bool = True) -> None:
        """Write a file that appears when it is whole, in place of the one that was there.

        Args:
            data: what it holds.
            durable: whether it is on the disk at the end; else it survives the process only.

        Raises:
            OutputError: the disk is full, or the file system refuses otherwise.
        """
        if self.is_local:
            path = Path(self.path)
            create_folder(path.parent)
            if durable:
                with replacing_file(path) as file:
                    file.write(memoryview(data))
                return
            try:
                with temporary(path) as (file, name):
                    file.write(memoryview(data))
                    file.flush()
                    name.replace(path)
            except OSError as error:
                raise _refused(self.path, error) from error
            return
        try:
            # An object store shows an object when its upload is complete.
            with self.files.open_output_stream(self.path) as stream:
                stream.write(data)
        except OSError as error:
            raise _refused(self.path, error) from error

    def delete(self) -> None:
        """Delete a file, if it is there.

        Raises:
            OutputError: the file system refuses.
        """
        try:
            self.files.delete_file(self.path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise OutputError(f"{self.path}: cannot be deleted: {message(error)}") from error


def _refused(path: str, error: OSError) -> OutputError:
    return OutputError(f"{path}: cannot be written: {message(error)}; check rights and space there")


def _found(info: Any, name: str) -> Found:
    return Found(info.path, name, int(info.size or 0), int(info.mtime_ns or 0))
