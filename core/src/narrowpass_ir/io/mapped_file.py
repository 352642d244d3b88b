"""Files that are opened once, and mapped when somebody asks for it."""

from __future__ import annotations

import mmap
import os
import stat
import weakref
from typing import Protocol

from narrowpass_ir.arguments import Uncopied
from narrowpass_ir.errors import ModelError

CHUNK = 1 << 20
"""Bytes that a stream copy holds in memory at a time."""


class Writable(Protocol):
    """Anything that takes bytes: a file, a hash behind a small adapter, a socket's file."""

    def write(self, data: bytes, /) -> int | None:
        """Write `data`; return how much of it was written, or None for all of it."""


def write_all(file: Writable, data: bytes) -> None:
    """Write all of `data`, also where one call of an unbuffered `write` takes only a part."""
    written = file.write(data)
    while isinstance(written, int) and 0 <= written < len(data):
        if written == 0:
            raise OSError("write took no bytes")
        data = data[written:]
        written = file.write(data)


class MappedFile(Uncopied):
    """A regular file, opened once. It owns a descriptor, and can be neither copied nor pickled.

    The descriptor keeps the inode: when another file later takes the path, this object goes on
    reading the old one. The file is mapped only when somebody asks for `mapping`; `read` needs
    no mapping. The descriptor is closed when the object goes; arrays over the mapping live on.

    Args:
        source: a path, or an open descriptor, which this object takes over (and closes, also
            where this constructor raises).
        name: what messages call the file; the path where there is one.

    Attributes:
        name: what messages call the file.
        size: its length in bytes when it was opened.

    Raises:
        ModelError: the file cannot be opened, or is not a regular file.
    """

    _instead = "tensors may share it, and another process loads the model or bundle by its path"

    def __init__(self, source: str | os.PathLike[str] | int, name: str | None = None) -> None:
        if isinstance(source, int):
            fd = source
            self.name = name or f"descriptor {source}"
        else:
            self.name = name or os.fspath(source)
            fd = _open(source, self.name)
        try:
            status = os.fstat(fd)
        except OSError as error:
            os.close(fd)
            raise self._unread_error(error) from error
        if not stat.S_ISREG(status.st_mode):
            os.close(fd)
            raise ModelError(f"{self.name}: not a regular file; pass a file that holds data")
        self.size = status.st_size
        self._fd = fd
        self._map: mmap.mmap | None = None
        self._close = weakref.finalize(self, os.close, fd)

    def __repr__(self) -> str:
        return f"MappedFile({self.name!r}, size={self.size})"

    @property
    def closed(self) -> bool:
        """Whether the descriptor is closed; arrays over the mapping stay valid."""
        return not self._close.alive

    def close(self) -> None:
        """Close the descriptor. A second call does nothing."""
        self._close()

    def status(self) -> os.stat_result:
        """Return what the system says of the file now.

        Raises:
            ModelError: it was closed, or the system does not say.
        """
        try:
            return os.fstat(self._descriptor())
        except OSError as error:
            raise self._unread_error(error) from error

    def check_size(self) -> None:
        """Raise unless the file is as long as it was when it was opened.

        A mapping of a file that shrank kills the process where it is read.

        Raises:
            ModelError: the file is shorter now.
        """
        now = self.status().st_size
        if now < self.size:
            raise self._shrunk_error(now)

    def read(self, offset: int, size: int) -> bytes:
        """Read `size` bytes at `offset`, independent of any mapping or file position.

        Raises:
            ModelError: the file no longer has these bytes, or cannot be read.
            ValueError: the range is not inside the file.
        """
        if offset < 0 or size < 0 or offset + size > self.size:
            raise ValueError(f"{self.name}: {size} bytes at {offset} are not inside the file")
        parts = []
        while size > 0:
            try:
                part = os.pread(self._descriptor(), min(size, 1 << 30), offset)
            except OSError as error:
                raise self._unread_error(error) from error
            if not part:
                raise self._shrunk_error(self.status().st_size)
            parts.append(part)
            offset += len(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill `target` with the bytes from `offset` on. Raises as `read` does."""
        if offset < 0 or offset + len(target) > self.size:
            raise ValueError(f"{self.name}: {len(target)} bytes at {offset} are not inside")
        while target:
            try:
                count = os.preadv(self._descriptor(), [target[: 1 << 30]], offset)
            except OSError as error:
                raise self._unread_error(error) from error
            if not count:
                raise self._shrunk_error(self.status().st_size)
            offset += count
            target = target[count:]

    @property
    def mapping(self) -> mmap.mmap:
        """The whole file, mapped read-only at the first use.

        Raises:
            ModelError: the file is shorter than when it was opened, or cannot be mapped.
        """
        if self._map is None:
            self.check_size()
            try:
                self._map = mmap.mmap(self._descriptor(), self.size, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as error:
                raise ModelError(f"{self.name}: cannot be mapped into memory: {error}") from error
        return self._map

    def drop(self, offset: int, size: int) -> None:
        """Take pages that lie in a range out of this process's memory, where the system can.

        Arrays over the mapping stay valid: what is read again comes from the file again.
        """
        if self._map is None or not hasattr(mmap, "MADV_DONTNEED"):
            return
        start = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (offset + size) // mmap.PAGESIZE * mmap.PAGESIZE
        if end > start:
            self._map.madvise(mmap.MADV_DONTNEED, start, end - start)

    def _descriptor(self) -> int:
        if self.closed:
            raise ModelError(f"{self.name}: already closed; load it again")
        return self._fd

    def _unread_error(self, error: OSError) -> ModelError:
        return ModelError(f"{self.name}: cannot be read: {error.strerror}")

    def _shrunk_error(self, now: int) -> ModelError:
        return ModelError(
            f"{self.name}: was cut from {self.size} to {now} bytes while it was in use; "
            "restore the file and load it again"
        )


def _open(path: str | os.PathLike[str], name: str) -> int:
    try:
        # Without O_NONBLOCK a FIFO would hang here, before it can be refused.
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ModelError(f"{name}: cannot be opened: {reason}") from error
