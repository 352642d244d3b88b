"""Files that are opened once, and tensors whose bytes stay in them until somebody asks for them."""

from __future__ import annotations

import copy
import hashlib
import mmap
import os
import stat
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from narrowpass_ir.arguments import Uncopied
from narrowpass_ir.errors import ModelError, NarrowpassError

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


_MOST = 1 << 63


def element_count(shape: Sequence[int]) -> int:
    """Return how many elements a shape has; one that no memory holds, where there are as many.

    A file may list a million dimensions, whose exact number would take minutes.
    """
    if 0 in shape:
        return 0
    count = 1
    for dim in shape:
        count *= dim
        if abs(count) > _MOST:
            break
    return count


def serialized_size(dtype: ir.DataType, shape: Sequence[int]) -> int:
    """Return the bytes that ONNX stores for a tensor: packed below 8 bits, little endian.

    Raises:
        TypeError: a type without a fixed width, such as strings.
    """
    return (element_count(shape) * dtype.bitwidth + 7) // 8


class MappedTensor(ir.TensorProtocol):
    """A tensor in a part of a `MappedFile`.

    Args:
        file: where the bytes are; kept open by this object.
        offset: of the first byte.
        dtype: any type but strings.
        shape: whole numbers, none negative.
        name: the tensor's name.
        doc_string: as in the model.
        metadata_props: as in the model; copied.
        sha256: what the SHA-256 of the bytes must be, where somebody says.
        mismatch: returns the error to raise for this tensor where the hash is another one; None for
            a `ModelError`.

    Attributes:
        sha256: what the SHA-256 of the bytes must be; None where nobody says. `checked` compares.
        mismatch: as the argument.

    Raises:
        ModelError: the bytes are not all inside the file, or the type cannot be stored so.
    """

    def __init__(
        self,
        file: MappedFile,
        offset: int,
        dtype: ir.DataType,
        shape: ir.Shape | Sequence[int],
        name: str | None = None,
        *,
        doc_string: str | None = None,
        metadata_props: Mapping[str, str] | None = None,
        sha256: str | None = None,
        mismatch: Callable[[MappedTensor], NarrowpassError] | None = None,
    ) -> None:
        dims = tuple(shape.numpy()) if isinstance(shape, ir.Shape) else tuple(shape)
        self.name = name
        self.sha256 = sha256
        self.mismatch = mismatch
        self.doc_string = doc_string
        self.meta: dict[str, Any] = {}
        self._metadata_props = dict(metadata_props or {})
        self._file = file
        self._offset = offset
        self._dtype = dtype
        self._shape = ir.Shape(dims, frozen=True)
        if dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED):
            raise ModelError(
                f"{file.name}: tensor {name!r} is of type {dtype}, which cannot be stored outside "
                "the model file; export it again with this tensor inside"
            )
        if any(dim < 0 for dim in dims):
            raise ModelError(f"{file.name}: tensor {name!r} has a negative dimension: {dims}")
        self._nbytes = serialized_size(dtype, dims)
        if offset < 0 or offset + self._nbytes > file.size:
            raise ModelError(
                f"{file.name}: tensor {name!r} needs {self._nbytes} bytes at offset {offset}, but "
                f"the file has {file.size}; it is cut short or belongs to another model"
            )

    def __deepcopy__(self, memo: dict[int, Any]) -> MappedTensor:
        """Return another tensor over the same bytes, which nobody can change."""
        copied = MappedTensor(
            self._file,
            self._offset,
            self._dtype,
            self._shape,
            self.name,
            doc_string=self.doc_string,
            metadata_props=self._metadata_props,
        )
        copied.meta = copy.deepcopy(self.meta, memo)
        return copied

    @property
    def file(self) -> MappedFile:
        """The file that holds the bytes."""
        return self._file

    @property
    def offset(self) -> int:
        """Where in the file the bytes start."""
        return self._offset

    @property
    def dtype(self) -> ir.DataType:  # type: ignore[override]  # the protocol's is writable
        """The element type. Immutable."""
        return self._dtype

    @property
    def shape(self) -> ir.Shape:  # type: ignore[override]  # the protocol's is writable
        """The shape. Immutable."""
        return self._shape

    @property
    def metadata_props(self) -> dict[str, str]:  # type: ignore[override]  # as above
        """What is serialized beside the tensor."""
        return self._metadata_props

    @property
    def raw(self) -> MappedFile:
        """The file that holds the bytes."""
        return self._file

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self._shape.numpy(), dtype=object))

    @property
    def nbytes(self) -> int:
        """The number of bytes in the file: packed below 8 bits."""
        return self._nbytes

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return the elements.

        Returns:
            A read-only view of the mapping. Types of 2, 4 and 6 bits are unpacked into a fresh
            array, one byte an element.

        Raises:
            ModelError: the file is shorter than when it was opened, or the bits that pad a
                packed type are not zero.
        """
        if self._nbytes == 0:
            return self._elements(np.empty(0, np.uint8))
        self._file.check_size()
        mapping = self._file.mapping
        return self._elements(np.frombuffer(mapping, np.uint8, self._nbytes, self._offset))

    def checked(self) -> np.ndarray[Any, Any]:
        """Return the elements in memory of their own, whose bytes have the hash `sha256`.

        They are read once, and hashed where they were read to: what happens to the file meanwhile
        or afterwards cannot get into them unseen.

        Raises:
            NarrowpassError: the bytes are others than `sha256` says; see `mismatch`.
            ModelError: as `numpy`.
        """
        packed = np.empty(self._nbytes, np.uint8)
        digest, view = hashlib.sha256(), packed.data
        for start in range(0, self._nbytes, CHUNK):
            piece = view[start : start + CHUNK]
            self._file.read_into(self._offset + start, piece)
            digest.update(piece)
        self.check(digest.hexdigest())
        packed.flags.writeable = False
        return self._elements(packed)

    def check(self, sha256: str) -> None:
        """Compare a hash of the bytes, which somebody has read, with what it must be.

        Raises:
            NarrowpassError: it is another one than `self.sha256`; see `mismatch`.
        """
        if self.sha256 not in (None, sha256):
            if self.mismatch is not None:
                raise self.mismatch(self)
            raise ModelError(
                f"{self._file.name}: tensor {self.name!r} was changed after its SHA-256 was "
                "computed; export the model again"
            )

    def _elements(self, packed: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the elements that serialized bytes stand for: a view, where they can be."""
        dims = self._shape.numpy()
        dtype = self._dtype.numpy()
        if self._nbytes == 0:
            array = np.empty(dims, dtype)
            array.flags.writeable = False
            return array
        if self._dtype.bitwidth < 8:
            try:
                array = ir.PackedTensor(packed, self._dtype, shape=self._shape).numpy()
            except ValueError as error:
                raise ModelError(
                    f"{self._file.name}: tensor {self.name!r}: {error}; the data is damaged"
                ) from error
            array.flags.writeable = False
            return array
        if sys.byteorder == "big":  # not covered: tests run on little endian machines
            dtype = dtype.newbyteorder("<")
        return packed.view(dtype).reshape(dims)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def __dlpack__(self, *, stream: Any = None) -> Any:
        raise BufferError(
            f"tensor {self.name!r} lies in a read-only file and has no DLPack form; use numpy()"
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        raise BufferError(
            f"tensor {self.name!r} lies in a read-only file and has no DLPack form; use numpy()"
        )

    def read(self, offset: int, size: int) -> bytes:
        """Read a part of the serialized bytes, without mapping the file.

        Raises:
            ModelError: the file no longer has these bytes.
            ValueError: the part is not inside the tensor.
        """
        if offset < 0 or size < 0 or offset + size > self._nbytes:
            raise ValueError(f"{size} bytes at {offset} are not inside tensor {self.name!r}")
        return self._file.read(self._offset + offset, size)

    def tobytes(self) -> bytes:
        """Return the bytes as ONNX serializes them: little endian, packed below 8 bits."""
        return self.read(0, self._nbytes)

    def drop(self) -> None:
        """Take its elements out of this process's memory; see `MappedFile.drop`."""
        self._file.drop(self._offset, self._nbytes)

    def tofile(self, file: Writable) -> None:
        """Write the serialized bytes in pieces of 1 MiB, so that memory stays flat."""
        for start in range(0, self._nbytes, CHUNK):
            write_all(file, self.read(start, min(CHUNK, self._nbytes - start)))

    def __repr__(self) -> str:
        return (
            f"MappedTensor<{self._dtype},{self._shape}>(name={self.name!r}, "
            f"file={self._file.name!r}, offset={self._offset})"
        )
